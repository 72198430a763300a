# --------------------------------------------------------------------------------------------------
# ModelNew is Model, faster: written by kernelwright 0.1.0 for cpu.
#
# 1. The original model, as it was given.
# 2. The fused model: ModelNew, where each operator went, and the steps of a call.
# 3. The generated programs, in C++, for this model alone.
# 4, 5. The library: the package's own text, of which `kernelwright check` on this file says so.
# 6. What happens when this file is imported.
# --------------------------------------------------------------------------------------------------

"""Linear with a second bias, Hardtanh, Mish and GroupNorm."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, bias_shape, num_groups):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.hardtanh = nn.Hardtanh()
        self.mish = nn.Mish()
        self.group_norm = nn.GroupNorm(num_groups, out_features)

    def forward(self, x):
        x = self.gemm(x) + self.bias
        x = self.mish(self.hardtanh(x))
        return self.group_norm(x)


batch_size = 1024
in_features = 8192
out_features = 8192
bias_shape = (out_features,)
num_groups = 256


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, bias_shape, num_groups]


# --------------------------------------------------------------------------------------------------
# 2. The fused model: where each operator went, and the steps of a call.
# --------------------------------------------------------------------------------------------------


import torch

class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (model.py:17)
        left to ATen: linear.default; a library contraction: 1.37e+11 flop, 3.36e+08 bytes
    linear (model.py:17)
        fused into add_bias_hardtanh_mish_group_norm; its bias: one kernel for 5 operators over
        the same rows
    add (model.py:17)
        fused into add_bias_hardtanh_mish_group_norm; linear(x, W, b) + c => linear(x, W, b +
        c); one kernel for 5 operators over the same rows
    hardtanh (model.py:18), mish (model.py:18), group_norm (model.py:19)
        fused into add_bias_hardtanh_mish_group_norm; one kernel for 5 operators over the same
        rows
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        batch = x.shape[0]
        (group_norm,) = _KW_FUSION.run(memo, (x,))
        return group_norm.reshape((batch, 8192))

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(x, bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    gemm_product = torch.nn.functional.linear(x, gemm_weight)
    group_norm = _kw_empty((batch, 256, 32), torch.float32)
    _kw_launch(
        "add_bias_hardtanh_mish_group_norm",
        [gemm_product, gemm_bias, bias, group_norm_weight, group_norm_bias, group_norm],
        batch,
    )
    return (group_norm,)


def _kw_outside(state, x):
    """Why the kernels cannot take this call, or None when they can."""
    cause = _kw_transformed(None)
    if cause is not None:
        return cause
    if not _kw_is_ordinary(x):
        return "x is not a plain tensor"
    if x.device.type != "cpu":
        return "x is not on a cpu device"
    if x.dtype != torch.float32:
        return "x is not float32"
    if x.ndim != 2 or x.shape[1:] != (8192,):
        return "x is not of shape batch x 8192"
    place = x.device
    unknown = _kw_unlike(state, place)
    for tensor, (dtype, shape, device) in zip(unknown, _KW_STATE_TYPES):
        if tensor.dtype != dtype or tensor.shape != shape:
            return "a parameter has another type or shape"
        if tensor.device != place and tensor.device.type != device:
            return "a parameter is on another device"
        if not _kw_is_ordinary(tensor):
            return "a parameter is not a plain tensor"
    if unknown:
        _kw_fits(state, place)
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    return None


def _kw_original(module, x):
    """What fused() computes, by the original forward."""
    batch = x.shape[0]
    outputs = Model.forward(module, x)
    return (outputs.reshape((batch, 256, 32)),)


def _kw_blank(x, bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 256, 32), dtype=torch.float32, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float32, (8192,), None),  # bias
    (torch.float32, (8192, 8192), None),  # gemm.weight
    (torch.float32, (8192,), None),  # gemm.bias
    (torch.float32, (8192,), None),  # group_norm.weight
    (torch.float32, (8192,), None),  # group_norm.bias
)


def _kw_state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return (
        module.bias, module.gemm.weight, module.gemm.bias, module.group_norm.weight,
        module.group_norm.bias,
    )


# What tracing took for granted of the modules at these places: class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
_KW_BAKED_IN = (
    (("",), "Model", ("gemm", "hardtanh", "mish", "group_norm", "bias"), (), {}, {}),
    (
        ("gemm",),
        "torch.nn.modules.linear.Linear",
        ("weight", "bias"),
        (),
        {"in_features": 8192, "out_features": 8192},
        {},
    ),
    (
        ("hardtanh",),
        "torch.nn.modules.activation.Hardtanh",
        (),
        (),
        {"min_val": -1.0, "max_val": 1.0, "inplace": False},
        {},
    ),
    (("mish",), "torch.nn.modules.activation.Mish", (), (), {"inplace": False}, {}),
    (
        ("group_norm",),
        "torch.nn.modules.normalization.GroupNorm",
        ("weight", "bias"),
        (),
        {"num_groups": 256, "num_channels": 8192, "eps": 1e-05, "affine": True},
        {},
    ),
)


# --------------------------------------------------------------------------------------------------
# 3. The generated programs, for this model alone.
# --------------------------------------------------------------------------------------------------


_KW_PROGRAMS = r"""
// ---- A unit of its own, if need be. Cost: 1
// add (model.py:17), linear (model.py:17), hardtanh (model.py:18), mish (model.py:18),
// group_norm (model.py:19)
struct AddBiasHardtanhMishGroupNorm {
  struct Args {
    const float* gemm_product;
    const float* gemm_bias;
    const float* bias;
    const float* group_norm_weight;
    const float* group_norm_bias;
    float* KW_RESTRICT group_norm_affine_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr bool kCentre[] = {true, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 32;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (256*a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 32;
  }

  template <int V>
  struct Fields {
    kw::Vec<V> mish;
    kw::Vec<V> group_norm_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> group_norm_mean;
    kw::Vec<L> group_norm_square_sum;
    kw::Vec<L> group_norm_rstd;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto gemm_product_in = kw::load_row<V>(a.gemm_product + at.row * 32 + at.element);
    const auto gemm_bias_in = kw::load_row<V>(a.gemm_bias + (at.row % 256) * 32 + at.element);
    const auto bias_in = kw::load_row<V>(a.bias + (at.row % 256) * 32 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.mish[v] = kw::mish(kw::hardtanh(gemm_product_in[v] + (gemm_bias_in[v] + bias_in[v]), -1.0f,
          1.0f));
      out[v] = f.mish[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L, double>& total,
      const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.group_norm_mean[l] = static_cast<float>(total[l] * (1.0 / 32.0));
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.group_norm_centred[v] = f.mish[v] - s.group_norm_mean[v];
      out[v] = kw::square(f.group_norm_centred[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.group_norm_square_sum[l] = total[l];
      s.group_norm_rstd[l] = kw::rsqrt(s.group_norm_square_sum[l] * 0.03125f + 1e-05f);
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto group_norm_affine_out =
        kw::store_row<V>(a.group_norm_affine_out + at.row * 32 + at.element);
    const auto group_norm_weight_in =
        kw::load_row<V>(a.group_norm_weight + (at.row % 256) * 32 + at.element);
    const auto group_norm_bias_in =
        kw::load_row<V>(a.group_norm_bias + (at.row % 256) * 32 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      group_norm_affine_out[v] =
          f.group_norm_centred[v] * s.group_norm_rstd[v] * group_norm_weight_in[v] +
              group_norm_bias_in[v];
    }
    group_norm_affine_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// a row of 32 elements stays in the cache
struct AddBiasHardtanhMishGroupNormConfig {
  static constexpr int kVec = 16;
  static constexpr int kRun = 32;
};

extern "C" int launch_add_bias_hardtanh_mish_group_norm(void* const* tensors, const int64_t* numbers) {
  const AddBiasHardtanhMishGroupNorm::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<const float*>(tensors[2]),
      static_cast<const float*>(tensors[3]),
      static_cast<const float*>(tensors[4]),
      static_cast<float*>(tensors[5]),
      numbers[0],
  };
  kw::resident<AddBiasHardtanhMishGroupNorm, AddBiasHardtanhMishGroupNormConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}
"""


# --------------------------------------------------------------------------------------------------
# 4. The library, in Python: what this file uses of runtime/ of kernelwright 0.1.0
# for cpu. Identical to the package; `kernelwright check` on this file proves it.
# sha256 c8641f2b5a36f21caa2d337c1b791184c7c813b21daead5860c28a85bd1e6cf6
# --------------------------------------------------------------------------------------------------


import collections
import contextlib
import ctypes
import enum
import fcntl
import functools
import hashlib
import itertools
import operator
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import warnings
import weakref

import torch
from contextlib import ExitStack
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils.cpp_extension import load
from torch.utils.cpp_extension import load_inline


# One call of ModelNew: the guard, the kernels, alone or in an autograd function, the results.

class _kw_Fusion:
    """All that the emitted functions of one model are to the code around them.

    `fused(*inputs, *state)` computes the results, and where `freezes` says that weights may be
    frozen, is given their halves before these; `original(module, *inputs, *constants)` computes
    the same with the user's own forward; `model` is the user's class, where that may matter to
    it; `outside(state, *arguments)` says why the kernels cannot take a call; `state(module)`
    reads parameters and buffers. Of inputs and state, `rewritten` are the places of the buffers
    that a call changes, `recalled` of those that results depend on, `in_place` of those that
    kernels write, `uncounted` of those whose versions eager does not count. `reaches` gives for
    each result the tensors that its gradient flows to, `blank` empty results for tracers;
    `globals` says that some of the state lies in the file, where no memo watches it; `alone`
    gives the results that may be views of something inside and share no element with another;
    `guarded` that arguments are inputs, one tensor each, and that nothing but what torch's guard
    of tensors sees decides whether a call is taken. The library's products run at a `precision`.
    `training` is the backward that was made for it, if there is one (training.py).
    """

    alone = ()
    in_place = ()
    uncounted = ()
    freezes = False
    guarded = False
    precision = None
    training = None

    def __init__(self, stem, **parts):
        self.__dict__.update(parts)
        self.operator = _kw_Operator(self, stem)
        self.parted = {}
        self.record = _kw_recording(_kw_Recorded)

    def register(self, module):
        """Every ModelNew comes by here when it is made."""
        self.operator.modules.add(module)
        vars(module)["_kernelwright"] = None
        return module

    def plain(self, module):
        """A ModelNew as one of the original's class, over the very same attributes."""
        if torch.compiler.is_compiling() or type(module).__base__ is not self.model:
            return module
        found = object.__new__(self.model)
        found.__dict__ = vars(module)
        return found

    def apart(self, needed):
        """The results that no gradient flows from, where these tensors need one."""
        if needed not in self.parted:
            flows = [any(needed[1 + i] for i in of) for of in self.reaches]
            self.parted[needed] = [i for i, flow in enumerate(flows) if not flow]
        return self.parted[needed]

    def memo(self, module):
        """The module's record, made anew where anything was touched since it was made."""
        if torch.compiler.is_compiling():
            return _kw_Glance(module, self, hasattr(module, "_kernelwright_original"))
        if "_kernelwright_original" in vars(module) or _kw_is_recomputing():
            return _kw_Glance(module, self, original=True)
        memo = vars(module).get("_kernelwright")
        if memo is None or not memo.is_current(module):
            mine = memo is not None and memo.module is module
            memo = _kw_Memo(module, self, memo if mine else None)
        elif self.globals and memo.cause is None:
            memo.state = _kw_State(self.state(module))
        return memo

    def look(self, module, *arguments):
        """The module's record, and why the kernels cannot take this call, or None.

        For tensors like those of the last call it is what is known of that.
        """
        memo = self.memo(module)
        known = memo.known
        if known is not None and known.holds((*arguments, *known.state)):
            return known, None
        cause = memo.cause or self.outside(memo.state, *arguments)
        if cause is None and self.guarded and not torch.compiler.is_compiling():
            memo.know((*arguments, *memo.state))
        return memo, cause

    def run(self, memo, inputs, constants=()):
        """The results of a call that the kernels cover."""
        tensors, wants = (*inputs, *memo.state), memo.wants
        if wants is None:
            if torch.compiler.is_compiling() or _kw_is_traced(inputs):
                return self.traced(tensors)
            wants = True in [t.requires_grad for t in tensors]
        else:
            memo = memo.memo
        if wants and torch.is_grad_enabled():
            trained = self.training is not None and self.training.covers(*tensors)
            record = self.training.record if trained else self.record
            return record((memo, constants), *tensors)
        return self.compute(tensors, memo.frozen)

    def compute(self, tensors, frozen):
        """The results, by the kernels, with the halves of the weights that are frozen."""
        before = (frozen,) if self.freezes else ()
        return self.exactly(self.steps, self.fused, before, tensors)

    def exactly(self, function, *arguments):
        """What it gives while the library's products run at the precision of the file."""
        if self.precision is None or self.precision.holds():
            return function(*arguments)
        with self.precision.at_work():
            return function(*arguments)

    def steps(self, fused, before, tensors):
        """The results; what kernels write in place must be as they need it, or is copied."""
        if not self.in_place:
            return fused(*before, *tensors)
        given = [_kw_ready(t) if i in self.in_place else t for i, t in enumerate(tensors)]
        for i in self.in_place:
            if tensors[i].is_inference() and not torch.is_inference_mode_enabled():
                raise RuntimeError(
                    "A buffer is an inference tensor: call in torch.inference_mode()."
                )
            if given[i] is tensors[i] and i not in self.uncounted:
                torch.autograd.graph.increment_version(given[i])
        results = fused(*before, *given)
        with torch.no_grad():
            for buffer, new in zip(tensors, given, strict=True):
                if buffer is not new:
                    buffer.copy_(new)
        return results

    def traced(self, tensors):
        """The results of a call that is traced.

        The operator hands back what buffers become, to autograd with a history as all its results.
        """
        results = self.operator.call(list(tensors))
        count = len(self.reaches)
        for i, new in zip(self.rewritten, results[count:], strict=True):
            tensors[i].copy_(new.detach())
        return results[:count]


# What kernels can be given: tensors that are their memory, while nobody looks on.

_KW_ALIGNMENT = 16  # bytes that a kernel loads at once


def _kw_is_ordinary(value):
    """Whether this is a tensor whose elements are what its memory holds, or a fake one of such."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, FakeTensor):
        return False
    if value.layout is not torch.strided or value.is_nested:
        return False
    return torch.compiler.is_compiling() or not _kw_is_lazy(value)  # an operator is given resolved ones


class _kw_State(tuple):
    """The parameters and buffers of a module, and what is known of them."""

    known = (None, None)  # on which device they fit, and torch's guard of what they were then


def _kw_unlike(state, device):
    """The tensors of a state, unless types, sizes and layouts are those that fitted before."""
    if torch.compiler.is_compiling():
        return state
    place, guard = getattr(state, "known", _kw_State.known)
    return () if place == device and guard.check(*state) else state


def _kw_fits(state, device):
    """From here on, this state is known to fit inputs on this device."""
    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None or type(state) is not _kw_State or torch.compiler.is_compiling():
        return
    guard = guards(*state, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    if guard.check(*state):
        state.known = device, guard


def _kw_is_lazy(tensor):
    """Whether torch has put off to conjugate or to negate what memory holds, or to fill it."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def _kw_ready(tensor):
    """Memory as kernels need it, dense and aligned: the tensor itself, or a copy."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % _KW_ALIGNMENT else tensor


def _kw_transformed(untraceable):
    """Why tensors are not what they seem, or None: inside vmap or jvp they wrap others.

    An operator is given tensors alone, so a traced call that draws random numbers, or that has
    arguments of other kinds, is left to the original forward.
    """
    if torch.compiler.is_compiling():
        return untraceable
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    return untraceable if torch._C._len_torch_dispatch_stack() > 0 else None


def _kw_is_traced(inputs):
    """Whether a dispatch mode, the JIT's tracer or fake tensors stand between us and the memory."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or isinstance(inputs[0], FakeTensor)
    )


# What a module remembers between calls: how it was found, and what fell back.
#
# Looking at everything that a trace took for granted is slow. Looking whether anything was touched
# since is fast: all that hangs on the module (attributes, tables of submodules, parameters and hooks,
# lists and dicts among the attributes) is compared by identity, without a loop in Python.

# What a module keeps for saving and loading, and flags of hooks that stand elsewhere too.
_KW_UNWATCHED = (
    "_non_persistent_buffers_set",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def _kw_containers(value, seen):
    """Everything inside a value that holds what can be replaced, now and later."""
    if id(value) in seen or isinstance(value, (torch.Tensor, _kw_Memo)):
        return
    if isinstance(value, (dict, list, set, tuple, collections.deque)):
        inside = value
    elif isinstance(value, nn.Module) or _kw_is_record(value):
        inside = vars(value)
    else:
        return
    seen.add(id(value))
    if not isinstance(value, tuple):
        yield inside
    if isinstance(value, nn.Module):
        seen.update(id(inside[name]) for name in _KW_UNWATCHED if name in inside)
    for item in list(inside.values() if isinstance(inside, dict) else inside):
        yield from _kw_containers(item, seen)


# What Python counts of a dict, and torch's own guards read: a number that every change changes.
_KW_COUNTED = (3, 11) <= sys.version_info < (3, 13) and hasattr(torch._C._dynamo.guards, "dict_version")

_KW_GUARDS = getattr(torch._C._dynamo.guards, "TensorGuards", None)


class _kw_Picture:
    """Whether containers hold what they held, and modules are of the classes that they were of.

    A dict that nobody wrote to is not looked into.
    """

    def __init__(self, held, modules):
        self.held, self.modules = held, modules
        self.views = [*held, *(table.values() for table in held if isinstance(table, dict))]
        self.counted = [table for table in held if _KW_COUNTED and type(table) is dict]
        self.rest = [table for table in held if not (_KW_COUNTED and type(table) is dict)]
        self.sizes, self.classes = [*map(len, held)], [*map(type, modules)]
        self.seen = [*itertools.chain.from_iterable(self.views)]
        self.filled = any(self.rest)
        self.counts = self.count()

    def count(self):
        return [*map(torch._C._dynamo.guards.dict_version, self.counted)] if _KW_COUNTED else []

    def is_untouched(self):
        """Whether no dict was written to, and the other containers are empty as they were."""
        return not self.filled and not any(self.rest) and self.count() == self.counts

    def is_same(self):
        """Whether all that is held is what was held, in its order."""
        now = itertools.chain.from_iterable(self.views)
        sizes = [*map(len, self.held)]
        return sizes == self.sizes and all(map(operator.is_, now, self.seen))

    def __call__(self):
        if [*map(type, self.modules)] != self.classes:
            return False
        if self.is_untouched():
            return True
        counts = self.count()
        if not self.is_same():
            return False
        self.counts = counts
        return True


class _kw_Known:
    """Calls on tensors like those of a call that the kernels took, by torch's own guard of them.

    The guard compares types, sizes, strides, devices, and whether a gradient is wanted, with the
    dispatch keys, in which autocast and torch.func leave their traces. It stands for a record, and
    nothing in it changes: other threads may call at the same time.
    """

    def __init__(self, memo, tensors):
        self.memo, self.state = memo, memo.state
        self.guard = _KW_GUARDS(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self.wants = True in [tensor.requires_grad for tensor in tensors]

    def holds(self, tensors):
        """Whether these are tensors of such a call, and nothing traces or transforms it."""
        return (
            self.guard.check(*tensors)
            and torch._C._len_torch_dispatch_stack() == 0
            and torch._C._functorch.peek_interpreter_stack() is None
            and forward_ad._current_level < 0
        )


class _kw_Memo:
    """The record of one module, kept in its `__dict__`; copies of a module start without one."""

    wants = None  # whether a gradient is wanted is not known before a call
    known = None
    picture = None  # while it is being made, other threads find the memo already

    def __init__(self, module, fusion, before=None):
        self.module = module
        self.fusion = fusion
        self.namespace = vars(module)
        self.fallbacks = before.fallbacks if before else collections.Counter()
        self.frozen = before.frozen if before else {}  # the halves of weights, by their places
        self.backwards = before.backwards if before else collections.Counter()
        self.look()

    def __reduce__(self):
        return type(None), ()

    def look(self):
        """Examine the module, and remember what there was to see."""
        self.cause = self.fusion.refused or _kw_examine(self.module, self.fusion.baked_in)
        self.state = _kw_State(self.fusion.state(self.module) if self.cause is None else ())
        self.namespace["_kernelwright"] = self
        everywhere = vars(nn.modules.module)
        hooks = [everywhere[f"_global{name}"] for name in _KW_HOOKS]
        if any(hooks) and self.cause is None:
            self.cause = "there are global hooks"
        held, modules = (*hooks, *_kw_containers(self.module, set())), (*self.module.modules(),)
        self.picture = _kw_Picture(held, modules)

    def is_current(self, module):
        """Whether this is the record of that very module, and nothing was touched since."""
        return self.namespace is vars(module) and self.picture is not None and self.picture()

    def know(self, tensors):
        """Calls like this one, which the kernels take, are known from here on."""
        if _KW_GUARDS is not None and not _kw_is_traced(tensors):
            known = _kw_Known(self, tensors)
            self.known = known if known.holds(tensors) else None

    def fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in self.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        self.fallbacks[cause] += 1


# What tracing took for granted: the tree of modules, their classes and their plain attributes.
#
# A trace holds for the module as it was. `examine` says, in a sentence, what is no longer so. The
# compiler writes the table with the same functions that read it.

_KW_PLAIN = (bool, int, str, type(None))
_KW_NUMBERS = (*_KW_PLAIN, float, complex, bytes, enum.Enum)
_KW_DATA = (*_KW_NUMBERS, list, tuple, dict, set, torch.Tensor, torch.dtype, torch.device)
_KW_OWN_FIELDS = {*vars(nn.Module()), "_kernelwright"}
_KW_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _kw_class_name(kind):
    """With its module for torch's own classes; a user's class may live in another file later."""
    home = kind.__module__
    return f"{home}.{kind.__qualname__}" if home.startswith("torch.") else kind.__name__


def _kw_attributes(module):
    """What a module keeps besides tensors, submodules and hooks."""
    found = {k: v for k, v in vars(module).items() if k not in _KW_OWN_FIELDS}
    return {k: v for k, v in found.items() if not isinstance(v, torch.Tensor)}


def _kw_is_record(value):
    """Whether an object is data, such as a configuration, and no trainer, logger or function."""
    if not hasattr(value, "__dict__") or isinstance(value, (type, types.ModuleType)):
        return False
    return not callable(value) and all(isinstance(v, _KW_DATA) for v in vars(value).values())


def _kw_present(module):
    """The names of children, parameters and buffers that are there."""
    tables = (module._modules, module._parameters, module._buffers)
    return tuple(name for table in tables for name in table if table[name] is not None)


def _kw_traced_hooks(module):
    """Hooks of torch's own reparametrisations, which a trace follows; any other hook it cannot."""
    if not any(getattr(module, name) for name in _KW_HOOKS):
        return ()
    return tuple(
        _kw_class_name(type(hook)) if _kw_class_name(type(hook)).startswith("torch.nn.utils.") else ""
        for name in _KW_HOOKS
        for hook in getattr(module, name).values()
    )


def _kw_described(value, seen=()):
    """A text that is the same wherever the value means the same, also in another process."""
    if isinstance(value, (*_KW_PLAIN, float, complex, bytes, range, slice)) and not isinstance(
        value, enum.Enum
    ):
        return repr(value)
    if id(value) in seen:
        return "..."
    seen = (*seen, id(value))
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)):
        return str(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, dict):
        inside = [f"{_kw_described(k, seen)}: {_kw_described(v, seen)}" for k, v in value.items()]
        return f"{_kw_class_name(type(value))}({', '.join(inside)})"
    if isinstance(value, (list, tuple)):
        return f"{_kw_class_name(type(value))}({', '.join(_kw_described(v, seen) for v in value)})"
    if isinstance(value, (set, frozenset)):
        return f"{_kw_class_name(type(value))}({', '.join(sorted(_kw_described(v, seen) for v in value))})"
    if isinstance(value, type):
        return _kw_class_name(value)
    if isinstance(value, types.FunctionType):
        return _kw_described_function(value, seen)
    if isinstance(value, types.MethodType):
        return f"{value.__func__.__name__} of {_kw_class_name(type(value.__self__))}"
    if callable(getattr(value, "tobytes", None)):  # an array of NumPy
        return f"{_kw_class_name(type(value))}({hashlib.sha256(value.tobytes()).hexdigest()[:16]})"
    if isinstance(value, nn.Module):
        return _kw_described_fields(value, {**_kw_attributes(value), **value._modules}, seen)
    if _kw_is_record(value):
        return _kw_described_fields(value, vars(value), seen)
    return getattr(value, "__name__", _kw_class_name(type(value)))


def _kw_described_fields(value, fields, seen):
    inside = [f"{name}={_kw_described(field, seen)}" for name, field in sorted(fields.items())]
    return f"{_kw_class_name(type(value))}({', '.join(inside)})"


def _kw_described_function(function, seen):
    """Its name, and what two functions of one name can differ in: constants, defaults, closure."""
    code = function.__code__
    constants = [c for c in code.co_consts[1:] if not isinstance(c, types.CodeType)]
    kept = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    inside = [*constants, *(function.__defaults__ or ()), *kept]
    listed = ", ".join([*code.co_names, *(_kw_described(v, seen) for v in inside)])
    return f"{function.__name__}({listed})"


def _kw_mentioned(kind):
    """Every name that the methods of a class use: what is added under another concerns no one."""
    methods = [f for base in kind.__mro__ for f in vars(base).values() if hasattr(f, "__code__")]
    words = {word for f in methods for word in (*f.__code__.co_names, *f.__code__.co_consts)}
    return {*words, *(name for base in kind.__mro__ for name in vars(base))}


def _kw_examine(root, table):
    """Why the trace does not hold for this module any more, or None."""
    for paths, *traced in table:
        for path in paths:
            cause = _kw_otherwise(root, path, *traced)
            if cause is not None:
                return cause
    return None


def _kw_otherwise(root, path, kind, names, hooks, plain, others):
    """What is not as it was in the module at this place."""
    module = root
    for part in path.split(".") if path else ():
        module = module._modules.get(part) if module is not None else None
    if module is None:
        return f"{path} is gone"
    place = path or "the model"
    if path and _kw_class_name(type(module)) != kind:
        return f"{path} is a {type(module).__name__} now"
    if _kw_present(module) != names:
        return f"the tensors or submodules of {place} are not those it was traced with"
    if path and _kw_traced_hooks(module) != hooks:
        return f"{path} has hooks"
    dot = f"{path}." if path else ""
    for name in plain:
        if not hasattr(module, name):
            return f"{dot}{name} is gone"
        value = getattr(module, name)
        if type(value) is not type(plain[name]) or value != plain[name]:
            now = "another" if torch.compiler.is_compiling() else repr(value)
            return f"{dot}{name} is {now} and was {plain[name]!r}"
    if torch.compiler.is_compiling():  # a compiler would have to follow all of the others
        return None
    return _kw_other_attributes(module, dot, plain, others)


def _kw_other_attributes(module, dot, plain, others):
    found = _kw_attributes(module)
    for name in found:
        if name not in plain and name not in others and name in _kw_mentioned(type(module)):
            return f"{dot}{name} was not there"
    for name, text in others.items():
        if name not in found or _kw_described(found[name]) != text:
            return f"{dot}{name} has changed"
    return None


# The kernels inside an autograd function.

class _kw_Recorded(torch.autograd.Function):
    """The kernels as one node of autograd's graph."""

    @staticmethod
    def forward(ctx, call, *tensors):
        memo, _ = ctx.call = call
        fusion = memo.fusion
        if fusion.random:
            ctx.random = _kw_random_state(tensors[0].device)
        ctx.save_for_backward(*_kw_kept(tensors, fusion))
        ctx.set_materialize_grads(False)
        results = fusion.compute(tensors, memo.frozen)
        results = _kw_own(results, fusion.alone) if fusion.alone else results
        apart = fusion.apart(ctx.needs_input_grad)
        if apart:
            ctx.mark_non_differentiable(*[results[i] for i in apart])
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        wanted = ctx.needs_input_grad[1:]
        memo, constants = ctx.call
        memo.backwards["the original forward"] += 1
        call = (memo.fusion, memo.module, constants, getattr(ctx, "random", None))
        return None, *_kw_gradients(*call, ctx.saved_tensors, wanted, cotangents)


def _kw_recording(function):
    """apply() without its search for wrappers of torch.func, which are known not to be here."""
    return super(torch.autograd.Function, function).apply


# Gradients of a call of the kernels: the original forward runs once more.
#
# The kernels keep no activations. If gradients are asked for, the original forward runs on the
# tensors of the call, and autograd differentiates that: values, double backward and what is unused
# are eager's own. Generated backward kernels will take the place of `gradients`.

class _kw_StandIns(TorchFunctionMode):
    """Inside, every operation that is given one of these tensors gets another in its place.

    So the parameters of a module need not be replaced in the module itself, which other threads
    may be using, and hooks on the parameters do not run for gradients that are not theirs yet.
    """

    _kernelwright_stands_in = True  # other emitted files ask for this, whatever the class is called

    def __init__(self, pairs):
        super().__init__()
        self.pairs = {id(old): (old, new) for old, new in pairs}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map(self.replaced, (args, kwargs or {}))
        return function(*args, **kwargs)

    def replaced(self, value):
        return self.pairs.get(id(value), (value, value))[1]


def _kw_is_recomputing():
    """Whether the backward of a module around this one runs its original forward."""
    if torch._C._len_torch_function_stack() == 0:
        return False
    modes = _get_current_function_mode_stack()
    return any(hasattr(mode, "_kernelwright_stands_in") for mode in modes)


@contextlib.contextmanager
def _kw_as_at_first(device, random):
    """The generators as they were in the forward, for models that draw random numbers."""
    if random is None:
        yield
        return
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.set_rng_state(random[0])
        if on_gpu:
            torch.cuda.set_rng_state(random[1], device)
        yield


def _kw_random_state(device):
    state = [torch.get_rng_state()]
    return [*state, torch.cuda.get_rng_state(device)] if device.type == "cuda" else state


def _kw_alias(tensor, again):
    """Another tensor with the same values to differentiate by; for `again`, one with a history."""
    if again and tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


def _kw_gradients(fusion, module, constants, random, tensors, wanted, cotangents):
    """The gradients of the wanted tensors, by the original forward and autograd."""
    again = torch.is_grad_enabled()
    device = tensors[0].device
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        fresh = [_kw_alias(t, again) if w else t for t, w in zip(tensors, wanted, strict=True)]
        inputs, state = fresh[: fusion.inputs], fresh[fusion.inputs :]
        named = list(zip(fusion.state(module), state, strict=True))
        written = [named[i - fusion.inputs][0] for i in fusion.rewritten]
        pairs = [(w, w.detach().clone()) for w in written]
        pairs += [(own, given) for own, given in named if given is not None]
        with _kw_as_at_first(device, random), _kw_StandIns(pairs):
            results = fusion.original(fusion.plain(module), *inputs, *constants)
    pairs = zip(results, cotangents, strict=False)  # what buffers become has none
    used = [(r, c) for r, c in pairs if c is not None and r.requires_grad]
    found = iter(())
    if used:
        found = iter(
            torch.autograd.grad(
                [r for r, _ in used],
                [f for f, w in zip(fresh, wanted, strict=True) if w],
                [c for _, c in used],
                create_graph=again,
                allow_unused=True,
            )
        )
    return [next(found, None) if w else None for w in wanted]


def _kw_kept(tensors, fusion):
    """What backward needs of a call: a buffer that the call rewrites only where outputs read it."""
    if not fusion.rewritten:
        return tensors
    found = list(tensors)
    for i in fusion.rewritten:
        found[i] = found[i].clone() if i in fusion.recalled else None
    return found


def _kw_own(results, alone):
    """These results as tensors of their own, which may be written: nobody else sees their memory.

    Autograd refuses that for a view that comes out of a function.
    """
    hidden = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._ExcludeDispatchKeyGuard(hidden):
        return tuple(
            torch.ops.aten.alias.default(x) if i in alone and x._is_view() else x
            for i, x in enumerate(results)
        )


# The kernels as an operator of torch.library, for everything that traces instead of running.
#
# torch.compile, torch.export, fake tensors and the JIT's tracer see one call with a fake
# implementation and a backward. An eager call does not come this way: a dispatch costs more than a
# small kernel.

_KW_LIBRARY = torch.library.Library("kernelwright", "FRAGMENT")


class _kw_Glance:
    """What a traced call knows of its module; the tracer guards whatever this reads."""

    known = wants = None  # of calls like this one nothing is kept

    def __init__(self, module, fusion, original=False):
        self.cause = fusion.refused or _kw_examine(module, fusion.baked_in)
        if original:  # a model around it is being compiled, or differentiated
            self.cause = "the original is wanted"
        self.state = fusion.state(module) if self.cause is None else ()

    def fall_back(self, cause):
        """Nothing to count: the tracer follows the original forward instead."""


class _kw_Operator:
    """An operator for the kernels of one file.

    Tensors are all it is given. For gradients it runs the original forward of any module that is as
    the trace found it, with the call's tensors in the place of that module's own.
    """

    def __init__(self, fusion, stem):
        self.fusion = fusion
        self.modules = weakref.WeakSet()
        names = (f"{stem}_{i}" if i else stem for i in itertools.count())
        name = next(n for n in names if not hasattr(torch.ops.kernelwright, n))
        backward = f"{name}_backward"
        _KW_LIBRARY.define(f"{name}(Tensor[] tensors) -> Tensor[]")
        _KW_LIBRARY.define(
            f"{backward}(Tensor?[] cotangents, Tensor[] tensors, bool[] wanted) -> Tensor[]"
        )
        _KW_LIBRARY.impl(name, self.run, "CompositeExplicitAutograd")
        _KW_LIBRARY.impl(backward, self.run_backward, "CompositeExplicitAutograd")
        torch.library.register_fake(f"kernelwright::{name}", self.blank, lib=_KW_LIBRARY)
        torch.library.register_fake(f"kernelwright::{backward}", self.blank_backward, lib=_KW_LIBRARY)
        torch.library.register_autograd(
            f"kernelwright::{name}", self.backward, setup_context=self.save, lib=_KW_LIBRARY
        )
        self.call = getattr(torch.ops.kernelwright, name).default
        self.call_backward = getattr(torch.ops.kernelwright, backward).default

    def run(self, tensors):
        """The results, and what buffers become: tracers want operators that change nothing."""
        rewritten = self.fusion.rewritten
        given = [t.clone() if i in rewritten else t for i, t in enumerate(tensors)]
        results = self.fusion.compute(given, {})
        return [*results, *(given[i] for i in rewritten)]

    def blank(self, tensors):
        buffers = [torch.empty_like(tensors[i]) for i in self.fusion.rewritten]
        return [*self.fusion.blank(*tensors), *buffers]

    def save(self, ctx, inputs, output):
        (tensors,) = inputs
        ctx.save_for_backward(*_kw_kept(tensors, self.fusion))
        ctx.wanted = [t.requires_grad for t in tensors]

    def backward(self, ctx, cotangents):
        rest = torch.empty(0)  # in the place of buffers that were rewritten and are not needed
        tensors = [rest if t is None else t for t in ctx.saved_tensors]
        given = [c if isinstance(c, torch.Tensor) else None for c in cotangents]
        found = self.call_backward(given, tensors, ctx.wanted)
        return [g if w else None for g, w in zip(found, ctx.wanted, strict=True)]

    def run_backward(self, cotangents, tensors, wanted):
        alike = (m for m in self.modules if _kw_examine(m, self.fusion.baked_in) is None)
        module = next(alike, None)
        if module is None:
            raise RuntimeError("There is no ModelNew left whose forward could be differentiated.")
        for i in {*self.fusion.rewritten} - {*self.fusion.recalled}:
            tensors[i] = None
        call = (self.fusion, module, (), None)
        found = _kw_gradients(*call, tensors, wanted, cotangents)
        triples = zip(found, tensors, wanted, strict=True)
        return [_kw_gradient(g, t) if w else torch.empty(0) for g, t, w in triples]

    def blank_backward(self, cotangents, tensors, wanted):
        blank = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors]
        return [b if w else torch.empty(0) for b, w in zip(blank, wanted, strict=True)]


def _kw_gradient(found, tensor):
    return torch.zeros_like(tensor).contiguous() if found is None else found.contiguous()


# How a kernel is started: addresses and sizes, as C takes them.

_KW_NO_COMPILER = "there is no C++ compiler to be run as {}; install g++, or set CXX to one"


class _kw_Library:
    """The compiled kernels of a file; each of `watchers` is told their names before they start.

    Without a compiler there are none, and `refused` says so.
    """

    def __init__(self, compiled):
        self.compiled, self.watchers = compiled, []
        self.refused = None if compiled else _KW_NO_COMPILER.format(_kw_compiler_name())

    def launch(self, name, tensors, *sizes):
        """Start a kernel on dense memory, with as many threads as torch uses."""
        for watcher in self.watchers:
            watcher((f"launch_{name}",))
        dense = [tensor.contiguous() for tensor in tensors]
        places = struct.pack(f"{len(dense)}q", *[tensor.data_ptr() for tensor in dense])
        numbers = struct.pack(f"{len(sizes) + 1}q", *sizes, torch.get_num_threads())
        getattr(self.compiled, f"launch_{name}")(places, numbers)


def _kw_empty(shape, dtype):
    """Memory without values."""
    return torch.empty(shape, dtype=dtype, device="cpu")


# The programs of a file become a library: compiled once for each machine, and kept.
#
# In: the texts in C++. Out: a library that ctypes has opened. A build is kept in a folder that is
# named by all that it depends on (texts, flags, compiler, torch, instruction set), so that it is
# never taken for another; it is there whole or not at all, whoever builds beside us or is killed.

# GCC would take half of a register of AVX-512: 2.0 ms and not 1.4 for 2.5 M times SiLU.
_KW_NATIVE = {
    "aarch64": ["-mcpu=native"],
    "arm64": ["-mcpu=native"],
    "x86_64": ["-march=native", "-mprefer-vector-width=512"],
}.get(platform.machine(), ["-march=native"])
_KW_EXACT = ["-fno-math-errno", "-fno-trapping-math"]  # not -ffast-math: NaN and infinity must work
_KW_TOGETHER = 4  # what a unit should cost at least: its own parsing is not free
# What changes a build without being an argument of it.
_KW_NAMED = ("CXX", "CC", "CUDA_HOME", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH")


def _kw_library(stem, programs, headers):
    """The compiled programs, from where they are kept or from the compiler; None without one."""
    if shutil.which(_kw_compiler_name()) is None:
        return None
    threads = ["-fopenmp"] if _kw_has_threads() else []
    # torch would ask for C++20, whose headers take the compiler longer than a small kernel.
    flags = dict(
        extra_cflags=["-std=c++17", "-O3", *(threads or ["-fopenmp-simd"]), *_KW_NATIVE, *_KW_EXACT],
        extra_ldflags=threads,
        is_python_module=False,  # plain C functions: no binding to compile
    )
    return _kw_built(stem, "cpp", _kw_separate(programs, headers), flags, _kw_instructions())


def _kw_built(stem, ending, units, flags, machine):
    """The library that these units are, opened."""
    path = _kw_place(stem, units, flags, machine)
    return ctypes.CDLL(_kw_made(path, ending, units, flags))


def _kw_separate(programs, headers):
    """The kernels as texts that compile side by side: costly ones apart, cheap ones together."""
    shared, *parts = re.split(r"^// ---- A unit .* Cost: (\d+)\n", programs, flags=re.MULTILINE)
    costs, texts = [int(cost) for cost in parts[::2]], parts[1::2]
    count = min(os.cpu_count() or 1, -(-sum(costs) // max(*costs, _KW_TOGETHER)))
    units, loads = [[] for _ in range(count)], [0] * count
    for i in sorted(range(len(texts)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        units[least].append(i)
        loads[least] += costs[i]
    return [headers + shared + "".join(texts[i] for i in sorted(unit)) for unit in units]


def _kw_place(stem, units, flags, machine):
    """The path of a library, in a folder that is named by all that it depends on."""
    text = [*units, repr(flags), torch.__version__, sys.version, platform.platform(), *machine]
    text += [os.environ.get(name, "") for name in _KW_NAMED]
    text.append(_kw_identity(_kw_compiler_name()))
    name = stem + "_" + hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]
    return os.path.join(os.path.abspath(_kw_cache()), name, name + ".so")


def _kw_identity(program):
    """Which program a name stands for today: another version is another file."""
    path = shutil.which(program)
    if path is None:
        return program
    found = os.stat(path)
    return f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}"


def _kw_compiler_name():
    return os.environ.get("CXX") or "c++"


@functools.cache
def _kw_has_threads():
    """Whether the compiler has OpenMP; clang often comes without its library, and is tried."""
    compiler = os.path.realpath(shutil.which(_kw_compiler_name()))
    if "clang" not in compiler and platform.system() != "Darwin":
        return True
    with ExitStack() as after:
        folder = tempfile.mkdtemp(prefix="kw_")
        after.callback(shutil.rmtree, folder)
        command = [compiler, "-fopenmp", "-x", "c++", "-", "-o", os.path.join(folder, "trial")]
        return not subprocess.run(command, input=b"int main() {}", capture_output=True).returncode


def _kw_instructions():
    """The instruction set that -march=native stands for here; where nobody tells, the machine."""
    if not os.path.exists("/proc/cpuinfo"):
        return [platform.processor(), platform.node()]
    with open("/proc/cpuinfo") as info:
        return sorted({line for line in info if line.lower().startswith(("flags", "features"))})


def _kw_cache():
    """Where builds are kept; where that cannot be written, a private folder for temporary files."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kernelwright"
    )
    near = os.path.abspath(root)
    while not os.path.exists(near):
        near = os.path.dirname(near)
    if not os.path.isdir(near) or os.access(near, os.W_OK | os.X_OK):
        return root
    spare = os.path.join(tempfile.gettempdir(), f"kernelwright-{os.getuid()}")
    os.makedirs(spare, mode=0o700, exist_ok=True)
    if os.stat(spare).st_uid != os.getuid():
        raise PermissionError(f"{root} cannot be written, and {spare} belongs to somebody else")
    return spare


def _kw_made(path, ending, units, flags):
    """The library at this place, built if it is not there yet."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(os.path.join(os.path.dirname(path), "building"), "w") as guard, ExitStack() as after:
        fcntl.flock(guard, fcntl.LOCK_EX)
        after.callback(fcntl.flock, guard, fcntl.LOCK_UN)  # a forked child has this file open too
        if not _kw_is_whole(path):
            _kw_compiled(path, ending, units, flags)
    return path


def _kw_is_whole(path):
    """Whether a library is there as it was built: no half of one, as a full disk leaves it."""
    if not (os.path.exists(path) and os.path.exists(path + ".sha256")):
        return False
    with open(path, "rb") as file, open(path + ".sha256") as digest:
        return digest.read() == hashlib.sha256(file.read()).hexdigest()


def _kw_compiled(path, ending, units, flags):
    """Build in an empty folder, since nobody knows what a killed build left in this one.

    torch writes the path of that folder into a build file, where `$` and quotes have a meaning, and
    leaves a lock behind when it is killed: so the folder is new, and has a plain name. It is no
    TemporaryDirectory, which a child that is forked meanwhile would remove when it ends.
    """
    with ExitStack() as after:
        folder = tempfile.mkdtemp(prefix="kw_")
        after.callback(shutil.rmtree, folder)
        name = os.path.basename(os.path.dirname(path))
        flags = dict(flags, name=name, build_directory=folder)
        if len(units) > 1:
            sources = [os.path.join(folder, f"unit_{i}.{ending}") for i in range(len(units))]
            for source, unit in zip(sources, units, strict=True):
                _kw_put(source, unit.encode())
            load(sources=sources, **flags)
        else:
            sources = {"cpp_sources": units} if ending == "cpp" else {"cuda_sources": units}
            load_inline(**{"cpp_sources": []} | sources, no_implicit_headers=True, **flags)
        with open(os.path.join(folder, name + ".so"), "rb") as file:
            content = file.read()
    _kw_put(path, content)
    _kw_put(path + ".sha256", hashlib.sha256(content).hexdigest().encode())


def _kw_put(path, content):
    """A file that appears whole or not at all."""
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.replace(path + ".new", path)


# --------------------------------------------------------------------------------------------------
# 5. The library, in C++: what this file uses of kernels/ of kernelwright 0.1.0
# for cpu. Identical to the package; `kernelwright check` on this file proves it.
# sha256 91839d6ad9d213e2198b944a5ebcfc1f65514dab8283a3e24386d5be6d14ba5d
# --------------------------------------------------------------------------------------------------


_KW_HEADERS = r"""
#include <algorithm>
#include <math.h>
#include <stdint.h>
#include <type_traits>
#include <utility>

// ---- scalar.cuh ---------------------------------------------------------------------------------
// The float32 scalar functions of the expression IR, one definition for device and host.
//
// Each follows the torch function of its name, special values included: NaN in, NaN out (but for
// sign, where torch says 0), and infinities where eager puts them. Truth values are 1.0f and 0.0f.
//
// On the device (sm_80 and later) exp, log and their like are CUDA's accurate functions, and those
// whose results stay bounded are made of its approximate powers of two and reciprocals, two ulp
// each: a convolution's epilogue takes as long as it has instructions, and the error of
// exp(x), |x| 6e-8 relative, is lost where exp(x) is small beside 1 (tests/cuda/test_scalar.py). On
// the host they are the branch-free polynomials below, so that GCC vectorises a plain loop over any
// of them (all but pow, sin and cos) under -O3 -fno-math-errno -fno-trapping-math. Never
// -ffast-math: it breaks NaN, infinities and the argument reductions. The polynomials are minimax
// fits made by tests/cpu/scalar_fit.py; the ulp bounds of all functions are the table in
// tests/cpu/test_scalar.py. Nothing relies on a fused multiply-add: products that must be exact
// have few enough bits.

#define KW_FN inline __attribute__((always_inline))

namespace kw {

namespace detail {

inline constexpr float kInf = __builtin_huge_valf();
inline constexpr float kLog2e = 1.44269504f;
// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
inline constexpr float kRound = 12582912.0f;
// ln 2 = kLn2Hi + kLn2Lo; kLn2Hi has 9 bits, so its product with an exponent is exact.
inline constexpr float kLn2Hi = 0.693359375f;
inline constexpr float kLn2Lo = -2.12194440e-4f;

KW_FN uint32_t to_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

KW_FN float from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// 2^n for n in [-126, 127].
KW_FN float pow2(int32_t n) {
  return from_bits(static_cast<uint32_t>(n + 127) << 23);
}

KW_FN float polynomial(float, float c) {
  return c;
}
KW_FN float polynomial(float x, float c0, float c1) {
  return c1 * x + c0;
}

// c0 + c1 x + c2 x^2 + ...; on the host Horner's rule in x^2 over pairs, half as long a chain as in
// x. The device has other elements to go on with, and saves the square.
template <class... Rest>
KW_FN float polynomial(float x, float c0, float c1, Rest... rest) {
  return polynomial(x, rest...) * (x * x) + (c1 * x + c0);
}

// The selects below compare bits as integers where they can: GCC turns the inverse of a float
// comparison, which must hold for NaN, into up to six instructions on AArch64.

KW_FN bool sign_bit(float x) {
  return static_cast<int32_t>(to_bits(x)) < 0;
}

// min(|x|, bound). A NaN becomes bound; the callers bring it back.
KW_FN float bounded_abs(float x, float bound) {
  const uint32_t bits = to_bits(x) & 0x7fffffff;
  return from_bits(bits < to_bits(bound) ? bits : to_bits(bound));
}

KW_FN float keep_nan(float x, float value) {
  return x == x ? value : x;
}

// x + low = n ln 2 + high + tail, where high is exact and r = high + tail is at most ln(2) / 2.
struct Reduced {
  int32_t n;
  float high, tail, r;
};

KW_FN Reduced reduce(float x, float low = 0.0f) {
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float high = x - n * kLn2Hi;
  const float tail = low - n * kLn2Lo;
  return {static_cast<int32_t>(to_bits(shifted) - to_bits(kRound)), high, tail, high + tail};
}

// exp on [-ln(2)/2, ln(2)/2]; relative error of the fit 3.1e-9.
KW_FN float exp_reduced(const Reduced& a) {
  const float p =
      polynomial(a.r, 0.49999994f, 0.16666521f, 0.041668262f, 0.008368673f, 0.0013820995f);
  return (a.high + (p * (a.r * a.r) + a.tail)) + 1.0f;
}

// exp(x + low) for x in [-105, 43]. The power of two is applied in two steps so that a result below
// FLT_MIN keeps its bits until the last step; for n <= 63 that one is a constant.
KW_FN float exp_within(float x, float low = 0.0f) {
  const Reduced a = reduce(x, low);
  return exp_reduced(a) * pow2(a.n + 64) * 0x1p-64f;
}

// exp(-|x|), 0 for NaN.
KW_FN float exp_minus_abs(float x) {
  return exp_within(-bounded_abs(x, 105.0f));
}

// a / b within 2 ulp for b from 1/4 to 2^126; beyond that it is 0, since so is the reciprocal.
// The device's exact division takes many times the instructions of an approximate reciprocal.
KW_FN float ratio(float a, float b) {
  return a / b;
}

}  // namespace detail

// Arithmetic and rounding.

KW_FN float square(float x) { return x * x; }

KW_FN float rsqrt(float x) {
  return 1.0f / ::sqrtf(x);
}

// Comparison and choice.

// fmaxf drops a NaN, so it is brought back: by PTX in the instruction; on AArch64 by a select,
// since fmaxf is one instruction; elsewhere by the comparison, of which x86 makes one for a
// constant b.
KW_FN float maximum(float a, float b) {
#if defined(__aarch64__)
  return detail::keep_nan(b, detail::keep_nan(a, ::fmaxf(a, b)));
#else
  return a < b || b != b ? b : a;
#endif
}

KW_FN float minimum(float a, float b) {
#if defined(__aarch64__)
  return detail::keep_nan(b, detail::keep_nan(a, ::fminf(a, b)));
#else
  return a > b || b != b ? b : a;
#endif
}

KW_FN float clamp(float x, float low, float high) { return minimum(maximum(x, low), high); }

// Activations.

KW_FN float hardtanh(float x, float low, float high) { return clamp(x, low, high); }

// tanh(log(1 + exp(x))) = n / (n + d) with one exponential e: for negative x, e = exp(x) and
// n = e^2 + 2 e, d = 2; otherwise e = exp(-x), which cannot overflow, and n = 1 + 2 e, d = 2 e^2.
// The device uses the first form everywhere: from 20 on it is 1, and e^2 is far from overflow.
KW_FN float mish(float x) {
  const float e = detail::exp_minus_abs(x);
  const bool negative = detail::sign_bit(x);
  const float n = negative ? e * (e + 2.0f) : 1.0f + 2.0f * e;
  const float d = negative ? 2.0f : 2.0f * e * e;
  return x * detail::ratio(n, n + d);
}

}  // namespace kw

// ---- storage.cuh --------------------------------------------------------------------------------
// How elements lie in memory and in registers: lane vectors, loads and stores.
//
// Arithmetic is float32 everywhere; narrower types (half.cuh) exist in memory alone. A program
// works on V lanes at a time, neighbours along the axis that is contiguous in memory. On the device
// a unit-stride load is one vector instruction; on the host it is a view that the compiler
// vectorises through.

// Before a loop over lanes: unrolled on the device, vectorised on the host.
#define KW_LANES _Pragma("omp simd")

// At a pointer to results: nothing else points there. GCC believes it of what a function is given.
// Without it one vector's chain of operations ends with its store before the next one's begins (a
// GELU takes 4.2 ms, with it 3.5: 2.5 M numbers, two cores of a Neoverse N1). On the device
// read_only says so of what is read.
#define KW_RESTRICT __restrict

namespace kw {

KW_FN float to_float(float x) {
  return x;
}
KW_FN float to_float(bool x) {
  return x ? 1.0f : 0.0f;
}
KW_FN float to_float(int64_t x) {
  return static_cast<float>(x);
}

template <class T>
KW_FN T from_float(float x);

template <>
KW_FN float from_float<float>(float x) {
  return x;
}

template <>
KW_FN bool from_float<bool>(float x) {
  return x != 0.0f;
}

// V numbers, one per lane. A single one stands for every lane.
template <int V, class T = float>
struct Vec {
  T lanes[V];
  KW_FN T& operator[](int v) { return lanes[V == 1 ? 0 : v]; }
  KW_FN T operator[](int v) const { return lanes[V == 1 ? 0 : v]; }
};

template <class T>
struct Row {
  const T* at;
  KW_FN float operator[](int v) const { return to_float(at[v]); }
};

template <int V, class T>
KW_FN Row<T> load_row(const T* at) {
  return {at};
}

// Lanes that are written where they belong as soon as they are known.
template <class T>
struct StridedOut {
  T* at;
  int64_t stride;
  struct Slot {
    T* at;
    KW_FN void operator=(float x) const { *at = from_float<T>(x); }
  };
  KW_FN Slot operator[](int v) const { return {at + v * stride}; }
  KW_FN void commit() const {}
};

template <int V, class T>
KW_FN StridedOut<T> store_row(T* at) {
  return {at, 1};
}

}  // namespace kw

// ---- program.cuh --------------------------------------------------------------------------------
// What a row program looks like to a kernel.
//
// A program works on rows of elements. Its stages are reductions, in order: stage I combines one
// contribution per element over the row, or over each segment (a run of neighbouring elements) of
// it. Then it stores. A generated program P provides, for V lanes of one chunk and L lanes of
// results:
//
//   P::Args                                        pointers and sizes
//   P::rows(a), P::elements(a), P::kSegment        the loop nest; kSegment 0: no segments
//   P::kStages, P::kCombine[I], P::kOverSegment[I]
//   P::kSameReading[I]                             whether stage I needs nothing of the stages that
//                                                  read the row last; if left out, each needs it
//   P::kCentre[I]                                  whether stage I is a sum whose mean is taken
//                                                  from the elements; if left out, none is
//   P::Fields<V>                                   what a chunk remembers from stage to stage
//   P::Scalars<L>                                  results of stages and what follows from them
//   P::contribution(Stage<I>, fields, scalars, a, at) -> Vec<V>
//   P::finish(Stage<I>, scalars, total, a)
//   P::store_elements(fields, scalars, a, at), P::store_segment(scalars, a, at), P::store_row(...)
//   P::kStoresElements, P::kStoresSegments         whether the first two do anything

namespace kw {

template <int I>
struct Stage {
  static constexpr int value = I;
};

struct Cursor {
  int64_t row;
  int64_t element;
};

enum class Combine { kSum, kProd, kMax, kMin };

// A sum whose mean is subtracted is a double. What is left of equal numbers is divided by nearly
// nothing, so it has to be nothing, and the mean that number to the last bit: n times a float fits
// into a double, and a float is what an n-th of it is rounded to.
template <class P, int I, class = void>
inline constexpr bool kIsCentre = false;
template <class P, int I>
inline constexpr bool kIsCentre<P, I, std::void_t<decltype(P::kCentre)>> = P::kCentre[I];

template <class P, int I>
using TotalOf = std::conditional_t<kIsCentre<P, I>, double, float>;

template <Combine C, class T = float>
KW_FN T identity() {
  if constexpr (C == Combine::kSum) return T(0);
  if constexpr (C == Combine::kProd) return T(1);
  if constexpr (C == Combine::kMax) return -detail::kInf;
  if constexpr (C == Combine::kMin) return detail::kInf;
}

template <Combine C, class T>
KW_FN T combine(T x, T y) {
  if constexpr (C == Combine::kSum) return x + y;
  if constexpr (C == Combine::kProd) return x * y;
  if constexpr (C == Combine::kMax) return maximum(static_cast<float>(x), static_cast<float>(y));
  if constexpr (C == Combine::kMin) return minimum(static_cast<float>(x), static_cast<float>(y));
}

// Folds the upper half of the lanes onto the lower one until a single lane is left: a short chain
// of widths known to the compiler, which keeps it in vector registers.
template <Combine C, int Width, int V, class T>
KW_FN T fold_lanes(Vec<V, T>& x) {
  if constexpr (Width == 1) {
    return x.lanes[0];
  } else {
    constexpr int kHalf = Width / 2;
    KW_LANES
    for (int v = 0; v < kHalf; ++v) x.lanes[v] = combine<C>(x.lanes[v], x.lanes[Width - kHalf + v]);
    return fold_lanes<C, Width - kHalf>(x);
  }
}

template <Combine C, int V, class T>
KW_FN T combine_lanes(Vec<V, T> x) {
  return fold_lanes<C, V>(x);
}

}  // namespace kw

// ---- chunks.hpp ---------------------------------------------------------------------------------
// Walking a row on the CPU: chunks of V lanes that the compiler vectorises, then of four, then
// single lanes.
//
// Sums are kept per lane and combined at the end, which is also what makes them accurate.

// GCC leaves lambdas out of line when they are large; their captures then live in memory.
#define KW_INLINE __attribute__((always_inline))

namespace kw {

template <Combine C, int V, class T, class X>
KW_FN void accumulate(Vec<V, T>& total, const Vec<V, X>& x) {
  KW_LANES
  for (int v = 0; v < V; ++v) total.lanes[v] = combine<C>(total.lanes[v], T{x.lanes[v]});
}

template <Combine C, int V, class T = float>
KW_FN Vec<V, T> identities() {
  Vec<V, T> x;
  for (int v = 0; v < V; ++v) x.lanes[v] = identity<C, T>();
  return x;
}

// A total over a long row: blocks of so many chunks, so many blocks together, and these. A row of
// equal numbers is rounded the same way at every step, and a norm divides by nearly nothing then;
// so the steps from an element to the total have to be few.
template <Combine C, int V>
struct BlockwiseTotal {
  static constexpr int kBlock = 16;
  Vec<V> done = identities<C, V>();
  Vec<V> blocks = identities<C, V>();
  Vec<V> block = identities<C, V>();
  Vec<V> rest = identities<C, V>();
  int chunks = 0;
  int singles = 0;

  KW_FN void add(const Vec<V>& x) {
    accumulate<C, V>(block, x);
    if (++chunks % kBlock == 0) {
      accumulate<C, V>(blocks, block);
      block = identities<C, V>();
      if (chunks == kBlock * kBlock) {
        accumulate<C, V>(done, blocks);
        blocks = identities<C, V>();
        chunks = 0;
      }
    }
  }

  // What a run leaves over comes again with every run: added up one by one, it would take as many
  // steps as there are runs.
  template <int W>
  KW_FN void add_some(const Vec<W>& x) {
    for (int v = 0; v < W; ++v) {
      rest.lanes[singles] = x.lanes[v];
      if (++singles == V) {
        add(rest);
        rest = identities<C, V>();
        singles = 0;
      }
    }
  }

  KW_FN Vec<V> all() const {
    Vec<V> total = done;
    accumulate<C, V>(total, blocks);
    accumulate<C, V>(total, block);
    accumulate<C, V>(total, rest);
    return total;
  }
};

// A sum as a double, which steps do not wear out.
template <int V>
struct WideTotal {
  Vec<V, double> total = identities<Combine::kSum, V, double>();

  KW_FN void add(const Vec<V>& x) { accumulate<Combine::kSum, V>(total, x); }
  KW_FN void add(const Vec<V> (&x)[1]) { add(x[0]); }

  // First as floats, which is exact if they are equal.
  KW_FN void add(const Vec<V> (&x)[4]) {
    Vec<V> sum;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      sum.lanes[v] = (x[0].lanes[v] + x[1].lanes[v]) + (x[2].lanes[v] + x[3].lanes[v]);
    }
    add(sum);
  }

  template <int W>
  KW_FN void add_some(const Vec<W>& x) {
    for (int v = 0; v < W; ++v) total.lanes[v] += x.lanes[v];
  }

  KW_FN const Vec<V, double>& all() const { return total; }
};

// What adds up the chunks of stage I.
template <class P, int I, int V>
using StageTotal =
    std::conditional_t<kIsCentre<P, I>, WideTotal<V>, BlockwiseTotal<P::kCombine[I], V>>;

// Threads for a program: waking others costs more than a few thousand elements of work.
template <class P>
KW_FN int threads_for(const typename P::Args& a, int threads) {
  return P::rows(a) * P::elements(a) < 32768 ? 1 : threads;
}

// Lanes of the narrow chunks that are left of a run: a function of few lanes costs a processor as
// much as one of many.
inline constexpr int kNarrow = 4;

// Of a run of R elements, 0 where that is not known: whether chunks of W lanes may leave any.
template <int64_t R, int W>
inline constexpr bool kLeaves = R == 0 || R % W != 0;

// Calls body(lanes, index, element) over [begin, end): chunks of V lanes along runs, then narrow
// ones, then single lanes. `index` counts the chunks of each width on their own. All runs have R
// elements if that is not 0. Where four chunks of V lanes follow one another, four(index, element)
// takes them, if it is given.
template <int V, int64_t R, class F, class Four = std::nullptr_t>
KW_FN void for_each_chunk(int64_t begin, int64_t end, int64_t run, F&& body, Four&& four = {}) {
  int64_t wide = 0;
  int64_t narrow = 0;
  int64_t single = 0;
  for (int64_t start = begin; start < end; start += run) {
    int64_t e = start;
    const int64_t stop = std::min(start + run, end);
    if constexpr (!std::is_same_v<std::decay_t<Four>, std::nullptr_t>) {
      for (; e + 4 * V <= stop; e += 4 * V, wide += 4) four(wide, e);
    }
    for (; e + V <= stop; e += V) body(Stage<V>{}, wide++, e);
    if constexpr (V > kNarrow && kLeaves<R, V>) {
      for (; e + kNarrow <= stop; e += kNarrow) body(Stage<kNarrow>{}, narrow++, e);
    }
    if constexpr (V > 1 && kLeaves<R, V> && (V <= kNarrow || kLeaves<R, kNarrow>)) {
      for (; e < stop; ++e) body(Stage<1>{}, single++, e);
    }
  }
}

}  // namespace kw

// ---- resident.hpp -------------------------------------------------------------------------------
// Row programs on the CPU, OpenMP over rows: a row is read once and stays close until it is stored.
//
// Stages over segments run segment by segment, together with the row stage that follows them, so
// that a segment's fields live in registers or in the first-level cache. Only what a later stage or
// a store needs after a reduction over the whole row is kept in a scratch buffer of the row's size.

namespace kw {

template <class P, class C>
struct ResidentRow {
  static constexpr int V = C::kVec;
  static constexpr int64_t kSegment = P::kSegment ? P::kSegment : P::kElements;
  static constexpr int64_t kSegments = P::kElements / kSegment;
  static constexpr int64_t kRun = C::kRun;
  static constexpr int64_t kRuns = kSegment / kRun;
  static constexpr int64_t kWide = kRuns * (kRun / V);
  static constexpr int64_t kNarrows = V > kNarrow ? kRuns * (kRun % V / kNarrow) : 0;
  static constexpr int64_t kSingle = kSegment - kWide * V - kNarrows * kNarrow;
  using Wide = typename P::template Fields<V>;
  using Narrow = typename P::template Fields<kNarrow>;
  using Single = typename P::template Fields<1>;
  using Scalars = typename P::template Scalars<1>;

  // On lines of the cache, which a vector would otherwise straddle.
  struct alignas(64) Segment {
    Wide wide[kWide + 1];
    Narrow narrow[kNarrows + 1];
    Single single[kSingle + 1];
    Scalars scalars;

    template <class F, class Four = std::nullptr_t>
    KW_FN void chunks(int64_t begin, F&& body, Four&& four = {}) {
      const auto each = [&](auto lanes, int64_t i, int64_t e) KW_INLINE {
        if constexpr (decltype(lanes)::value == V) {
          body(lanes, wide[i], e);
        } else if constexpr (decltype(lanes)::value == kNarrow) {
          body(lanes, narrow[i], e);
        } else {
          body(lanes, single[i], e);
        }
      };
      for_each_chunk<V, kRun>(begin, begin + kSegment, kRun, each, four);
    }
  };

  // Without segments the row is the only one, and every stage is over it.
  static constexpr bool over_row(int stage) { return P::kSegment && !P::kOverSegment[stage]; }
  static constexpr int next_over_row(int stage) {
    while (stage < P::kStages && !over_row(stage)) ++stage;
    return stage;
  }
  static constexpr int kFirstOverRow = next_over_row(0);
  static constexpr bool kKeepsSegments =
      kFirstOverRow < P::kStages &&
      (kFirstOverRow + 1 < P::kStages || P::kStoresElements || P::kStoresSegments);
  static constexpr bool kOnStack = !kKeepsSegments && sizeof(Segment) <= 16384;
  static constexpr int kTogether = sizeof(Segment) <= 1024 ? 4 : 1;

  // No unique_ptr: <memory> takes the compiler as long as a kernel.
  Segment* const scratch = kOnStack ? nullptr : new Segment[kKeepsSegments ? kSegments : 1];
  ResidentRow() = default;
  ResidentRow(const ResidentRow&) = delete;
  ~ResidentRow() { delete[] scratch; }

  template <class S>
  KW_FN static void accumulate_segment(S stage, Segment& segment,
                                       Vec<V, TotalOf<P, S::value>>& total,
                                       const typename P::Args& a, Cursor at) {
    constexpr Combine kOp = P::kCombine[S::value];
    // A copy, since the fields are written meanwhile: in the same object as these, the compiler
    // would read them again for every lane, and not vectorise.
    const Scalars scalars = segment.scalars;
    StageTotal<P, S::value, V> sum;
    const auto add = [&](auto lanes, auto& f, int64_t e) KW_INLINE {
      const auto x = P::contribution(stage, f, scalars, a, Cursor{at.row, e});
      if constexpr (decltype(lanes)::value == V) {
        sum.add(x);
      } else {
        sum.add_some(x);
      }
    };
    if constexpr (kIsCentre<P, S::value>) {
      segment.chunks(at.element, add, [&](int64_t i, int64_t e) KW_INLINE {
        Vec<V> x[4];
        for (int n = 0; n < 4; ++n) {
          const Cursor here{at.row, e + n * V};
          x[n] = P::contribution(stage, segment.wide[i + n], scalars, a, here);
        }
        sum.add(x);
      });
    } else {
      segment.chunks(at.element, add);
    }
    accumulate<kOp, V>(total, sum.all());
  }

  // Stages I up to End for N segments side by side: the long chains of one (a sum across lanes, a
  // square root, a division) run while the processor works on the others.
  template <int I, int End, int N>
  KW_FN static void segment_stages(Segment* segments, const typename P::Args& a,
                                   const Cursor (&at)[N]) {
    if constexpr (I < End) {
      constexpr Combine kOp = P::kCombine[I];
      using T = TotalOf<P, I>;
      Vec<V, T> totals[N];
      for (int k = 0; k < N; ++k) {
        totals[k] = identities<kOp, V, T>();
        accumulate_segment(Stage<I>{}, segments[k], totals[k], a, at[k]);
      }
      for (int k = 0; k < N; ++k) {
        const Vec<1, T> total{{combine_lanes<kOp>(totals[k])}};
        P::finish(Stage<I>{}, segments[k].scalars, total, a);
      }
      segment_stages<I + 1, End, N>(segments, a, at);
    }
  }

  KW_FN static void store_segment(Segment& segment, const typename P::Args& a, Cursor at) {
    if constexpr (P::kStoresElements) {
      const Scalars scalars = segment.scalars;
      segment.chunks(at.element, [&](auto, auto& f, int64_t e) KW_INLINE {
        P::store_elements(f, scalars, a, Cursor{at.row, e});
      });
    }
    if constexpr (P::kStoresSegments) P::store_segment(segment.scalars, a, at);
  }

  // N rows without segments that are so short that they stay on the stack.
  template <int N>
  KW_FN static void run_short(const typename P::Args& a, int64_t row) {
    Segment segments[N];
    Cursor at[N];
    for (int k = 0; k < N; ++k) at[k] = {row + k, 0};
    segment_stages<0, P::kStages, N>(segments, a, at);
    for (int k = 0; k < N; ++k) {
      store_segment(segments[k], a, at[k]);
      P::store_row(segments[k].scalars, a, at[k]);
    }
  }

  // Stages I up to the next one over the row for N segments from q on, and their share of that one.
  template <int I, int N, class T>
  KW_FN void walk(Segment* segments, Vec<V, T>& row_total, const typename P::Args& a, int64_t row,
                  int64_t q) {
    constexpr int kEnd = next_over_row(I);
    Cursor at[N];
    for (int k = 0; k < N; ++k) at[k] = {row, (q + k) * kSegment};
    segment_stages<I, kEnd, N>(segments, a, at);
    for (int k = 0; k < N; ++k) {
      if constexpr (kEnd < P::kStages) {
        accumulate_segment(Stage<kEnd>{}, segments[k], row_total, a, at[k]);
      } else {
        store_segment(segments[k], a, at[k]);
      }
    }
  }

  // Everything from stage I on; a stage over the row ends one walk over the segments.
  template <int I>
  KW_FN void run_from(const typename P::Args& a, int64_t row) {
    constexpr int kEnd = next_over_row(I);
    constexpr int kNext = kEnd < P::kStages ? kEnd : 0;
    constexpr Combine kOp = P::kCombine[kNext];
    using T = TotalOf<P, kNext>;
    Vec<V, T> row_total = identities<kOp, V, T>();
    Scalars last;
    int64_t q = 0;
    if constexpr (kOnStack) {
      for (; q + kTogether <= kSegments; q += kTogether) {
        Segment segments[kTogether];
        walk<I, kTogether>(segments, row_total, a, row, q);
        last = segments[0].scalars;
      }
    }
    for (; q < kSegments; ++q) {
      if constexpr (kOnStack) {
        Segment alone;
        walk<I, 1>(&alone, row_total, a, row, q);
        last = alone.scalars;
      } else {
        Segment& kept = scratch[kKeepsSegments ? q : 0];
        walk<I, 1>(&kept, row_total, a, row, q);
        last = kept.scalars;
      }
    }
    if constexpr (kEnd < P::kStages) {
      const Vec<1, T> total{{combine_lanes<kOp>(row_total)}};
      P::finish(Stage<kEnd>{}, last, total, a);
      if constexpr (kKeepsSegments) {
        for (int64_t k = 0; k < kSegments; ++k) {
          P::finish(Stage<kEnd>{}, scratch[k].scalars, total, a);
        }
        run_from<kEnd + 1>(a, row);
        return;
      }
    }
    P::store_row(last, a, Cursor{row, 0});
  }
};

template <class P, class C>
void resident(const typename P::Args& a, int threads) {
  using Row = ResidentRow<P, C>;
  const int64_t rows = P::rows(a);
  if constexpr (Row::kSegments == 1 && Row::kOnStack) {
    constexpr int N = Row::kTogether;
    const int64_t together = rows / N;
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
    for (int64_t i = 0; i < together; ++i) Row::template run_short<N>(a, i * N);
    for (int64_t row = together * N; row < rows; ++row) Row::template run_short<1>(a, row);
  } else {
#pragma omp parallel num_threads(threads_for<P>(a, threads))
    {
      Row row_program;
#pragma omp for schedule(static)
      for (int64_t row = 0; row < rows; ++row) row_program.template run_from<0>(a, row);
    }
  }
}

}  // namespace kw
"""


# --------------------------------------------------------------------------------------------------
# 6. At import: the programs are built, or found as built before.
# --------------------------------------------------------------------------------------------------


_KW_KERNEL_LIBRARY = _kw_Library(_kw_library("kw_model", _KW_PROGRAMS, _KW_HEADERS))
_kw_launch = _KW_KERNEL_LIBRARY.launch
_KW_FUSION = _kw_Fusion(
    "kw_model",
    model=Model,
    outside=_kw_outside,
    fused=_kw_fused,
    original=_kw_original,
    blank=_kw_blank,
    state=_kw_state,
    baked_in=_KW_BAKED_IN,
    inputs=1,
    reaches=[(0, 1, 2, 3, 4, 5)],
    rewritten=[],
    recalled=[],
    random=False,
    refused=_KW_KERNEL_LIBRARY.refused,
    globals=False,
    guarded=True,
)
