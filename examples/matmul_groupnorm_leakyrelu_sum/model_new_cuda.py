# --------------------------------------------------------------------------------------------------
# ModelNew is Model, faster: written by kernelwright 0.1.0 for cuda.
#
# 1. The original model, as it was given.
# 2. The fused model: ModelNew, where each operator went, and the steps of a call.
# 3. The generated programs, in C++, for this model alone.
# 4, 5. The library: the package's own text, of which `kernelwright check` on this file says so.
# 6. What happens when this file is imported.
# --------------------------------------------------------------------------------------------------

"""Linear, GroupNorm, LeakyReLU, and the sum of the result with itself."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups, eps=1e-5, negative_slope=0.01):
        super().__init__()
        self.fc = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features, eps=eps)
        self.activation = nn.LeakyReLU(negative_slope)

    def forward(self, x):
        x = self.activation(self.norm(self.fc(x)))
        return x + x


batch_size = 1024
in_features = 8192
out_features = 8192
num_groups = 512


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups]


# --------------------------------------------------------------------------------------------------
# 2. The fused model: where each operator went, and the steps of a call.
# --------------------------------------------------------------------------------------------------


import torch

_KW_GENERATED_GEMM = True  # False: every product is the library's


class ModelNew(Model):
    """Where each operator of Model.forward went.

    linear (model.py:15), group_norm (model.py:15), leaky_relu (model.py:15)
        fused into linear_group_norm_leaky_relu_add; a generated product (float32 as three
        float16 products) with 3 operators in its epilogue; the library below 257 rows
    add (model.py:16)
        fused into linear_group_norm_leaky_relu_add; x + x => 2 * x; a generated product
        (float32 as three float16 products) with 3 operators in its epilogue; the library below
        257 rows
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, cause = _KW_FUSION.look(self, x)
        if cause is not None:
            memo.fall_back(cause)
            return Model.forward(_KW_FUSION.plain(self), x)
        (add,) = _KW_FUSION.run(memo, (x,))
        return add

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks

    def freeze(self):
        """Split the weights now instead of at every call, and return self.

        From here to unfreeze() the weights must stay as they are. A call notices most changes and
        raises an error. It cannot see a write through `.data`, and would use the old values.
        """
        frozen = {}
        for kernel, shape, rows, panels, weights in (
            ("freeze_linear_group_norm_leaky_relu_add", (8192, 8192), 8192, (1, 128, 128, 2, 64, 64), {
                "fc.weight": self.fc.weight,
            }),
        ):
            for name, weight in weights.items():
                device = weight.device
                known = weight.dtype == torch.float32 and weight.shape == shape
                if known and _kw_capability(device) == (9, 0):
                    halves = torch.empty(panels, dtype=torch.float16, device=device)
                    scales = torch.empty((rows, 2), dtype=torch.float32, device=device)
                    _KW_KERNEL_LIBRARY.start(kernel, device, [weight, halves, scales], ())
                    frozen[name] = (halves, scales, _kw_stamped(weight))
        _KW_FUSION.memo(self).frozen = frozen
        return self

    def unfreeze(self):
        """Split the weights at every call again, and return self."""
        _KW_FUSION.memo(self).frozen = {}
        return self

    def _apply(self, *args, **kwargs):
        self.unfreeze()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        self.unfreeze()
        return super()._load_from_state_dict(*args, **kwargs)


def _kw_linear_group_norm_leaky_relu_add(
    batch, device, kept, x, fc_weight, fc_bias, norm_weight, norm_bias
):
    """add at model.py:16."""
    if (
        _KW_GENERATED_GEMM
        and batch >= (96 if "fc.weight" in kept else 257)
        and _kw_capability(device) == (9, 0)
    ):
        left_halves = _kw_empty((1, ((batch + 63)//64), 128, 2, 64, 64), torch.float16, device)
        left_scales = _kw_empty((1, batch, 2), torch.float32, device)
        right_halves, right_scales = _kw_halves_of(kept, "fc.weight", fc_weight)
        frozen = right_halves is not None
        if not frozen:
            right_halves = _kw_empty((1, 128, 128, 2, 64, 64), torch.float16, device)
            right_scales = _kw_empty((1, 8192, 2), torch.float32, device)
        progress = _kw_empty((65,), torch.int32, device)
        add = _kw_empty((batch, 8192), torch.float32, device)
        tiles, clusters, early, _ = _kw_product_launch(
            batch, 1, (8192, 8192, (128, 2, 8), 2, True, 0), _kw_processors(device), frozen
        )
        _kw_launch(
            "linear_group_norm_leaky_relu_add", device,
            [
                x, fc_weight, left_halves, left_scales, right_halves, right_scales, progress,
                fc_bias, norm_weight, norm_bias, add,
            ],
            batch, tiles, clusters, early, frozen,
        )
    else:
        if _KW_GENERATED_GEMM and batch <= 8:
            fc_product = _kw_empty((batch, 8192), torch.float32, device)
            _kw_launch("fc_product_few_rows", device, [x, fc_weight, fc_product], batch)
        elif _KW_GENERATED_GEMM and batch <= 128 and _kw_capability(device) == (9, 0):
            fc_product = _kw_empty((batch, 8192), torch.float32, device)
            left_halves = _kw_empty((1, ((batch + 63)//64), 128, 2, 64, 64), torch.float16, device)
            left_scales = _kw_empty((1, batch, 2), torch.float32, device)
            sums = _kw_empty((2, batch, 8192), torch.float32, device)
            right_scales = _kw_empty((2, 8192, 2), torch.float32, device)
            _kw_launch(
                "fc_product_thin", device,
                [x, fc_weight, left_halves, left_scales, sums, right_scales, fc_product],
                batch, 2,
            )
        elif _KW_GENERATED_GEMM and batch <= 256 and _kw_capability(device) == (9, 0):
            fc_product = _kw_empty((batch, 8192), torch.float32, device)
            left_halves = _kw_empty((1, ((batch + 63)//64), 128, 2, 64, 64), torch.float16, device)
            left_scales = _kw_empty((1, batch, 2), torch.float32, device)
            sums = _kw_empty((1, batch, 8192), torch.float32, device)
            right_scales = _kw_empty((1, 8192, 2), torch.float32, device)
            _kw_launch(
                "fc_product_thin", device,
                [x, fc_weight, left_halves, left_scales, sums, right_scales, fc_product],
                batch, 1,
            )
        else:
            fc_product = torch.nn.functional.linear(x, fc_weight)
        add = _kw_empty((batch, 8192), torch.float32, device)
        _kw_launch(
            "bias_group_norm_leaky_relu_add", device,
            [fc_product, fc_bias, norm_weight, norm_bias, add],
            batch,
        )
    return add


def _kw_fused(kept, x, fc_weight, fc_bias, norm_weight, norm_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    device = x.device
    add = _kw_linear_group_norm_leaky_relu_add(
        batch, device, kept, x, fc_weight, fc_bias, norm_weight, norm_bias
    )
    return (add,)


def _kw_outside(state, x):
    """Why the kernels cannot take this call, or None when they can."""
    cause = _kw_transformed(None)
    if cause is not None:
        return cause
    if not _kw_is_ordinary(x):
        return "x is not a plain tensor"
    if x.device.type != "cuda":
        return "x is not on a cuda device"
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
    if torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    return None


def _kw_original(module, x):
    """What fused() computes, by the original forward."""
    outputs = Model.forward(module, x)
    return (outputs,)


def _kw_blank(x, fc_weight, fc_bias, norm_weight, norm_bias):
    """Results without values, for tracers."""
    batch = x.shape[0]
    return (torch.empty((batch, 8192), dtype=torch.float32, device=x.device),)


_KW_STATE_TYPES = (
    (torch.float32, (8192, 8192), None),  # fc.weight
    (torch.float32, (8192,), None),  # fc.bias
    (torch.float32, (8192,), None),  # norm.weight
    (torch.float32, (8192,), None),  # norm.bias
)


def _kw_state(module):
    """The parameters and buffers that a call reads, in one order for all."""
    return (module.fc.weight, module.fc.bias, module.norm.weight, module.norm.bias)


# What tracing took for granted of the modules at these places: class, what is there,
# hooks, plain attributes, others as text. Otherwise the original forward runs.
_KW_BAKED_IN = (
    (("",), "Model", ("fc", "norm", "activation"), (), {}, {}),
    (
        ("fc",),
        "torch.nn.modules.linear.Linear",
        ("weight", "bias"),
        (),
        {"in_features": 8192, "out_features": 8192},
        {},
    ),
    (
        ("norm",),
        "torch.nn.modules.normalization.GroupNorm",
        ("weight", "bias"),
        (),
        {"num_groups": 512, "num_channels": 8192, "eps": 1e-05, "affine": True},
        {},
    ),
    (
        ("activation",),
        "torch.nn.modules.activation.LeakyReLU",
        (),
        (),
        {"negative_slope": 0.01, "inplace": False},
        {},
    ),
)


# --------------------------------------------------------------------------------------------------
# 3. The generated programs, for this model alone.
# --------------------------------------------------------------------------------------------------


_KW_PROGRAMS = r"""
// ---- Programs that several kernels run.

// linear (model.py:15), group_norm (model.py:15), leaky_relu (model.py:15), add (model.py:16)
struct LinearGroupNormLeakyReluAdd {
  struct Args {
    const float* fc_bias;
    const float* norm_weight;
    const float* norm_bias;
    float* KW_RESTRICT add_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {true, true};
  static constexpr int kSegment = 16;
  static constexpr int kElements = 8192;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 8192;
  }
  static constexpr int kColumns = 8192;
  static constexpr bool kByTile = false;

  template <int V>
  struct Fields {
    kw::Vec<V> fc_product;
    kw::Vec<V> fc;
    kw::Vec<V> norm_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> norm_sum;
    kw::Vec<L> norm_mean;
    kw::Vec<L> norm_square_sum;
    kw::Vec<L> norm_rstd;
  };

  KW_FN static void touch(const Args& a, int column) {
    kw::touch(a.fc_bias + column);
    kw::touch(a.norm_weight + column);
    kw::touch(a.norm_bias + column);
  }

  template <int V>
  KW_FN static void begin(Fields<V>& f, const kw::Vec<V>& product) {
    f.fc_product = product;
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto fc_bias_in = kw::load_row<V>(a.fc_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.fc[v] = f.fc_product[v] + fc_bias_in[v];
      out[v] = f.fc[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.norm_sum[l] = total[l];
      s.norm_mean[l] = s.norm_sum[l] * 0.0625f;
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.norm_centred[v] = f.fc[v] - s.norm_mean[v];
      out[v] = kw::square(f.norm_centred[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.norm_square_sum[l] = total[l];
      s.norm_rstd[l] = kw::rsqrt(s.norm_square_sum[l] * 0.0625f + 1e-05f);
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto add_out = kw::store_row<V>(a.add_out + at.row * 8192 + at.element);
    const auto norm_weight_in = kw::load_row<V>(a.norm_weight + at.element);
    const auto norm_bias_in = kw::load_row<V>(a.norm_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      add_out[v] =
          kw::leaky_relu(f.norm_centred[v] * s.norm_rstd[v] * norm_weight_in[v] + norm_bias_in[v],
              0.01f) * 2.0f;
    }
    add_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// ---- A unit of its own, if need be. Cost: 0
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- A unit of its own, if need be. Cost: 8
// tiles of 128 x 128: 4 for each multiprocessor; 192,
// 256: too many accumulators; 2048 rows of the right operand are split before the first wave,
// the others on the way
struct LinearGroupNormLeakyReluAddConfig {
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = 128;
  static constexpr int kStages = 3;
  static constexpr int kCluster = 2;
  static constexpr int kBand = 8;
  static constexpr int kVec = 4;
  static constexpr int kDepth = 8192;
};

extern "C" int launch_linear_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers) {
  const LinearGroupNormLeakyReluAdd::Args a{
      static_cast<const float*>(tensors[7]),
      static_cast<const float*>(tensors[8]),
      static_cast<const float*>(tensors[9]),
      static_cast<float*>(tensors[10]),
      numbers[0],
  };
  const kw::GemmOperands g{
      {tensors[0], 0, 0, 8192, 1},  // left
      {tensors[1], 0, 0, 8192, 1},  // right
      tensors[2],  // left_halves
      tensors[3],  // left_scales
      tensors[4],  // right_halves
      tensors[5],  // right_scales
      static_cast<unsigned*>(tensors[6]),  // progress
      {1, 1},  // batch
      (a.batch),  // rows
      8192,  // columns
      8192,  // depth
  };
  const kw::GemmDecision how{
      static_cast<int>(numbers[1]),  // tiles
      static_cast<int>(numbers[2]),  // clusters
      numbers[3],  // early
      numbers[4] != 0,  // frozen
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[5]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[6]);
  return kw::gemm<kw::SplitFloat, LinearGroupNormLeakyReluAdd,
      LinearGroupNormLeakyReluAddConfig>(g, how, a, on);
}

extern "C" int freeze_linear_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers) {
  const kw::Operand weight{tensors[0], 0, 0, 8192, 1};
  const kw::DeviceGuard guard(static_cast<int>(numbers[0]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[1]);
  return kw::split_all<2, kw::hopper::Major::kDepth, true, 8192>(
      weight, {1, 1}, tensors[1], tensors[2], 8192, 8192, on);
}

// ---- A unit of its own, if need be. Cost: 1
// linear (model.py:15), group_norm (model.py:15), leaky_relu (model.py:15), add (model.py:16)
using BiasGroupNormLeakyReluAdd = kw::Segments<kw::InMemory<LinearGroupNormLeakyReluAdd, float>>;

// a row of 16 elements stays in registers
struct BiasGroupNormLeakyReluAddConfig {
  static constexpr int kVec = 4;
  static constexpr int kLanes = 4;
  static constexpr int kTeams = 1;
  static constexpr int kRows = 64;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;
};

extern "C" int launch_bias_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers) {
  const BiasGroupNormLeakyReluAdd::Args a{
      {
          static_cast<const float*>(tensors[1]),
          static_cast<const float*>(tensors[2]),
          static_cast<const float*>(tensors[3]),
          static_cast<float*>(tensors[4]),
          numbers[0],
      },
      static_cast<const float*>(tensors[0]),
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::resident<BiasGroupNormLeakyReluAdd, BiasGroupNormLeakyReluAddConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 3
extern "C" int launch_fc_product_few_rows(void* const* tensors, const int64_t* numbers) {
  const kw::FewRows g{
      static_cast<const float*>(tensors[0]),  // left
      static_cast<const float*>(tensors[1]),  // right
      nullptr,  // bias
      static_cast<float*>(tensors[2]),  // out
      numbers[0],  // rows
      8192,  // columns
      8192,  // depth
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::few_rows<false>(g, on);
}

// ---- A unit of its own, if need be. Cost: 4
extern "C" int launch_fc_product_thin(void* const* tensors, const int64_t* numbers) {
  const kw::ThinOperands g{
      static_cast<const float*>(tensors[0]),  // left
      static_cast<const float*>(tensors[1]),  // right
      nullptr,  // bias
      static_cast<float*>(tensors[6]),  // out
      static_cast<uint16_t*>(tensors[2]),  // left_halves
      static_cast<kw::RowScale*>(tensors[3]),  // left_scales
      static_cast<float*>(tensors[4]),  // sums
      static_cast<kw::RowScale*>(tensors[5]),  // right_scales
      static_cast<int>(numbers[0]),  // rows
      8192,  // columns
      8192,  // depth
      static_cast<int>(numbers[1]),  // parts
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[2]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[3]);
  return kw::thin_product<2, 8192>(g, on);
}

// ---- A unit of its own, if need be. Cost: 1
extern "C" void watch_launches(void (*watcher)(const char* name)) { kw::watcher = watcher; }
extern "C" const char* last_launch() { return kw::last_launch; }


"""


# --------------------------------------------------------------------------------------------------
# 4. The library, in Python: what this file uses of runtime/ of kernelwright 0.1.0
# for cuda. Identical to the package; `kernelwright check` on this file proves it.
# sha256 c92960eb83bed1806e725f682d02abd44f12fe98a1d4940f08f85f88f3393c0b
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


# How kernels are started on a GPU: alone, or all between two calls that only torch can make.

_KW_MOST_CALLS = 1024  # whose numbers are kept, and runs whose memory is known


class _kw_Library:
    """The compiled kernels of a file, None without a GPU.

    Each of `watchers` is told their names before they start.
    """

    def __init__(self, compiled):
        self.compiled, self.watchers = compiled, []
        self.prepared, self.rooms = {}, {}
        self.listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self.told)
        self.listening = False

    def launch(self, name, device, tensors, *sizes):
        """Start a kernel."""
        for watcher in self.watchers:
            watcher((f"launch_{name}",))
        self.start(f"launch_{name}", device, tensors, sizes)

    def run(self, name, device, tensors, *sizes):
        """Start the kernels of a run, on what it is given and on memory that is theirs alone."""
        if bool(self.watchers) is not self.listening:
            self.listen()
        room = self.rooms.get((name, sizes))
        if room is None:
            if len(self.rooms) >= _KW_MOST_CALLS:
                self.rooms.clear()
            room = self.rooms[name, sizes] = self.room(name, sizes)
        memory = _kw_empty((room,), torch.uint8, device)
        self.start(f"run_{name}", device, [*tensors, memory], sizes, None)

    def room(self, name, sizes):
        """The bytes that its kernels need, which the run itself counts."""
        found = ctypes.c_int64()
        numbers = struct.pack(f"{len(sizes) + 2}q", *sizes, 0, 0)
        getattr(self.compiled, f"run_{name}")(None, numbers, ctypes.byref(found))
        return found.value

    def start(self, function, device, tensors, sizes, *others):
        """A function of the library on torch's current stream; kernels need dense, aligned memory.

        Nothing waits for the GPU.
        """
        places = _kw_addresses(tensors)
        if any([place % _KW_ALIGNMENT for place in places]):
            tensors = [None if tensor is None else _kw_ready(tensor) for tensor in tensors]
            places = _kw_addresses(tensors)
        index = device.index
        call = function, sizes, index, torch._C._cuda_getCurrentRawStream(index)
        found = self.prepared.get(call)
        if found is None:
            found = self.prepare(call, len(places))
        begin, pack, numbers = found
        code = begin(pack(*places), numbers, *others)
        if code:
            self.fail(function, code)

    def prepare(self, call, count):
        """What calls with the same numbers share: the function, and its numbers as C takes them."""
        function, sizes, *last = call
        if len(self.prepared) >= _KW_MOST_CALLS:
            self.prepared.clear()
        numbers = struct.pack(f"{len(sizes) + 2}q", *sizes, *last)
        begin = getattr(self.compiled, function)
        self.prepared[call] = found = begin, struct.Struct(f"{count}q").pack, numbers
        return found

    def fail(self, function, code):
        """Raise the error that a launch came back with."""
        for name in ("last_launch", "cuda_error_text"):
            getattr(self.compiled, name).restype = ctypes.c_char_p
        kernel = self.compiled.last_launch().decode() if function.startswith("run_") else function
        text = self.compiled.cuda_error_text(code).decode()
        raise RuntimeError(f"The launch of {kernel} failed: {text}.")

    def listen(self):
        """Watchers are told by the run itself which kernels it starts."""
        self.listening = bool(self.watchers)
        self.compiled.watch_launches(self.listener if self.listening else None)

    def told(self, name):
        for watcher in self.watchers:
            watcher((name.decode(),))


def _kw_addresses(tensors):
    """Where their elements lie: 1 for one that has gaps, and 0 where there is none."""
    return [0 if t is None else t.data_ptr() if t.is_contiguous() else 1 for t in tensors]


# torch's own for code that it has compiled: on the current device, without a parser of arguments.
_KW_EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
_KW_HERE = getattr(torch._C, "_cuda_getDevice", None)


def _kw_empty(shape, dtype, device):
    """Memory without values."""
    if _KW_EMPTY is None or _KW_HERE is None or device.type != "cuda" or device.index != _KW_HERE():
        return torch.empty(shape, dtype=dtype, device=device)
    return _KW_EMPTY(shape, _kw_strides(shape), dtype)


@functools.lru_cache(maxsize=1024)
def _kw_strides(shape):
    """Those of dense memory."""
    found = [1]
    for size in shape[:0:-1]:
        found.append(found[-1] * max(size, 1))
    return tuple(found[::-1]) if shape else ()


@functools.cache
def _kw_capability(device):
    """Which instructions a GPU has; None: this is no GPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


@functools.cache
def _kw_processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


# How a generated product is launched: its sizes, its tile and the chip in, three numbers out.
#
# The kernel (kernels/gemm_sm90.cuh) does as it is told: how many neighbouring tiles a block
# multiplies at once, how many clusters of blocks run, and how many rows of the right operand are
# split before they do; the other rows are split on the way, by warps that have nothing else to do.

# `tiles` at once, `clusters`, `early` rows, and the reason as a sentence.
_kw_ProductLaunch = collections.namedtuple("ProductLaunch", "tiles clusters early why")
_KW_PRODUCT_ROWS = 128  # of a tile
_KW_SPLIT_PANEL = 64


def _kw_waves(groups, cluster, processors):
    """The clusters that run, and how many groups of tiles the busiest of them multiplies.

    If a few multiprocessors less take as many waves, all have as many tiles, and those of a strip
    of the right operand are multiplied in the same wave.
    """
    most = max(1, processors // cluster)
    waves = -(-groups // most)
    enough = -(-groups // waves)
    return (enough if waves == 1 or enough * 8 >= most * 7 else most), waves


def _kw_can_pair(tile, planes):
    """Whether there is a kernel that multiplies two neighbouring tiles at once."""
    width, cluster, _ = tile
    return planes == 2 and cluster == 2 and width == 128


@functools.cache
def _kw_product_launch(rows, batch, rule, processors, frozen):
    """A ProductLaunch for `batch` products of so many rows; `frozen`: the right one is split."""
    columns, depth, tile, planes, streams, at_once = rule
    if rows == 0 or batch == 0:
        return _kw_ProductLaunch(1, 1, 0, "there is nothing to multiply")
    width, cluster, band = tile
    down, across = -(-rows // _KW_PRODUCT_ROWS), -(-columns // (width * cluster))
    clusters, waves = _kw_waves(down * across * batch, cluster, processors)
    panels = -(-columns // _KW_SPLIT_PANEL) * _KW_SPLIT_PANEL
    early, why = panels, ""
    if planes and frozen:
        early, why = 0, "the right operand is frozen"
    elif planes == 1:
        why = "the product is over too soon to split on the way"
    elif planes == 2 and not streams:
        why = "the right operand is split before: it is batched, or does not lie along its depth"
    elif at_once == 2 and _kw_can_pair(tile, planes):
        why = "two tiles at once leave no registers to split on the way"
    elif planes == 2 and waves == 1:
        why = "there is one wave, and all of the right operand is in it"
    elif planes == 2:
        # The splitting warps do some 50 rows a microsecond, in which 64 of depth are multiplied.
        first = -(-clusters // min(down, band)) * cluster * width
        if first * 5 > depth * 2:
            why = "a wave ends before the next one's rows could be split on the way"
        else:
            early = min(first, panels)
            why = f"{early} rows of the right operand are split before the first wave"
            return _kw_ProductLaunch(1, clusters, early, f"{why}, the others on the way")
    if _kw_can_pair(tile, planes) and at_once != 1:
        pairs = -(-rows // (2 * _KW_PRODUCT_ROWS)) * -(-columns // (2 * width)) * batch
        half, turns = _kw_waves(pairs, cluster, processors)
        if at_once == 2 or turns * 2 <= waves:
            return _kw_ProductLaunch(2, half, early, f"{why}; two tiles at once take {turns} wave(s)")
        why = f"{why}; one tile at once, since two would take {turns} wave(s) instead of {waves}"
    return _kw_ProductLaunch(1, clusters, early, why or f"{waves} wave(s) of tiles")


# Weights that freeze() has split: their halves, as long as the weights are what they were.

def _kw_stamped(weight):
    """What tells that a weight was changed; a write through `.data` leaves it as it is."""
    return weight.data_ptr(), None if weight.is_inference() else weight._version


def _kw_halves_of(kept, target, weight):
    """The halves of a weight and what they are scaled by, or nothing where it is not frozen."""
    if target not in kept:
        return None, None
    halves, scales, stamp = kept[target]
    if stamp != _kw_stamped(weight):
        again = "call freeze() again or unfreeze()"
        raise RuntimeError(f"The weight {target} changed after freeze(); {again}.")
    return halves, scales


# Products and convolutions of the library run at the precision that a file was compiled for.

class _kw_Precision:
    """How torch rounds float32 products, and whether cuDNN may round convolutions."""

    def __init__(self, products, convolutions):
        self.products, self.convolutions = products, convolutions

    def holds(self):
        """Whether torch is set to it already."""
        return (
            torch._C._get_float32_matmul_precision() == self.products
            and torch._C._get_cudnn_allow_tf32() is self.convolutions
        )

    def put(self):
        torch.set_float32_matmul_precision(self.products)
        torch.backends.cudnn.allow_tf32 = self.convolutions

    @contextlib.contextmanager
    def at_work(self):
        """Inside, torch is set to it."""
        before = _kw_Precision(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
        with contextlib.ExitStack() as after:
            after.callback(before.put)
            self.put()
            yield


# The programs of a file for a GPU become a library, by nvcc, for the GPU that is there.

def _kw_library_for_gpu(stem, programs, headers):
    """The compiled programs, from the folder where they are kept or from nvcc; None without a GPU.

    Hopper's instructions are those of this architecture alone, and have a letter to their number.
    """
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    number = f"{major}{minor}" + ("a" if major == 9 else "")
    gpu = f"-gencode=arch=compute_{number},code=sm_{number}"
    flags = dict(
        extra_cflags=["-std=c++17", "-O1"],
        extra_cuda_cflags=["-std=c++17", "-O3", gpu],
        is_python_module=False,  # plain C functions: no binding to compile
    )
    units = _kw_separate(programs, headers)
    return _kw_built(stem, "cu", units, flags, [str(torch.version.cuda), _kw_identity("nvcc")])


# The programs of a file become a library: compiled once for each machine, and kept.
#
# In: the texts in C++. Out: a library that ctypes has opened. A build is kept in a folder that is
# named by all that it depends on (texts, flags, compiler, torch, instruction set), so that it is
# never taken for another; it is there whole or not at all, whoever builds beside us or is killed.

_KW_TOGETHER = 4  # what a unit should cost at least: its own parsing is not free
# What changes a build without being an argument of it.
_KW_NAMED = ("CXX", "CC", "CUDA_HOME", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH")


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
# for cuda. Identical to the package; `kernelwright check` on this file proves it.
# sha256 bfeb77782938c0f381f463283aba3e5d20b924ae48314e07aec1a9deb633ed3f
# --------------------------------------------------------------------------------------------------


_KW_HEADERS = r"""
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>
#include <initializer_list>
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

#define KW_FN __host__ __device__ __forceinline__

namespace kw {

namespace detail {

inline constexpr float kInf = __builtin_huge_valf();

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

// The selects below compare bits as integers where they can: GCC turns the inverse of a float
// comparison, which must hold for NaN, into up to six instructions on AArch64.

KW_FN bool sign_bit(float x) {
  return static_cast<int32_t>(to_bits(x)) < 0;
}

KW_FN float keep_nan(float x, float value) {
  return x == x ? value : x;
}

// x = 2^e m with m in [2/3, 4/3), x positive, finite and normal.
struct Split {
  int32_t e;
  float m;
};

KW_FN Split split(float x) {
  constexpr uint32_t kTwoThirds = 0x3f2aaaab;
  const uint32_t above = to_bits(x) - kTwoThirds;
  return {static_cast<int32_t>(above) >> 23, from_bits((above & 0x007fffff) + kTwoThirds)};
}

}  // namespace detail

// Arithmetic and rounding.

KW_FN float square(float x) { return x * x; }

KW_FN float rsqrt(float x) {
#ifdef __CUDA_ARCH__
  return ::rsqrtf(x);
#else
  return 1.0f / ::sqrtf(x);
#endif
}

// Comparison and choice.

// fmaxf drops a NaN, so it is brought back: by PTX in the instruction; on AArch64 by a select,
// since fmaxf is one instruction; elsewhere by the comparison, of which x86 makes one for a
// constant b.
KW_FN float maximum(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#elif defined(__aarch64__)
  return detail::keep_nan(b, detail::keep_nan(a, ::fmaxf(a, b)));
#else
  return a < b || b != b ? b : a;
#endif
}

KW_FN float minimum(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#elif defined(__aarch64__)
  return detail::keep_nan(b, detail::keep_nan(a, ::fminf(a, b)));
#else
  return a > b || b != b ? b : a;
#endif
}

// Activations.

KW_FN float leaky_relu(float x, float slope) { return detail::sign_bit(x) ? x * slope : x; }

}  // namespace kw

// ---- storage.cuh --------------------------------------------------------------------------------
// How elements lie in memory and in registers: lane vectors, loads and stores.
//
// Arithmetic is float32 everywhere; narrower types (half.cuh) exist in memory alone. A program
// works on V lanes at a time, neighbours along the axis that is contiguous in memory. On the device
// a unit-stride load is one vector instruction; on the host it is a view that the compiler
// vectorises through.

// Before a loop over lanes: unrolled on the device, vectorised on the host.
#if defined(__CUDA_ARCH__)
#define KW_LANES _Pragma("unroll")
#else
#define KW_LANES
#endif

// At a pointer to results: nothing else points there. GCC believes it of what a function is given.
// Without it one vector's chain of operations ends with its store before the next one's begins (a
// GELU takes 4.2 ms, with it 3.5: 2.5 M numbers, two cores of a Neoverse N1). On the device
// read_only says so of what is read.
#define KW_RESTRICT

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

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T items[V];
};

// No kernel writes what it reads, but for load_before. Told so, the compiler loads ahead of earlier
// stores.
template <class P>
KW_FN P read_only(const P* at) {
#ifdef __CUDA_ARCH__
  P pack;
  if constexpr (sizeof(P) == 16) {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(at));
    __builtin_memcpy(&pack, &bits, sizeof bits);
  } else if constexpr (sizeof(P) == 8) {
    const uint2 bits = __ldg(reinterpret_cast<const uint2*>(at));
    __builtin_memcpy(&pack, &bits, sizeof bits);
  } else if constexpr (sizeof(P) == 4) {
    const unsigned bits = __ldg(reinterpret_cast<const unsigned*>(at));
    __builtin_memcpy(&pack, &bits, sizeof bits);
  } else {
    pack = *at;
  }
  return pack;
#else
  return *at;
#endif
}

template <int V, class T>
KW_FN Vec<V> load_row(const T* at) {
  const Pack<T, V> pack = read_only(reinterpret_cast<const Pack<T, V>*>(at));
  Vec<V> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out.lanes[v] = to_float(pack.items[v]);
  return out;
}

// As load_row, for data that nobody reads again: it does not displace parameters from the L1 cache.
template <int V, class T>
KW_FN Vec<V> load_once(const T* at) {
#ifdef __CUDA_ARCH__
  constexpr int kBytes = sizeof(T) * V;
  Pack<T, V> pack;
  if constexpr (kBytes == 16) {
    uint32_t w[4];
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(at));
    __builtin_memcpy(&pack, w, sizeof w);
  } else {
    pack = *reinterpret_cast<const Pack<T, V>*>(at);
  }
  Vec<V> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out.lanes[v] = to_float(pack.items[v]);
  return out;
#else
  return load_row<V>(at);
#endif
}

// One instruction: the compiler takes an assignment apart where it does not see the alignment.
template <class P>
KW_FN void write_pack(P* at, const P& pack) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(P) == 16) {
    uint4 bits;
    __builtin_memcpy(&bits, &pack, sizeof bits);
    __stwb(reinterpret_cast<uint4*>(at), bits);
  } else if constexpr (sizeof(P) == 8) {
    uint2 bits;
    __builtin_memcpy(&bits, &pack, sizeof bits);
    __stwb(reinterpret_cast<uint2*>(at), bits);
  } else {
    *at = pack;
  }
#else
  *at = pack;
#endif
}

// Lanes on their way to memory: one vector store when they are complete.
template <int V, class T>
struct RowOut {
  T* at;
  Vec<V> lanes;
  KW_FN float& operator[](int v) { return lanes[v]; }
  KW_FN void commit() const {
    Pack<T, V> pack;
    KW_LANES
    for (int v = 0; v < V; ++v) pack.items[v] = from_float<T>(lanes.lanes[v]);
    write_pack(reinterpret_cast<Pack<T, V>*>(at), pack);
  }
};

template <int V, class T>
KW_FN RowOut<V, T> store_row(T* at) {
  return {at, {}};
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

template <class T, int V>
KW_FN Vec<V, T> as_totals(const Vec<V>& x) {
  Vec<V, T> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out[v] = x[v];
  return out;
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

// Numbers folded to one, and that as a total. As many as a power of two, and equal, are summed
// exactly as floats; if only `some` count (the others are identities), doubles are.
template <Combine C, class T, int V>
KW_FN T fold_to_total(const Vec<V>& x, bool some = false) {
  if (sizeof(T) > sizeof(float) && some) return combine_lanes<C>(as_totals<T>(x));
  return combine_lanes<C>(x);
}

}  // namespace kw

// ---- reduce.cuh ---------------------------------------------------------------------------------
// Reductions across the threads of a warp, of a block, and of the blocks that share a row. The
// order is fixed, so results repeat bit for bit.

namespace kw {

// Combine over Width threads: neighbours in a warp, or the whole block. Everyone gets the result.
template <Combine C, int Width, class T>
__device__ __forceinline__ T reduce_threads(T x) {
  constexpr int kInWarp = Width < 32 ? Width : 32;
  KW_LANES
  for (int offset = kInWarp / 2; offset > 0; offset /= 2) {
    x = combine<C>(x, __shfl_xor_sync(0xffffffff, x, offset));
  }
  if constexpr (Width > 32) {
    __shared__ T partial[32];
    const int warp = threadIdx.x / 32;
    __syncthreads();  // the previous reduction may still be read
    if (threadIdx.x % 32 == 0) partial[warp] = x;
    __syncthreads();
    if constexpr (sizeof(T) > sizeof(float)) {
      x = partial[threadIdx.x % (Width / 32)];  // one by one, doubles take too long
      KW_LANES
      for (int offset = Width / 64; offset > 0; offset /= 2) {
        x = combine<C>(x, __shfl_xor_sync(0xffffffff, x, offset));
      }
    } else {
      x = partial[0];
      for (int w = 1; w < Width / 32; ++w) x = combine<C>(x, partial[w]);
    }
  }
  return x;
}

}  // namespace kw

// ---- epilogue.cuh -------------------------------------------------------------------------------
// A row program on a tile of accumulators, while they are still in registers.
//
// In the layout of Hopper's matrix products four neighbouring lanes (a quad) share a row, and each
// holds two of every eight columns, or, with interleaved columns (split.cuh), four of every
// sixteen. So a segment whose length is a multiple of eight or sixteen lies in one quad: its
// reductions are register sums and two shuffles. Stages over the whole row are combined over the
// tile's columns alone and stored as partial results, one per row and tile; a small second kernel
// finishes them. A program that works on single elements, in rows that no vector divides, goes
// through shared memory instead: a lane has one column, and a warp stores 32 of a row at once.
// Besides what program.cuh says, the program provides
//   P::kColumns                                   columns of the whole product
//   P::touch(a, column)                           brings operands that have a value for each column
//                                                 into the cache while the product is running
//   P::begin(fields, product)                     takes the product's lanes in place of a load
//   P::kByTile                                    whether stages over the whole row go on with what
//                                                 they gave for this tile; tiles fill the row then
//   P::store_partial(Stage<I>, total, a, {row, tile})   for each stage over the whole row

namespace kw {

// Reads an element for the sake of its cache line.
template <class T>
KW_FN void touch(const T* at) {
#ifdef __CUDA_ARCH__
  unsigned unused;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(unused) : "l"(at));
#else
  (void)at;
#endif
}

// The column, counted from the tile's first one, of an accumulator in this lane of the quad. With
// four neighbours to a thread the columns are interleaved (split::interleaved).
template <class C>
__host__ __device__ constexpr int column_of(int index, int quad) {
  const int eight = index / 4;
  const int at = index % 2;
  return C::kVec == 4 ? eight / 2 * 16 + quad * 4 + eight % 2 * 2 + at : eight * 8 + quad * 2 + at;
}

// A warp's room to turn sixteen rows of 32 columns around.
struct Turned {
  static constexpr int kColumns = 32;
  float at[16][kColumns + 1];
};

template <class P, class C>
struct Epilogue {
  // Whether columns go to lanes.
  static constexpr bool kTurns = C::kVec == 1 && P::kStages == 0 && !P::kStoresSegments;
  static constexpr int V = C::kVec;
  static constexpr int kSpan = V == 4 ? 16 : 8;  // columns of a quad's neighbouring accumulators
  static constexpr bool kWholeSegments = P::kSegment != 0 || P::kByTile;
  static constexpr int kSegment = P::kByTile ? C::kBlockN : P::kSegment ? P::kSegment : kSpan;
  static constexpr int kSegments = C::kBlockN / kSegment;
  static constexpr int kChunks = kSegment / (4 * V);
  static constexpr int kTotals = P::kStages ? P::kStages : 1;
  static_assert(C::kBlockN % kSegment == 0 && kSegment % kSpan == 0, "segments must fit the tile");
  static_assert(!kWholeSegments || P::kColumns % kSegment == 0, "segments must fill the row");

  const typename P::Args& a;
  int64_t row;   // that of this quad
  int64_t rows;  // of the whole product
  int first;     // the tile's first column
  int quad = static_cast<int>(threadIdx.x % 4);

  // Where lane `v` of a chunk is among the first row's accumulators.
  __host__ __device__ static constexpr int accumulator(int chunk, int v) {
    const int n = chunk * V + v;
    return n / 2 * 4 + n % 2;
  }

  __device__ __forceinline__ static int column(int start, int chunk, int quad) {
    return start + column_of<C>(accumulator(chunk, 0), quad);
  }

  // Without segments the last columns of a row may end inside of a tile's eight.
  template <bool kWhole>
  __device__ __forceinline__ bool inside(int start, int chunk) const {
    return kWhole || kWholeSegments || column(start, chunk, quad) + V <= P::kColumns;
  }

  // The thread's two rows, `row` and eight further down, go through a segment together: what they
  // read is the same, and one row's arithmetic hides the other one's latency.
  struct Segment {
    typename P::template Fields<V> f[2][kChunks];
    typename P::template Scalars<1> s[2];
  };

  template <bool kWhole, int I>
  __device__ __forceinline__ void stages(Segment& segment, float (&totals)[2][kTotals],
                                         const int64_t (&at_row)[2], int start) {
    if constexpr (I < P::kStages) {
      constexpr Combine kOp = P::kCombine[I];
      constexpr bool kFinished = P::kOverSegment[I] || P::kByTile;
      float total[2];
      KW_LANES
      for (int i = 0; i < 2; ++i) total[i] = kFinished ? identity<kOp>() : totals[i][I];
      KW_LANES
      for (int c = 0; c < kChunks; ++c) {
        if (!inside<kWhole>(start, c)) continue;
        KW_LANES
        for (int i = 0; i < 2; ++i) {
          const Cursor at{at_row[i], column(start, c, quad)};
          const Vec<V> x = P::contribution(Stage<I>{}, segment.f[i][c], segment.s[i], a, at);
          total[i] = combine<kOp>(total[i], combine_lanes<kOp>(x));
        }
      }
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        if constexpr (kFinished) {
          total[i] = reduce_threads<kOp, 4>(total[i]);
          P::finish(Stage<I>{}, segment.s[i], Vec<1>{{total[i]}}, a);
        }
        totals[i][I] = total[i];
      }
      stages<kWhole, I + 1>(segment, totals, at_row, start);
    }
  }

  template <int I>
  __device__ __forceinline__ void partials(const float (&totals)[kTotals], bool live,
                                           int64_t at_row) {
    if constexpr (I < P::kStages) {
      if constexpr (!P::kOverSegment[I]) {
        const float total = P::kByTile ? totals[I] : reduce_threads<P::kCombine[I], 4>(totals[I]);
        if (live && quad == 0) {
          P::store_partial(Stage<I>{}, total, a, Cursor{at_row, first / C::kBlockN});
        }
      }
      partials<I + 1>(totals, live, at_row);
    }
  }

  template <int I>
  __device__ __forceinline__ static void begin_totals(float (&totals)[kTotals]) {
    if constexpr (I < P::kStages) {
      totals[I] = identity<P::kCombine[I]>();
      begin_totals<I + 1>(totals);
    }
  }

  // Each lane's accumulators of 32 columns become one column of sixteen rows.
  template <int kCount>
  __device__ __forceinline__ void turn(const float (&d)[kCount], Turned& room) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t warp_row = row - lane / 4;
    const int height = static_cast<int>(rows - warp_row < 16 ? rows - warp_row : 16);
#pragma unroll
    for (int part = 0; part < kCount / 16; ++part) {
      const int column = first + part * Turned::kColumns + lane;
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        room.at[lane / 4 + 8 * (k / 2 % 2)][column_of<C>(k, quad)] = d[part * 16 + k];
      }
      __syncwarp();
      if (column >= P::kColumns) continue;
#pragma unroll 8
      for (int r = 0; r < height; ++r) {
        typename P::template Fields<1> f;
        typename P::template Scalars<1> s;
        P::begin(f, Vec<1>{{room.at[r][lane]}});
        P::store_elements(f, s, a, Cursor{warp_row + r, column});
      }
    }
  }

  // Nearly all tiles are whole, and then nothing stands between their segments: the compiler weaves
  // them into each other. A branch for every store would make them wait for one another.
  template <int kCount>
  __device__ __forceinline__ void run(const float (&d)[kCount]) {
    const int64_t warp_row = row - threadIdx.x % 32 / 4;
    if (warp_row + 16 <= rows && first + C::kBlockN <= P::kColumns) {
      run_tile<true>(d);
    } else {
      run_tile<false>(d);
    }
  }

  template <bool kWhole, int kCount>
  __device__ __forceinline__ void run_tile(const float (&d)[kCount]) {
    const bool live[2] = {kWhole || row < rows, kWhole || row + 8 < rows};
    // Quads without a row repeat one and store nothing: everyone takes part in the shuffles.
    const int64_t at_row[2] = {live[0] ? row : rows - 1, live[1] ? row + 8 : rows - 1};
    float totals[2][kTotals];
    begin_totals<0>(totals[0]);
    begin_totals<0>(totals[1]);
    KW_LANES
    for (int q = 0; q < kSegments; ++q) {
      const int start = first + q * kSegment;
      if (!kWhole && start >= P::kColumns) continue;
      Segment segment;
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        KW_LANES
        for (int c = 0; c < kChunks; ++c) {
          Vec<V> product;
          KW_LANES
          for (int v = 0; v < V; ++v) {
            product.lanes[v] = d[accumulator(q * kChunks + c, v) + 2 * i];
          }
          P::begin(segment.f[i][c], product);
        }
      }
      stages<kWhole, 0>(segment, totals, at_row, start);
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        if (live[i]) store<kWhole>(segment, at_row[i], start, i);
      }
    }
    partials<0>(totals[0], live[0], at_row[0]);
    partials<0>(totals[1], live[1], at_row[1]);
  }

  template <bool kWhole>
  __device__ __forceinline__ void store(Segment& segment, int64_t at_row, int start, int i) {
    if constexpr (P::kStoresElements) {
      KW_LANES
      for (int c = 0; c < kChunks; ++c) {
        if (!inside<kWhole>(start, c)) continue;
        P::store_elements(segment.f[i][c], segment.s[i], a, Cursor{at_row, column(start, c, quad)});
      }
    }
    if constexpr (P::kStoresSegments) {
      if (quad == 0) P::store_segment(segment.s[i], a, Cursor{at_row, start});
    }
  }
};

}  // namespace kw

// ---- hopper.cuh ---------------------------------------------------------------------------------
// Hopper's own instructions under names: barriers in shared memory that count bytes, bulk tensor
// copies into one or more blocks of a cluster, and matrix products of a warpgroup (four warps).

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KW_HOPPER 1
#endif

namespace kw::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// ---- mbarriers: a phase ends when all arrivals and all announced bytes have come ---------------

struct Barrier {
  uint64_t state;
};

__device__ __forceinline__ void init(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive_expecting(Barrier& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

// Arrives at the barrier in the same place of another block of the cluster. Scope `cluster` would
// put a full memory fence in front, and nothing that was written here is handed over.
__device__ __forceinline__ void arrive_at(Barrier& barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(block)
      : "memory");
}

__device__ __forceinline__ void wait(Barrier& barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(phase)
      : "memory");
}

// ---- the block's named barriers: kThreads threads wait, or announce that they were there --------

template <int kThreads>
__device__ __forceinline__ void sync_threads(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

template <int kThreads>
__device__ __forceinline__ void arrive_threads(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// ---- clusters ----------------------------------------------------------------------------------

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// The compiler may not merge two of these, and so keeps nothing that follows from them alive from
// one part of a kernel to the next. (%laneid takes longer to read: 1 to 3% of a convolution whose
// epilogue stores every place.)
__device__ __forceinline__ int lane() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return static_cast<int>(thread % 32);
}

__device__ __forceinline__ int block_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return static_cast<int>(index);
}

__device__ __forceinline__ int block_count() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(count));
  return static_cast<int>(count);
}

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}

// A word of shared memory in another block of the cluster, at the place of this one here.
__device__ __forceinline__ uint32_t read_from(const uint32_t& word, int block) {
  uint32_t x;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.u32 %0, [remote];\n"
      "}\n"
      : "=r"(x)
      : "r"(shared_address(&word)), "r"(block)
      : "memory");
  return x;
}

// ---- bulk tensor copies ------------------------------------------------------------------------

using EncodeMap = decltype(&cuTensorMapEncodeTiled);

// Makes a tensor map; a function of the driver, which is asked for it.
inline EncodeMap encode_map() {
  static const EncodeMap found = [] {
    void* at = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<EncodeMap>(at);
  }();
  return found;
}

// What the L2 cache is told of a copy: that the data may go first when room is needed, or nothing.
__device__ __forceinline__ uint64_t cache_policy(bool goes_first) {
  uint64_t policy;
  if (goes_first) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  }
  return policy;
}

// Where a box starts in a tensor of four axes, the innermost first.
struct Box {
  int at[4];
};

// A box of a tensor into shared memory, here or in every block of the cluster; the barrier in the
// same place of each of them counts the bytes.
template <int kCluster>
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, Barrier& barrier,
                                         const Box& box, uint64_t policy) {
  const auto& at = box.at;
  if constexpr (kCluster == 1) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(&barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(
            shared_address(to)),
        "l"(map), "r"(shared_address(&barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "h"(static_cast<uint16_t>((1 << kCluster) - 1)), "l"(policy)
        : "memory");
  }
}

// Brings a run of bytes, a multiple of 16, into the L2 cache.
__device__ __forceinline__ void prefetch_bytes(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Orders ordinary writes to global memory before reads of them by the copy engine, and back.
__device__ __forceinline__ void fence_copy_engine() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- registers ---------------------------------------------------------------------------------

template <int kCount>
__device__ __forceinline__ void give_registers() {
#ifdef KW_HOPPER
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

template <int kCount>
__device__ __forceinline__ void take_registers() {
#ifdef KW_HOPPER
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// ---- matrix products ---------------------------------------------------------------------------

// Which elements of a matrix are neighbours in memory: those along the depth of a product, or those
// along the rows (of the right operand: the columns of the product).
enum class Major { kDepth, kRow };

// Boxes of 64 x 64 elements of two bytes in shared memory, one after the other along the rows, as
// the copy engine swizzles them: lines of 128 bytes in groups of eight. kDepth: a line is a row,
// and the groups follow one another through all boxes. kRow: a line is 64 rows at one depth; the
// groups of a box are further depths, and the next rows are a box further on.
template <Major kMajor>
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 / 16} << 32;
  constexpr uint64_t kBoxStride = uint64_t{kMajor == Major::kDepth ? 1 : 8192 / 16} << 16;
  return kSwizzle128 | kGroupStride | kBoxStride | (shared_address(tile) & 0x3ffff) >> 4;
}

// How far the next depth step of 16 elements is, in a descriptor.
template <Major kMajor>
inline constexpr uint64_t kDepthStep = (kMajor == Major::kDepth ? 32 : 2048) / 16;

__device__ __forceinline__ void begin_products() {
#ifdef KW_HOPPER
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void commit_products() {
#ifdef KW_HOPPER
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wait_products() {
#ifdef KW_HOPPER
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// The compiler does not know that a product is still writing its accumulators: nothing may move
// across this.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

enum class Element { kFloat16, kBfloat16 };

// d += a * b over one depth step of 16 elements, 64 rows of a times kColumns rows of b; `add` 0
// starts from zero. Thread t of the warpgroup holds, in d[4 * j + 2 * i + c], row
// 16 * (t / 32) + t % 32 / 4 + 8 * i and column 8 * j + 2 * (t % 4) + c.
template <Element kElement, int kColumns, Major kLeft, Major kRight>
struct Product;

#define KW_FIVE(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, "
#define KW_TEN(t) KW_FIVE(t) "%" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define KW_TO_30 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " KW_TEN(1) KW_TEN(2)
#define KW_TO_60 KW_TO_30 KW_TEN(3) KW_TEN(4) KW_TEN(5)
#define KW_TO_90 KW_TO_60 KW_TEN(6) KW_TEN(7) KW_TEN(8)
#define KW_TO_120 KW_TO_90 KW_TEN(9) KW_TEN(10) KW_TEN(11)
#define KW_IN_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KW_IN_8(i) KW_IN_4(i), KW_IN_4(i + 4)
#define KW_IN_32(i) KW_IN_8(i), KW_IN_8(i + 8), KW_IN_8(i + 16), KW_IN_8(i + 24)

#define KW_PRODUCT(element, columns, types, outputs, a_at, b_at, add_at, left_at, right_at, ...) \
  template <Major kLeft, Major kRight>                                                           \
  struct Product<Element::element, columns, kLeft, kRight> {                                     \
    static __device__ __forceinline__ void run(float (&d)[columns / 2], uint64_t a, uint64_t b,  \
                                               int add) {                                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at                                    \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" outputs    \
                   "}, " a_at ", " b_at ", p, 1, 1, " left_at ", " right_at ";\n}\n"             \
                   : __VA_ARGS__                                                                 \
                   : "l"(a), "l"(b), "r"(add), "n"(int{kLeft == Major::kRow}),                   \
                     "n"(int{kRight == Major::kRow}));                                           \
    }                                                                                            \
  };

#ifdef KW_HOPPER
#define KW_PRODUCTS(element, types)                                                             \
  KW_PRODUCT(element, 64, types, KW_TO_30 "%30, %31", "%32", "%33", "%34", "%35", "%36",        \
             KW_IN_32(0))                                                                       \
  KW_PRODUCT(element, 128, types, KW_TO_60 "%60, %61, %62, %63", "%64", "%65", "%66", "%67",    \
             "%68", KW_IN_32(0), KW_IN_32(32))                                                  \
  KW_PRODUCT(element, 192, types, KW_TO_90 "%90, %91, %92, %93, %94, %95", "%96", "%97", "%98", \
             "%99", "%100", KW_IN_32(0), KW_IN_32(32), KW_IN_32(64))                            \
  KW_PRODUCT(element, 256, types, KW_TO_120 "%120, %121, %122, %123, %124, %125, %126, %127",   \
             "%128", "%129", "%130", "%131", "%132", KW_IN_32(0), KW_IN_32(32), KW_IN_32(64),   \
             KW_IN_32(96))

KW_PRODUCTS(kFloat16, "f16.f16")
KW_PRODUCTS(kBfloat16, "bf16.bf16")
#endif

// The same with the 64 rows of a in registers, float16: a[2 * h + i] are the thread's two
// neighbours of depth, from 8 * h + 2 * (t % 4) on, in the row that d has at i. They must stay as
// they are until the product is done.
template <int kColumns>
struct RegisterProduct;

#define KW_REGISTER_PRODUCT(columns, shape, outputs, a_at, b_at, add_at, ...)                    \
  template <>                                                                                    \
  struct RegisterProduct<columns> {                                                              \
    static __device__ __forceinline__ void run(float (&d)[columns / 2], const uint32_t (&a)[4],  \
                                               uint64_t b, int add) {                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at                                    \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned." shape "k16.f32.f16.f16 {" outputs "}, {" a_at \
                   "}, " b_at ", p, 1, 1, 0;\n}\n"                                               \
                   : __VA_ARGS__                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }                                                                                            \
  };

#ifdef KW_HOPPER
KW_REGISTER_PRODUCT(64, "m64n64", KW_TO_30 "%30, %31", "%32, %33, %34, %35", "%36", "%37",
                    KW_IN_32(0))
KW_REGISTER_PRODUCT(128, "m64n128", KW_TO_60 "%60, %61, %62, %63", "%64, %65, %66, %67", "%68",
                    "%69", KW_IN_32(0), KW_IN_32(32))
#endif

}  // namespace kw::hopper

// ---- half.cuh -----------------------------------------------------------------------------------
// float16 and bfloat16 in memory: conversions to and from float32, rounding to nearest even.

namespace kw {

struct half_t {
  uint16_t bits;
};

KW_FN float to_float(half_t x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  // Exponent and mantissa as float bits, rescaled by 2^112: exact for subnormals too.
  const uint32_t magnitude = (uint32_t{x.bits} & 0x7fff) << 13;
  const float scaled = detail::from_bits(magnitude) * 0x1p112f;
  const bool special = magnitude >= 0x7c00u << 13;
  const uint32_t bits = special ? magnitude | 0x7f800000 : detail::to_bits(scaled);
  return detail::from_bits(bits | (uint32_t{x.bits} & 0x8000) << 16);
#endif
}

template <>
KW_FN half_t from_float<half_t>(float x) {
#ifdef __CUDA_ARCH__
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  const uint32_t sign_part = detail::to_bits(x) >> 16 & 0x8000;
  const float magnitude = ::fabsf(x);
  // Adding a power of two whose last bit is half's last bit rounds to nearest even in one step.
  const uint32_t exponent = detail::to_bits(magnitude) & 0x7f800000;
  const uint32_t smallest = 113u << 23;  // half's smallest normal exponent
  const float magic = detail::from_bits((exponent > smallest ? exponent : smallest) + (13u << 23));
  const float rounded = (magnitude + magic) - magic;
  const bool subnormal = rounded < 0x1p-14f;
  const uint32_t normal_bits = (detail::to_bits(rounded) - (112u << 23)) >> 13;
  const uint32_t small_bits = static_cast<uint32_t>(static_cast<int32_t>(rounded * 0x1p24f));
  uint32_t bits = subnormal ? small_bits : normal_bits;
  bits = magnitude >= 65520.0f ? 0x7c00 : bits;
  bits = x == x ? bits : 0x7e00;
  return {static_cast<uint16_t>(sign_part | bits)};
#endif
}

}  // namespace kw

// ---- launch.cuh ---------------------------------------------------------------------------------
// What every kernel needs around its launch: the right device, and its turn.

namespace kw {

// Makes a device current for one launch.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    cudaGetDevice(&previous_);
    if (previous_ != device_) cudaSetDevice(device_);
  }
  ~DeviceGuard() {
    if (previous_ != device_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int previous_ = 0;
};

// The last few values that were made from a key; a thread has its own. A value is found by all that
// it was made from, so it cannot be out of date.
template <class Key, class Value, int kMost = 32>
class Recent {
 public:
  // The value of a key, made if it is not there; false if it cannot be made.
  template <class Make>
  bool find(const Key& key, Value& value, const Make& make) {
    for (int i = 0; i < count_; ++i) {
      if (keys_[i] == key) {
        value = values_[i];
        return true;
      }
    }
    if (!make(key, value)) return false;
    keys_[next_] = key;
    values_[next_] = value;
    next_ = (next_ + 1) % kMost;
    count_ = count_ < kMost ? count_ + 1 : kMost;
    return true;
  }

 private:
  Key keys_[kMost] = {};
  Value values_[kMost] = {};
  int count_ = 0;
  int next_ = 0;
};

// Lets a kernel have so much shared memory; a thread asks for it once for each kernel and device.
inline cudaError_t allow_shared(const void* kernel, int bytes) {
  struct Key {
    const void* kernel;
    int device;
    bool operator==(const Key& other) const {
      return kernel == other.kernel && device == other.device;
    }
  };
  thread_local Recent<Key, cudaError_t> asked;
  Key key{kernel, 0};
  cudaGetDevice(&key.device);
  cudaError_t error = cudaSuccess;
  asked.find(key, error, [&](const Key&, cudaError_t& found) {
    found = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return found == cudaSuccess;
  });
  return error;
}

// On Hopper a kernel's blocks may take their places while the last ones of the kernel before are
// still at work, which hides the time of the launch. So every kernel calls this before it touches
// memory: it returns when the kernel before is done, and lets the one after come in.
__device__ __forceinline__ void await_turn() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// For a kernel that needs nothing of the one before it, and writes nothing that it reads: it lets
// the next one come in at once and awaits its turn only in the end, so that whoever waits for it
// has waited for both. What came before the two is done when it begins: the one before has called
// await_turn.
__device__ __forceinline__ void let_in() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

struct Grid {
  unsigned blocks;
  int threads;
  cudaStream_t stream;
  int shared_bytes = 0;
  unsigned cluster = 1;
};

template <class... Parameters, class... Given>
cudaError_t launch(void (*kernel)(Parameters...), const Grid& grid, const Given&... given) {
  static const int major = [] {  // of the device that the kernels were compiled for
    int device = 0;
    int found = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&found, cudaDevAttrComputeCapabilityMajor, device);
    return found;
  }();
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {grid.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.blocks);
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = grid.stream;
  config.attrs = attributes;
  config.numAttrs = major < 9 ? 0 : grid.cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, given...);
}

}  // namespace kw

// ---- split.cuh ----------------------------------------------------------------------------------
// float32 rows as float16 numbers that the tensor cores multiply.
//
// A row is scaled by a power of two that puts its largest magnitude into [2^14, 2^15). With two
// planes each element is hi + lo, hi = float16(x) and lo = float16(x - hi): 22 bits or more for
// elements down to 2^-17 of the largest, enough for float32 products. With one plane it is hi
// alone: the 11 bits of TF32, for elements down to 2^-28 of the largest. What smaller elements lose
// is summed up as the row's residue, so that the GEMM can bound the error that the loss makes in
// each element of its result and compute the few doubtful ones again. After a NaN, an infinity or a
// largest magnitude beyond 2^+-60 the scale is NaN: all that the row meets is computed again.
//
// Rows that lie along memory are split by teams of warps, each team a row at a time, in registers.
// Where neighbours in memory belong to different rows, a cluster of blocks takes 32 rows: each
// block brings its part of their depth into shared memory, the blocks agree on the rows' largest
// magnitudes, and each stores its part as rows.

namespace kw {

// What the result owes to a row: `scale` undoes the power of two; `doubt`, times the other row's
// scale, is the magnitude below which an element of the result is computed again.
struct alignas(8) RowScale {
  float scale;
  float doubt;
};

// The matrices of a batched product are counted along two axes.
struct Batch {
  int outer = 1;
  int inner = 1;

  __host__ __device__ int64_t count() const { return int64_t{outer} * inner; }
};

// Where the matrices of an operand lie: from `at` on, so many elements from one outer batch, inner
// batch, row and depth to the next. Along a batch axis of stride 0 they are one and the same.
struct Operand {
  const void* at;
  int64_t outer;
  int64_t inner;
  int64_t row;
  int64_t depth;

  // The matrices that differ, which are all that is split.
  __host__ __device__ Batch distinct(const Batch& all) const {
    return {outer == 0 ? 1 : all.outer, inner == 0 ? 1 : all.inner};
  }

  // Which of them is multiplied in this batch.
  __device__ __forceinline__ int64_t index(const Batch& all, int outer_at, int inner_at) const {
    return int64_t{outer == 0 ? 0 : outer_at} * (inner == 0 ? 1 : all.inner) +
           (inner == 0 ? 0 : inner_at);
  }

  __device__ __forceinline__ const float* floats(int outer_at, int inner_at) const {
    return static_cast<const float*>(at) + outer_at * outer + inner_at * inner;
  }

  // Whether four neighbours of a row of float32 can be read at once, as far as that is up to where
  // the rows begin.
  __host__ __device__ bool aligned() const {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && (outer | inner | row) % 4 == 0;
  }
};

namespace split {

// Scaled elements from here on lose nothing that counts: at most 2^-22 or 2^-11 of themselves.
template <int kPlanes>
inline constexpr float kSmallest = kPlanes == 2 ? 0x1p-3f : 0x1p-14f;
// How large an error may be: the residue times 2^15 (the other row's largest magnitude) against
// 2^-20 or 2^-11 of the result.
template <int kPlanes>
inline constexpr float kDoubtPerResidue = kPlanes == 2 ? 0x1p35f : 0x1p26f;

// The largest magnitude and the smallest one that is not zero, as bits: they order like the values,
// and NaN is the largest. `least` is one less than the bits, so that a zero is out of the way.
struct Extent {
  uint32_t most = 0;
  uint32_t least = 0xffffffffu;

  __device__ __forceinline__ void add(float x) {
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    most = max(most, bits);
    least = min(least, bits - 1);
  }
  __device__ __forceinline__ void add(float4 x) {
    add(x.x);
    add(x.y);
    add(x.z);
    add(x.w);
  }
};

struct Scaling {
  float up;
  float down;
  bool exact;

  __device__ __forceinline__ explicit Scaling(uint32_t most) {
    const int exponent = static_cast<int>(most >> 23) - 127;
    exact = most != 0 && (exponent > 60 || exponent < -60);
    const int shift = most == 0 || exact ? 0 : 14 - exponent;
    up = __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
    // A row of zeros has the scale zero: whatever it meets, nothing of it was lost.
    down = most == 0 ? 0.0f : __uint_as_float(static_cast<uint32_t>(127 - shift) << 23);
  }

  // Whether an element among these loses what counts.
  template <int kPlanes>
  __device__ __forceinline__ bool loses(const Extent& extent) const {
    return extent.least < __float_as_uint(kSmallest<kPlanes> * down) - 1;
  }

  template <int kPlanes>
  __device__ __forceinline__ RowScale scale(float residue) const {
    if (exact) return {__builtin_nanf(""), 0.0f};
    return {down, residue * down * kDoubtPerResidue<kPlanes>};
  }
};

// Two neighbours in packed planes, and what is left of them.
template <int kPlanes>
__device__ __forceinline__ float2 split_pair(float2 x, uint32_t (&planes)[kPlanes]) {
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(planes[p]) : "f"(x.y), "f"(x.x));
    x.x -= to_float(half_t{static_cast<uint16_t>(planes[p])});
    x.y -= to_float(half_t{static_cast<uint16_t>(planes[p] >> 16)});
  }
  return x;
}

template <int kPlanes>
__device__ __forceinline__ float lost(float2 x) {
  uint32_t planes[kPlanes];
  const float2 rest = split_pair<kPlanes>(x, planes);
  const float first = fabsf(x.x) < kSmallest<kPlanes> ? fabsf(rest.x) : 0.0f;
  return first + (fabsf(x.y) < kSmallest<kPlanes> ? fabsf(rest.y) : 0.0f);
}

template <int kPlanes>
__device__ __forceinline__ float lost(float4 x, float up) {
  return lost<kPlanes>(float2{x.x * up, x.y * up}) + lost<kPlanes>(float2{x.z * up, x.w * up});
}

__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
  return __reduce_max_sync(0xffffffff, x);
}

// How the planes lie in memory: in panels of 64 rows, a panel in steps of 64 of depth, a step in
// planes. So all that the product fetches of 64 rows for one stage is one run of memory, and the
// next stage's follows it.
inline constexpr int kPanel = 64;

__host__ __device__ constexpr int64_t whole_panels(int64_t count) {
  return (count + kPanel - 1) / kPanel * kPanel;
}

// Room for a matrix, in float16 numbers.
__host__ __device__ constexpr int64_t room(int64_t rows, int64_t depth, int planes) {
  return whole_panels(rows) * whole_panels(depth) * planes;
}

// Where the first plane of an element is; the next one is kPanel * kPanel further on.
template <int kPlanes>
__device__ __forceinline__ int64_t place(int64_t row, int at, int depth) {
  return row / kPanel * room(kPanel, depth, kPlanes) + row % kPanel * kPanel +
         at / kPanel * (kPlanes * kPanel * kPanel) + at % kPanel;
}

// In the layout of Hopper's products a thread has columns 0, 1 and 8, 9 of sixteen, or 2, 3 and 10,
// 11, and so on. If the rows of the right operand are stored in this order, these are four
// neighbours: loads and stores of the epilogue are twice as wide.
__host__ __device__ constexpr int64_t interleaved(int64_t row) {
  return (row & ~int64_t{15}) | (row >> 1 & 1) << 3 | (row >> 2 & 3) << 1 | (row & 1);
}

// Four neighbours of a row: vector access where the row allows it, zeros behind its end.
template <bool kVector>
__device__ __forceinline__ float4 load_four(const float* row, int at, int depth) {
  if constexpr (kVector) {
    return at < depth ? *reinterpret_cast<const float4*>(row + at) : float4{};
  } else {
    float4 x{};
    if (at < depth) x.x = row[at];
    if (at + 1 < depth) x.y = row[at + 1];
    if (at + 2 < depth) x.z = row[at + 2];
    if (at + 3 < depth) x.w = row[at + 3];
    return x;
  }
}

// Four neighbours into the planes.
template <int kPlanes>
__device__ __forceinline__ void store_four(float4 x, float up, uint16_t* to) {
  uint32_t low[kPlanes];
  uint32_t high[kPlanes];
  split_pair<kPlanes>(float2{x.x * up, x.y * up}, low);
  split_pair<kPlanes>(float2{x.z * up, x.w * up}, high);
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    *reinterpret_cast<uint2*>(to + p * (kPanel * kPanel)) = {low[p], high[p]};
  }
}

// An operand to split: matrices of `rows`, of which each fills whole panels; rows behind its end
// are zeros. `count` of the rows are split, counted with these.
struct Job {
  Operand x;
  Batch batch;
  uint16_t* halves;
  RowScale* scales;
  int64_t rows;
  int64_t count;
  bool interleave;
};

// A row of a job: of which matrix, and whether it is one or lies behind the end. Matrices follow
// one another, each in whole panels.
template <bool kBatched>
struct Row {
  int matrix = 0;
  int at;
  bool exists;

  __device__ __forceinline__ Row(const Job& job, int64_t counted) : at(static_cast<int>(counted)) {
    if constexpr (kBatched) {
      const auto whole = static_cast<unsigned>(whole_panels(job.rows));
      matrix = static_cast<int>(static_cast<unsigned>(counted) / whole);
      at -= matrix * static_cast<int>(whole);
    }
    exists = at < job.rows;
  }

  __device__ __forceinline__ const float* from(const Job& job) const {
    const int outer = kBatched ? matrix / job.batch.inner : 0;
    return job.x.floats(outer, matrix - outer * job.batch.inner) + at * job.x.row;
  }

  __device__ __forceinline__ RowScale* scale(const Job& job) const {
    return job.scales + matrix * job.rows + at;
  }
};

// Where a row's planes begin.
template <int kPlanes>
__device__ __forceinline__ uint16_t* planes_of(const Job& job, int64_t matrix, int64_t row,
                                               int depth) {
  return job.halves + matrix * room(job.rows, depth, kPlanes) +
         place<kPlanes>(job.interleave ? interleaved(row) : row, 0, depth);
}

// Who splits a row: so many threads, each with room for kKept times four elements in registers, and
// a barrier for all of them. Rows that fit are read once. A block of 512 threads is one team or
// several.
template <int kWarps>
struct Team {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kKept = 4;
  static constexpr int kTeams = 512 / kThreads;
  static __device__ __forceinline__ void sync() {
    if constexpr (kTeams == 1) {
      __syncthreads();
    } else {
      hopper::sync_threads<kThreads>(1 + static_cast<int>(threadIdx.x) / kThreads);
    }
  }
};

template <class Team>
struct Shared {
  uint32_t mosts[Team::kThreads / 32];
  float residues[Team::kThreads / 32];
};

// Splits the row at `from` into the planes at `to`; the first thread is given its scale.
template <class Team, int kPlanes, bool kVector>
__device__ __forceinline__ RowScale split_row(const float* from, uint16_t* to, bool exists,
                                              int depth, int thread, Shared<Team>& shared) {
  constexpr int kStep = Team::kThreads * 4;
  constexpr int kRest = Team::kKept * kStep;
  const int width = static_cast<int>(whole_panels(depth));
  to += place<kPlanes>(0, thread * 4, depth);
  // Whole steps of depth further on, this many times as far in the planes.
  constexpr int kApart = kPlanes * kPanel;
  static_assert(kStep % kPanel == 0, "a thread stays at its place within a step");
  if (!exists) depth = 0;
  float4 kept[Team::kKept];
  Extent extent;
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) {
    kept[c] = load_four<kVector>(from, c * kStep + thread * 4, depth);
  }
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) extent.add(kept[c]);
#pragma unroll 1
  for (int at = kRest + thread * 4; at < depth; at += kStep) {
    extent.add(load_four<kVector>(from, at, depth));
  }
  uint32_t most = warp_max(extent.most);
  if (thread % 32 == 0) shared.mosts[thread / 32] = most;
  Team::sync();
#pragma unroll
  for (int w = 0; w < Team::kThreads / 32; ++w) most = max(most, shared.mosts[w]);
  const Scaling scaling(most);
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) {
    if (c * kStep + thread * 4 < width) {
      store_four<kPlanes>(kept[c], scaling.up, to + c * kStep * kApart);
    }
  }
#pragma unroll 1
  for (int first = kRest; first + thread * 4 < width; first += kStep) {
    const float4 x = load_four<kVector>(from, first + thread * 4, depth);
    store_four<kPlanes>(x, scaling.up, to + int64_t{first} * kApart);
  }
  float residue = 0.0f;
  if (scaling.loses<kPlanes>(extent)) {
#pragma unroll 1
    for (int at = thread * 4; at < depth; at += kStep) {
      residue += lost<kPlanes>(load_four<kVector>(from, at, depth), scaling.up);
    }
  }
  residue = reduce_threads<Combine::kSum, 32>(residue);
  if (thread % 32 == 0) shared.residues[thread / 32] = residue;
  Team::sync();
  if (thread != 0) return {};
  float total = 0.0f;
  for (int w = 0; w < Team::kThreads / 32; ++w) total += shared.residues[w];
  return scaling.scale<kPlanes>(total);
}

// How far the GEMM's right operand is: word 0 counts the rows that are taken, word 1 + t those of
// column tile t, `tile_rows` each, that are ready.
struct Progress {
  unsigned* words;
  int count;
  int tile_rows;
};

// A split waits for the kernel before it, or runs beside that one if it is a split too.
__device__ __forceinline__ void begin_split(bool beside) {
  if (beside) {
    let_in();
  } else {
    await_turn();
  }
}

__device__ __forceinline__ void end_split(bool beside) {
  if (beside) await_turn();
}

// Two jobs at once: both operands, or as much of them as lies along memory.
template <class Team, int kPlanes, bool kVector, bool kBatched>
__global__ void __launch_bounds__(512, kBatched ? 2 : 3)
    split_kernel(const Job first, const Job second, int depth, const Progress progress,
                 bool beside) {
  __shared__ Shared<Team> shared[Team::kTeams];
  const int team = Team::kTeams == 1 ? 0 : static_cast<int>(threadIdx.x) / Team::kThreads;
  const int thread = static_cast<int>(threadIdx.x) - team * Team::kThreads;
  const int64_t at = int64_t{blockIdx.x} * Team::kTeams + team;
  const auto split = [&](const Job& job, int64_t counted) {
    const Row<kBatched> row(job, counted);
    const RowScale scale = split_row<Team, kPlanes, kVector>(
        row.from(job), planes_of<kPlanes>(job, row.matrix, row.at, depth), row.exists, depth,
        thread, shared[team]);
    if (thread == 0 && row.exists) *row.scale(job) = scale;
  };
  begin_split(beside);
  if (at < first.count) {
    split(first, at);
  } else if (at < first.count + second.count) {
    split(second, at - first.count);
  }
  if (at == 0) {
    for (int i = thread; i < progress.count; i += Team::kThreads) {
      const int64_t ahead = second.count - int64_t{i - 1} * progress.tile_rows;
      const int64_t most = ahead < progress.tile_rows ? ahead : progress.tile_rows;
      progress.words[i] = static_cast<unsigned>(i == 0 ? second.count : most > 0 ? most : 0);
    }
  }
  end_split(beside);
}

// Up to here rows are short, and are not counted in Progress.
inline constexpr int kLongestShort = 512;
// A row of a known depth up to here fits the registers of a warp. Where there are many, warps are
// sooner done than teams, whose members wait for one another: 6304 rows of 3072 take 44 us instead
// of 51 on an H200, but 300 of 640 take 5.9 instead of 4.9.
inline constexpr int kLongestOfWarp = 3072;
inline constexpr int kManyRows = 4096;

// Rows so short that kLanes threads hold them, each kChunks times four elements: a thread has its
// places in several neighbouring rows, which are all on their way before the first is needed.
template <int kLanes, int kChunks>
struct Short {
  static constexpr int kStep = kLanes * 4;
  static constexpr int kHeld = kChunks * kStep;
  static constexpr int kRows = kChunks > 8 ? 1 : kChunks > 2 ? 2 : 4;
  static_assert(kPanel % kRows == 0, "of one matrix");
};

template <int kLanes, int kChunks, int kPlanes, bool kVector>
__global__ void __launch_bounds__(256)
    split_short_kernel(const Job first, const Job second, int depth, bool beside) {
  using S = Short<kLanes, kChunks>;
  const int thread = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  const int begin = thread % kLanes * 4;
  const int64_t at = int64_t{thread / kLanes} * S::kRows;
  begin_split(beside);
  const bool is_first = at < first.count;
  const Job job = is_first ? first : second;
  // Behind the end as well everyone takes part in the shuffles.
  const bool counts = at < first.count + second.count;
  const Row<true> row(job, !counts ? 0 : is_first ? at : at - first.count);
  const float* const from = row.from(job);
  float4 kept[S::kRows][kChunks];
#pragma unroll
  for (int n = 0; n < S::kRows; ++n) {
    const int length = row.at + n < job.rows ? depth : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      kept[n][c] = load_four<kVector>(from + n * job.x.row, begin + c * S::kStep, length);
    }
  }
#pragma unroll
  for (int n = 0; n < S::kRows; ++n) {
    Extent extent;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) extent.add(kept[n][c]);
    uint32_t most = extent.most;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      most = max(most, __shfl_xor_sync(0xffffffff, most, offset));
    }
    const Scaling scaling(most);
    const bool loses = scaling.loses<kPlanes>(extent);
    float residue = 0.0f;
    if (__any_sync(0xffffffff, loses)) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) residue += lost<kPlanes>(kept[n][c], scaling.up);
      residue = reduce_threads<Combine::kSum, kLanes>(residue);
    }
    if (!counts) continue;
    uint16_t* const to = planes_of<kPlanes>(job, row.matrix, row.at + n, depth);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int place_at = begin + c * S::kStep;
      if (place_at < whole_panels(depth)) {
        store_four<kPlanes>(kept[n][c], scaling.up, to + place<kPlanes>(0, place_at, depth));
      }
    }
    if (begin == 0 && row.at + n < job.rows) row.scale(job)[n] = scaling.scale<kPlanes>(residue);
  }
  end_split(beside);
}

// Splits what lies along memory. Rows that fit a few lanes or warps are not worth a whole
// block. With kDepth, the depth is known, and no other kernels are compiled.
template <int kPlanes, bool kBatched, int kDepth>
struct Along {
  Job first;
  Job second;
  int depth;
  Progress progress;
  cudaStream_t stream;
  bool beside = false;  // another split, which was launched before

  template <class Team, bool kVector>
  cudaError_t teams() const {
    const auto wanted = static_cast<unsigned>(first.count + second.count);
    const unsigned grid = (wanted + Team::kTeams - 1) / Team::kTeams;
    return launch(split_kernel<Team, kPlanes, kVector, kBatched>, Grid{grid, 512, stream}, first,
                  second, depth, progress, beside);
  }

  template <int kLanes, int kChunks, bool kVector>
  cudaError_t lanes() const {
    const int64_t teams = (first.count + second.count) / Short<kLanes, kChunks>::kRows;
    const auto grid = static_cast<unsigned>((teams * kLanes + 255) / 256);
    return launch(split_short_kernel<kLanes, kChunks, kPlanes, kVector>, Grid{grid, 256, stream},
                  first, second, depth, beside);
  }

  // Whether the depth may lie in (low, high].
  static constexpr bool possible(int low, int high) {
    return kDepth == 0 || (low < kDepth && kDepth <= high);
  }

  template <bool kVector>
  cudaError_t run() const {
    constexpr int kFour = Team<4>::kThreads * 4 * Team<4>::kKept;
    if constexpr (possible(0, 64)) {
      if (depth <= 64) return lanes<16, 1, kVector>();
    }
    if constexpr (possible(64, 128)) {
      if (depth <= 128) return lanes<32, 1, kVector>();
    }
    if constexpr (possible(128, 256)) {
      if (depth <= 256) return lanes<32, 2, kVector>();
    }
    if constexpr (possible(256, kLongestShort)) {
      if (depth <= kLongestShort) return lanes<32, 4, kVector>();
    }
    if constexpr (kDepth > kLongestShort && kDepth <= kLongestOfWarp) {
      const bool many = first.count + second.count >= kManyRows;
      if (many && progress.count == 0) return lanes<32, (kDepth + 127) / 128, kVector>();
    }
    if constexpr (possible(kLongestShort, kFour)) {
      if (depth <= kFour) return teams<Team<4>, kVector>();
    }
    if constexpr (kDepth == 0 || kDepth > kFour) return teams<Team<16>, kVector>();
    return cudaErrorInvalidValue;
  }

  cudaError_t run() const {
    if (first.count + second.count == 0) return cudaSuccess;
    if constexpr (kDepth % 4 == 0) {
      const bool vector = depth % 4 == 0 && (first.count == 0 || first.x.aligned()) &&
                          (second.count == 0 || second.x.aligned());
      if (vector) return run<true>();
    }
    return run<false>();
  }
};

// ---- rows that lie across memory
// -----------------------------------------------------------------

inline constexpr int kStrip = 32;  // rows of a cluster
inline constexpr int kLap = 512;   // of the depth, what a block has in shared memory
inline constexpr int kPitch = kStrip + 1;
inline constexpr int kStripWarps = 8;
inline constexpr int kMostTogether = 8;

// What the threads of a block, and then the blocks of a cluster, tell each other about the rows.
struct StripShared {
  uint32_t mosts[kStripWarps][kStrip];
  uint32_t leasts[kStripWarps][kStrip];
  uint32_t most[kStrip];
  uint32_t least[kStrip];
  uint32_t residue[kStrip];
  Extent extent[kStrip];  // of the whole rows
};

// A block's part of the depth of one strip, from `begin` to `end`.
struct Strip {
  const float* from;  // the first row
  int64_t apart;      // from one depth to the next
  int rows;           // that exist
  int depth;
  int begin;
  int end;

  // Brings a lap into shared memory. A lane has one row throughout, and so its extent.
  __device__ __forceinline__ void load(int lap, float* tile, Extent& extent) const {
    constexpr int kAhead = 16;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int first = warp; first < kLap && lap + first < end; first += kAhead * kStripWarps) {
      float x[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int at = lap + first + n * kStripWarps;
        x[n] = lane < rows && at < depth ? from[at * apart + lane] : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        extent.add(x[n]);
        tile[(first + n * kStripWarps) * kPitch + lane] = x[n];
      }
    }
  }
};

template <int kPlanes>
__global__ void __launch_bounds__(32 * kStripWarps)
    split_across_kernel(const Job job, int depth, int together, bool beside) {
#ifdef KW_HOPPER
  extern __shared__ float tile[];
  __shared__ StripShared shared;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = hopper::cluster_rank();
  const int64_t strips = whole_panels(job.rows) / kStrip;  // of one matrix
  const int64_t at = blockIdx.x / together;
  const int64_t index = at / strips;
  const int64_t first_row = (at - index * strips) * kStrip;
  const auto outer = static_cast<int>(index / job.batch.inner);
  const int inner = static_cast<int>(index) - outer * job.batch.inner;
  const int width = static_cast<int>(whole_panels(depth));
  const int share = (width / kPanel + together - 1) / together * kPanel;
  const int64_t left = job.rows - first_row;
  const Strip strip{job.x.floats(outer, inner) + first_row,
                    job.x.depth,
                    static_cast<int>(left < kStrip ? left : kStrip),
                    depth,
                    rank * share,
                    min(width, (rank + 1) * share)};
  begin_split(beside);

  Extent own;
  int last = strip.begin;
#pragma unroll 1
  for (int lap = strip.begin; lap < strip.end; lap += kLap) {
    strip.load(lap, tile, own);
    last = lap;
  }
  shared.mosts[warp][lane] = own.most;
  shared.leasts[warp][lane] = own.least;
  __syncthreads();
  if (warp == 0) {
    for (int w = 1; w < kStripWarps; ++w) {
      own.most = max(own.most, shared.mosts[w][lane]);
      own.least = min(own.least, shared.leasts[w][lane]);
    }
    shared.most[lane] = own.most;
    shared.least[lane] = own.least;
  }
  hopper::sync_cluster();
  if (warp == 0) {
    for (int block = 0; block < together; ++block) {
      own.most = max(own.most, hopper::read_from(shared.most[lane], block));
      own.least = min(own.least, hopper::read_from(shared.least[lane], block));
    }
    shared.extent[lane] = own;
  }
  __syncthreads();

  // Sixteen lanes store 64 of the depth of a row; a warp has four rows.
  const int depth_at = lane % 16 * 4;
  int row[2];
  float up[2];
  bool loses[2];
  float residue[2] = {};
  uint16_t* to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    row[i] = warp * 4 + i * 2 + lane / 16;
    const Scaling scaling(shared.extent[row[i]].most);
    up[i] = scaling.up;
    loses[i] = scaling.loses<kPlanes>(shared.extent[row[i]]);
    to[i] = planes_of<kPlanes>(job, index, first_row + row[i], depth) + depth_at;
  }
#pragma unroll 1
  for (int lap = last; lap >= strip.begin; lap -= kLap) {
    if (lap != last) {
      Extent seen;
      __syncthreads();
      strip.load(lap, tile, seen);
      __syncthreads();
    }
#pragma unroll 2
    for (int step = 0; step < kLap && lap + step < strip.end; step += kPanel) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const x = tile + (step + depth_at) * kPitch + row[i];
        const float4 four{x[0], x[kPitch], x[2 * kPitch], x[3 * kPitch]};
        store_four<kPlanes>(four, up[i], to[i] + int64_t{lap + step} * (kPlanes * kPanel));
        if (loses[i]) residue[i] += lost<kPlanes>(four, up[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    residue[i] = reduce_threads<Combine::kSum, 16>(residue[i]);
    if (lane % 16 == 0) shared.residue[row[i]] = __float_as_uint(residue[i]);
  }
  hopper::sync_cluster();
  if (rank == 0 && warp == 0 && lane < strip.rows) {
    float total = 0.0f;
    for (int block = 0; block < together; ++block) {
      total += __uint_as_float(hopper::read_from(shared.residue[lane], block));
    }
    const Scaling scaling(shared.extent[lane].most);
    job.scales[index * job.rows + first_row + lane] = scaling.scale<kPlanes>(total);
  }
  hopper::sync_cluster();  // nobody leaves whom another one reads
  end_split(beside);
#endif
}

// All rows of the job.
template <int kPlanes>
cudaError_t run_across(const Job& job, int depth, cudaStream_t stream, bool beside = false) {
  constexpr int kBytes = kLap * kPitch * 4;
  constexpr int kEnough = 264;  // blocks, two for each multiprocessor
  const int64_t strips = job.count / kStrip;
  if (strips == 0) return cudaSuccess;
  int together = 1;
  while (together < kMostTogether && together * kPanel < depth &&
         (together * kLap < depth || strips * together < kEnough)) {
    together *= 2;
  }
  const auto kernel = split_across_kernel<kPlanes>;
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
  if (error != cudaSuccess) return error;
  const Grid grid{static_cast<unsigned>(strips * together), 32 * kStripWarps, stream, kBytes,
                  static_cast<unsigned>(together)};
  return launch(kernel, grid, job, depth, together, beside);
}

}  // namespace split

// All of an operand: a weight that is split once and kept, the rows of a thin product.
template <int kPlanes, hopper::Major kMajor, bool kInterleave, int kDepth>
cudaError_t split_all(const Operand& x, const Batch& batch, void* halves, void* scales,
                      int64_t rows, int depth, cudaStream_t stream) {
  const Batch each = x.distinct(batch);
  const split::Job all{x,
                       each,
                       static_cast<uint16_t*>(halves),
                       static_cast<RowScale*>(scales),
                       rows,
                       split::whole_panels(rows) * each.count(),
                       kInterleave};
  if constexpr (kMajor == hopper::Major::kRow) {
    return split::run_across<kPlanes>(all, depth, stream);
  } else {
    return split::Along<kPlanes, false, kDepth>{all, {}, depth, {}, stream}.run();
  }
}

}  // namespace kw

// ---- gemm_sm90.cuh ------------------------------------------------------------------------------
// left [rows, depth] times right [columns, depth] transposed, for each matrix of a batch, on
// Hopper's tensor cores, with a row program run on the accumulators (epilogue.cuh) instead of a
// plain store.
//
// One block per multiprocessor stays for the whole launch and takes tile after tile of 128 rows by
// kBlockN columns. Its first warpgroup feeds: one thread issues bulk tensor copies into a ring of
// kStages stages, each guarded by a `full` and an `empty` barrier. Two more warpgroups consume:
// each multiplies 64 rows of the tile. Blocks of a cluster work on neighbouring tiles; each fetches
// its share of what they have in common and the copy engine delivers it to all of them.
//
// The loops say what a stage holds. SplitFloat computes float32 products from pairs of float16
// (split.cuh): lo*hi + hi*lo + hi*hi. The tensor cores truncate when they accumulate, so after
// every stage the partial sums are added to float32 registers and start again from zero; the two
// warpgroups take turns, so that one multiplies while the other one adds. RoundedFloat computes
// float32 products at the precision of TF32 from single float16 numbers, twice as fast as TF32
// itself. In both, elements whose error cannot be bounded are computed again in plain float32
// arithmetic. Bfloat16 and Float16 multiply what is in memory.
//
// Operands that are split may lie in any way: split.cuh brings them into panels. The others are
// read as they lie, with either of their axes the inner one. The row of the program's cursor counts
// through all matrices of the batch.
//
// The right operand of the first two, usually a weight, is split on every call: by a kernel before
// the product. SplitFloat has time to do most of it on the way: only the first wave's rows are
// split before, the others by the three warps of the feeding warpgroup that have nothing else to
// do. Where there is nothing left to split, these warps need few registers, and each block
// multiplies two tiles at once with what is set free: it fetches a third less. Whether, and how
// many blocks run, is not decided here: GemmDecision comes with the launch.

namespace kw {

// The halves and scales are room for what split.cuh makes of the operands; the loops that multiply
// what is in memory leave them empty. Rows and columns are those of one matrix.
struct GemmOperands {
  Operand left;
  Operand right;
  void* left_halves;
  void* left_scales;
  void* right_halves;
  void* right_scales;
  unsigned* progress;
  Batch batch;
  int64_t rows;
  int columns;
  int depth;

  __host__ __device__ split::Job left_job() const {
    const Batch each = left.distinct(batch);
    return {left,
            each,
            static_cast<uint16_t*>(left_halves),
            static_cast<RowScale*>(left_scales),
            rows,
            split::whole_panels(rows) * each.count(),
            false};
  }
  template <class C>
  __host__ __device__ split::Job right_job(int64_t count) const {
    return {right,
            right.distinct(batch),
            static_cast<uint16_t*>(right_halves),
            static_cast<RowScale*>(right_scales),
            columns,
            count,
            C::kVec == 4};
  }
  // Rows of one matrix of the right operand's halves.
  __host__ __device__ int right_rows() const {
    return static_cast<int>(split::whole_panels(columns));
  }
};

// What runtime/products.py decides about a launch: how many tiles a block multiplies at once, how
// many clusters run, and how many rows of the right operand are split before they do (a frozen
// one's halves are those of an earlier call).
struct GemmDecision {
  int tiles;
  int clusters;
  int64_t early;
  bool frozen;

  // The warps that split on the way read four neighbours at a time.
  __host__ __device__ bool on_the_way(const GemmOperands& g) const {
    return !frozen && early < g.right_rows() && g.depth > split::kLongestShort &&
           g.depth % 4 == 0 && g.right.aligned();
  }
};

// What is known of the operands when a kernel is compiled.
template <bool kHasBatch, hopper::Major kOfLeft, hopper::Major kOfRight>
struct GemmLayout {
  static constexpr bool kBatched = kHasBatch;
  static constexpr hopper::Major kLeft = kOfLeft;
  static constexpr hopper::Major kRight = kOfRight;
};

using Plain = GemmLayout<false, hopper::Major::kDepth, hopper::Major::kDepth>;

template <hopper::Element kType, CUtensorMapDataType kInMemory, int kCount, bool kFromFloat>
struct GemmLoop {
  static constexpr hopper::Element kElement = kType;
  static constexpr CUtensorMapDataType kMapType = kInMemory;
  static constexpr int kBytes = 2;
  static constexpr int kPlanes = kCount;
  static constexpr bool kScaled = kFromFloat;  // the operands are float32 and are split first
  static constexpr bool kPromotes = kCount == 2;
  static constexpr bool kSplitsOnTheWay = kCount == 2;
};

using SplitFloat = GemmLoop<hopper::Element::kFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, true>;

// The three warps of the feeding warpgroup that split rows of the right operand.
struct SplittingWarps {
  static constexpr int kThreads = 96;
  static constexpr int kKept = 22;
  static __device__ __forceinline__ void sync() { hopper::sync_threads<kThreads>(3); }
};

// What they share: the row at hand, and what each warp has found in it.
struct GemmRow {
  split::Shared<SplittingWarps> split;
  unsigned row;
};

// How many tiles a block multiplies at once, and what the blocks of a cluster share. One tile: they
// lie side by side and have the same rows of the left operand. Two neighbours: they lie below one
// another and have the same two strips of the right operand, the larger part of what they fetch.
// From here on, C is one of these.
template <class Config, int kTilesAtOnce, class Layout>
struct GemmGroup : Config, Layout {
  static constexpr int kTiles = kTilesAtOnce;
  static constexpr int kDown = kTiles == 1 ? 1 : Config::kCluster;
  static constexpr int kAcross = Config::kCluster / kDown;
  // A stage of two tiles is half as large again.
  static constexpr int kStages = Config::kStages * 2 / (kTiles + 1);
  static constexpr bool kSplittable = !Layout::kBatched && Layout::kRight == hopper::Major::kDepth;
};

template <class Loop, class C>
struct GemmShape {
  // A stage is 128 bytes deep: the span of the swizzle, four steps of a matrix product.
  static constexpr int kRowBytes = 128;
  static constexpr int kDepth = kRowBytes / Loop::kBytes;
  static constexpr int kBlockM = 128;
  static constexpr int kLeftBytes = Loop::kPlanes * kBlockM * kRowBytes;
  static constexpr int kRightBytes = Loop::kPlanes * C::kBlockN * kRowBytes;  // of one tile
  static constexpr int kStageBytes = kLeftBytes + C::kTiles * kRightBytes;
  // A block fetches this many of the rows that it shares.
  static constexpr int kLeftShare = Loop::kPlanes * kBlockM / C::kAcross;
  static constexpr int kRightShare = Loop::kPlanes * C::kBlockN / C::kDown;
  // In the stages: what was split lies along the depth.
  static constexpr hopper::Major kLeft = Loop::kScaled ? hopper::Major::kDepth : C::kLeft;
  static constexpr hopper::Major kRight = Loop::kScaled ? hopper::Major::kDepth : C::kRight;
  static constexpr int kThreads = 384;
  static constexpr int kAccumulators = C::kBlockN / 2;
  static constexpr bool kSplits = Loop::kSplitsOnTheWay && C::kSplittable && C::kTiles == 1;
  // Together 168 for each of the block's threads; those that split hold a row.
  static constexpr int kConsumerRegisters = kSplits ? 192 : 232;
  static constexpr int kFeederRegisters = 3 * 168 - 2 * kConsumerRegisters;
  // The swizzle wants stages at multiples of 1024 bytes; dynamic shared memory starts anywhere.
  static constexpr int kShared = C::kStages * kStageBytes + 1024;
};

// A stage comes in parts, one for each tile: its right operand, and with the last one the left,
// which is read until then. So the first part is filled again while the last is still multiplied.
template <class C>
struct GemmBarriers {
  hopper::Barrier full[C::kStages][C::kTiles];
  hopper::Barrier empty[C::kStages][C::kTiles];
};

// The groups of tiles of a matrix that the clusters multiply. Those of a band of kBand row tiles
// follow one another down the rows first, so that those that run together share a narrow strip of
// the right operand.
template <class C>
struct GemmGroups {
  static constexpr int kTall = 128 * C::kDown;
  static constexpr int kWide = C::kBlockN * C::kAcross * C::kTiles;
  static constexpr int kBand = C::kBand / C::kDown;
  int down;
  int across;
  int count;

  __host__ __device__ GemmGroups(int64_t rows, int columns)
      : down(static_cast<int>((rows + kTall - 1) / kTall)),
        across((columns + kWide - 1) / kWide),
        count(down * across) {}
};

// A block's way through the tiles. Each role of the block walks on its own: a value that two roles
// shared would have to fit the registers of both.
template <class C>
struct GemmWalk {
  GemmGroups<C> groups;
  int at;
  int step;
  int rank = 0;
  int matrices = 1;
  int matrix = 0;
  int row_tile = 0;
  int column_tile = 0;  // the first one

  __device__ __forceinline__ explicit GemmWalk(const GemmOperands& g)
      : groups(g.rows, g.columns),
        at(hopper::block_index() / C::kCluster),
        step(hopper::block_count() / C::kCluster) {
    if constexpr (C::kBatched) matrices = static_cast<int>(g.batch.count());
    if constexpr (C::kCluster > 1) rank = hopper::cluster_rank();
  }

  // The block's place in its cluster.
  __device__ __forceinline__ int down() const { return C::kDown > 1 ? rank : 0; }
  __device__ __forceinline__ int across() const { return C::kAcross > 1 ? rank : 0; }

  __device__ __forceinline__ bool locate() {
    constexpr int kBand = GemmGroups<C>::kBand;
    if constexpr (C::kBatched) matrix = at / groups.count;
    const int first = at - matrix * groups.count;
    const int band = first / (kBand * groups.across);
    const int within = first - band * kBand * groups.across;
    const int height = min(kBand, groups.down - band * kBand);
    if (matrix >= matrices || first >= groups.count) return false;
    row_tile = (band * kBand + within % height) * C::kDown;
    column_tile = within / height * C::kAcross * C::kTiles;
    row_tile += down();
    column_tile += across();
    return true;
  }

  __device__ __forceinline__ void next() { at += step; }
};

namespace detail {

__device__ __forceinline__ unsigned read_progress(const unsigned* at) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}

__device__ __forceinline__ void add_progress(unsigned* at) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

// Waits until a column tile's rows of the right operand are split.
template <class C>
__device__ __forceinline__ void await_rows(const GemmOperands& g, int column_tile) {
  const int wanted = min(C::kBlockN, g.right_rows() - column_tile * C::kBlockN);
  if (wanted <= 0) return;
  const unsigned* const ready = g.progress + 1 + column_tile;
  while (read_progress(ready) < static_cast<unsigned>(wanted)) __nanosleep(64);
  hopper::fence_copy_engine();
}

// A place in the ring of stages; the phase flips with every turn.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The warp's share of a few dot products in float32, each of a left and a right row.
template <bool kVector, int kDots>
__device__ __forceinline__ void dots(float (&sums)[kDots], const float* const (&left)[kDots],
                                     const float* const (&right)[kDots], int depth,
                                     int64_t left_step, int64_t right_step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kVector) {
#pragma unroll 1
    for (int at = lane * 4; at < depth; at += 128) {
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        const float4 x = *reinterpret_cast<const float4*>(left[n] + at);
        const float4 y = *reinterpret_cast<const float4*>(right[n] + at);
        sums[n] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sums[n]))));
      }
    }
  } else {
#pragma unroll 1
    for (int at = lane; at < depth; at += 32) {
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        sums[n] = fmaf(left[n][at * left_step], right[n][at * right_step], sums[n]);
      }
    }
  }
}

}  // namespace detail

// The matrix that is multiplied, by its place in the batch. Without a batch all of this is zero
// when it is compiled.
template <class C>
struct GemmMatrix {
  int outer = 0;
  int inner = 0;
  int at = 0;

  __device__ __forceinline__ GemmMatrix(const GemmOperands& g, int matrix) {
    if constexpr (C::kBatched) {
      at = matrix;
      outer = matrix / g.batch.inner;
      inner = matrix - outer * g.batch.inner;
    }
  }

  // Which of an operand's distinct matrices it is.
  __device__ __forceinline__ int64_t of(const Operand& x, const Batch& batch) const {
    return C::kBatched ? x.index(batch, outer, inner) : 0;
  }
  __device__ __forceinline__ const RowScale* left_scales(const GemmOperands& g) const {
    return static_cast<const RowScale*>(g.left_scales) + of(g.left, g.batch) * g.rows;
  }
  __device__ __forceinline__ const RowScale* right_scales(const GemmOperands& g) const {
    return static_cast<const RowScale*>(g.right_scales) + of(g.right, g.batch) * g.columns;
  }
};

// What the columns of a thread add to its doubt: their doubts, and the largest of their scales, by
// which the rows' doubts are multiplied. One pair of numbers stands for all of them; it is only
// ever too large.
struct ColumnDoubt {
  float own = 0.0f;
  float most = 0.0f;
};

// Undoes the scales of a tile's columns, two neighbours at a time.
template <class P, class C, int kCount>
__device__ __forceinline__ void scale_columns(float (&d)[kCount], ColumnDoubt& doubt,
                                              const RowScale* from, int first_column) {
  constexpr bool kWhole = P::kColumns % C::kBlockN == 0;  // all of a tile's columns exist
  const int lane = hopper::lane();
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
    const int column = first_column + column_of<C>(4 * n, lane % 4);
    float4 x{};  // scale and doubt of one, scale and doubt of the other
    if constexpr (P::kColumns % 2 == 0) {
      if (kWhole || column < P::kColumns) x = *reinterpret_cast<const float4*>(from + column);
    } else {
      if (column < P::kColumns) x = {from[column].scale, from[column].doubt, 0.0f, 0.0f};
      if (column + 1 < P::kColumns) {
        x.z = from[column + 1].scale;
        x.w = from[column + 1].doubt;
      }
    }
    doubt.own = fmaxf(doubt.own, fmaxf(x.y, x.w));
    doubt.most = fmaxf(doubt.most, fmaxf(x.x, x.z));
    d[n * 4] *= x.x;
    d[n * 4 + 1] *= x.z;
    d[n * 4 + 2] *= x.x;
    d[n * 4 + 3] *= x.z;
  }
  hopper::pin(d);
}

// Undoes the scales of a tile's rows, and computes again what the split leaves in doubt: a warp
// takes a few of its doubtful elements at a time.
template <class C, int kCount>
__device__ __forceinline__ void settle(float (&d)[kCount], const ColumnDoubt& columns,
                                       const GemmOperands& g, const GemmMatrix<C>& matrix,
                                       int64_t warp_row, int first_column) {
  constexpr int kDots = kCount > 64 ? 2 : 4;
  const int lane = hopper::lane();
  const RowScale* const scales = matrix.left_scales(g);
  float least[2];  // elements must be larger than this; a NaN never is
  bool all_well = true;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = warp_row + lane / 4 + 8 * i;
    const RowScale x = row < g.rows ? scales[row] : RowScale{};
    least[i] = columns.own * x.scale + columns.most * x.doubt;
    if (least[i] == 0.0f || x.scale == 0.0f) least[i] = -1.0f;  // zeros are zero without any doubt
    float smallest = __builtin_huge_valf();
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      const int index = k / 2 * 4 + 2 * i + k % 2;
      d[index] *= x.scale;
      smallest = minimum(smallest, fabsf(d[index]));
    }
    all_well = all_well && smallest > least[i];
  }
  hopper::pin(d);
  if (__all_sync(0xffffffff, all_well)) return;

  uint64_t doubtful[2] = {};  // a bit for each accumulator
#pragma unroll
  for (int index = 0; index < kCount; ++index) {
    if (!(fabsf(d[index]) > least[index / 2 % 2])) {
      doubtful[index / 64] |= uint64_t{1} << index % 64;
    }
  }
  const float* const left = g.left.floats(matrix.outer, matrix.inner);
  const float* const right = g.right.floats(matrix.outer, matrix.inner);
  constexpr bool kAlong = C::kLeft == hopper::Major::kDepth && C::kRight == hopper::Major::kDepth;
#pragma unroll 1
  for (int index = 0; index < kCount; ++index) {
    const uint64_t bits = index < 64 ? doubtful[0] : doubtful[1];
    const int own_column = first_column + column_of<C>(index, lane % 4);
    const bool inside =
        own_column < g.columns && warp_row + lane / 4 + 8 * (index / 2 % 2) < g.rows;
    const bool again = (bits >> index % 64 & 1) != 0 && inside;
    unsigned owners = __ballot_sync(0xffffffff, again);
#pragma unroll 1
    while (owners != 0) {
      int owner[kDots];
      const float* left_rows[kDots];
      const float* right_rows[kDots];
      float sums[kDots] = {};
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        owner[n] = owners != 0 ? __ffs(static_cast<int>(owners)) - 1 : owner[n ? n - 1 : 0];
        owners &= owners - 1;
        left_rows[n] = left + (warp_row + owner[n] / 4 + 8 * (index / 2 % 2)) * g.left.row;
        const int column = first_column + column_of<C>(index, owner[n] % 4);
        right_rows[n] = right + column * g.right.row;
      }
      if (kAlong && g.depth % 4 == 0 && g.left.aligned() && g.right.aligned()) {
        detail::dots<true>(sums, left_rows, right_rows, g.depth, 1, 1);
      } else {
        detail::dots<false>(sums, left_rows, right_rows, g.depth, g.left.depth, g.right.depth);
      }
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        const float sum = reduce_threads<Combine::kSum, 32>(sums[n]);
#pragma unroll
        for (int m = 0; m < kCount; ++m) {
          if (lane == owner[n] && m == index) d[m] = sum;
        }
      }
    }
  }
}

namespace detail {

// Where the boxes of the matrix that is multiplied lie in an operand's tensor map (describe):
// behind so many panels, or in these batches.
template <class Loop>
struct Place {
  int panels = 0;
  int inner = 0;
  int outer = 0;

  template <class C>
  __device__ __forceinline__ Place(const GemmOperands& g, const GemmMatrix<C>& matrix,
                                   const Operand& x, int64_t rows) {
    if constexpr (!C::kBatched) return;
    if constexpr (Loop::kScaled) {
      panels =
          static_cast<int>(matrix.of(x, g.batch) * (split::whole_panels(rows) / split::kPanel));
    } else {
      inner = x.inner == 0 ? 0 : matrix.inner;
      outer = x.outer == 0 ? 0 : matrix.outer;
    }
  }

  template <hopper::Major kMajor>
  __device__ __forceinline__ hopper::Box box(int depth, int plane, int row) const {
    if constexpr (Loop::kScaled) {
      return {0, 0, depth / split::kPanel * Loop::kPlanes + plane, panels + row / split::kPanel};
    } else if constexpr (kMajor == hopper::Major::kDepth) {
      return {depth, row, inner, outer};
    } else {
      return {row, depth, inner, outer};
    }
  }
};

}  // namespace detail

// One thread: copies every stage of every tile, as soon as the cluster has read what was there.
template <class Loop, class C>
__device__ __forceinline__ void feed(const CUtensorMap& left, const CUtensorMap& right,
                                     const GemmOperands& g, const GemmDecision& how,
                                     uint8_t* stages, GemmBarriers<C>& barriers) {
  using S = GemmShape<Loop, C>;
  detail::Ring<C::kStages> ring;
  // A band's rows of the left operand are read again for every strip of the right one, which is
  // read once for each band: if it is the larger one, it should leave the L2 before the other does.
  // (Not while it is being split: then its rows come from the L2 as well.)
  const bool leaves = (how.frozen || C::kTiles == 2) && g.columns > C::kBand * S::kBlockM;
  const uint64_t left_policy = hopper::cache_policy(false);
  const uint64_t right_policy = hopper::cache_policy(leaves);
  for (GemmWalk<C> walk(g); walk.locate(); walk.next()) {
    if (S::kSplits && how.on_the_way(g)) detail::await_rows<C>(g, walk.column_tile);
    const GemmMatrix<C> matrix(g, walk.matrix);
    const detail::Place<Loop> left_at(g, matrix, g.left, g.rows);
    const detail::Place<Loop> right_at(g, matrix, g.right, g.columns);
#pragma unroll 1
    for (int at = 0; at < g.depth; at += S::kDepth, ring.next()) {
      uint8_t* const to = stages + ring.stage * S::kStageBytes;
#pragma unroll
      for (int t = 0; t < C::kTiles; ++t) {
        const bool last = t == C::kTiles - 1;
        hopper::Barrier& full = barriers.full[ring.stage][t];
        hopper::wait(barriers.empty[ring.stage][t], ring.phase ^ 1);
        hopper::arrive_expecting(full, S::kRightBytes + (last ? S::kLeftBytes : 0));
#pragma unroll
        for (int n = 0; n < (last ? S::kLeftShare : 0); n += split::kPanel) {
          const int row = walk.across() * S::kLeftShare + n;
          hopper::copy_box<C::kAcross>(
              to + row * S::kRowBytes, &left, full,
              left_at.template box<C::kLeft>(at, row / S::kBlockM,
                                             walk.row_tile * S::kBlockM + row % S::kBlockM),
              left_policy);
        }
#pragma unroll
        for (int n = 0; n < S::kRightShare; n += split::kPanel) {
          const int row = walk.down() * S::kRightShare + n;
          hopper::copy_box<C::kDown>(
              to + S::kLeftBytes + t * S::kRightBytes + row * S::kRowBytes, &right, full,
              right_at.template box<C::kRight>(
                  at, row / C::kBlockN, (walk.column_tile + t) * C::kBlockN + row % C::kBlockN),
              right_policy);
        }
      }
    }
  }
}

// Three warps: split rows of the right operand until there are none left. Whoever is free takes the
// next row, so that nobody waits for a block that is not running.
template <class Loop, class C>
__device__ __forceinline__ void split_rest(const GemmOperands& g, GemmRow& shared) {
  const int thread = static_cast<int>(threadIdx.x) - 32;
  const split::Job job = g.right_job<C>(0);
  const auto rows = static_cast<unsigned>(g.right_rows());
  unsigned next = 0;  // the row after the current one; the first thread's alone
  const auto take = [&] {
    next = atomicAdd(g.progress, 1u);
    if (next < static_cast<unsigned>(g.columns)) {
      const auto* const from = static_cast<const float*>(g.right.at) + next * g.right.row;
      hopper::prefetch_bytes(from, static_cast<uint32_t>(g.depth) * 4);
    }
  };
  if (thread == 0) {
    take();
    shared.row = next;
  }
  SplittingWarps::sync();
  for (unsigned row = shared.row; row < rows; row = shared.row) {
    if (thread == 0) take();
    const auto* const from = static_cast<const float*>(g.right.at) + row * g.right.row;
    uint16_t* const to = split::planes_of<Loop::kPlanes>(job, 0, row, g.depth);
    const bool exists = row < static_cast<unsigned>(g.columns);
    const RowScale scale = split::split_row<SplittingWarps, Loop::kPlanes, true>(
        from, to, exists, g.depth, thread, shared.split);
    if (thread == 0 && exists) job.scales[row] = scale;
    hopper::fence_copy_engine();
    SplittingWarps::sync();
    if (thread == 0) {
      shared.row = next;
      detail::add_progress(g.progress + 1 + row / C::kBlockN);
    }
    SplittingWarps::sync();
  }
}

// A warpgroup, 1 or 2: multiplies its 64 rows of every tile and runs the program on the result.
template <class Loop, class P, class C>
__device__ __forceinline__ void consume(const GemmOperands& g, const typename P::Args& a,
                                        const uint8_t* stages, GemmBarriers<C>& barriers,
                                        Turned* turned, int warpgroup) {
  using S = GemmShape<Loop, C>;
  using Product = hopper::Product<Loop::kElement, C::kBlockN, S::kLeft, S::kRight>;
  constexpr uint64_t kLeftStep = hopper::kDepthStep<S::kLeft>;
  constexpr uint64_t kRightStep = hopper::kDepthStep<S::kRight>;
  constexpr bool kPair = Loop::kPlanes == 2;
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  detail::Ring<C::kStages> ring;

  // Right tile `t` of the stage.
  const auto multiply = [&](float (&d)[S::kAccumulators], int add, int t) {
    const uint8_t* const from = stages + ring.stage * S::kStageBytes;
    const uint64_t a0 =
        hopper::tile_descriptor<S::kLeft>(from + (warpgroup - 1) * 64 * S::kRowBytes);
    const uint64_t b0 =
        hopper::tile_descriptor<S::kRight>(from + S::kLeftBytes + t * S::kRightBytes);
    constexpr uint64_t kLeftPlane = S::kBlockM * S::kRowBytes / 16;
    constexpr uint64_t kRightPlane = C::kBlockN * S::kRowBytes / 16;
    hopper::wait(barriers.full[ring.stage][t], ring.phase);
    if (t == 0 && C::kTiles > 1) hopper::wait(barriers.full[ring.stage][C::kTiles - 1], ring.phase);
    hopper::pin(d);
    hopper::begin_products();
    if constexpr (kPair) {  // small terms first
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Product::run(d, a0 + kLeftPlane + kLeftStep * s, b0 + kRightStep * s, add | s);
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Product::run(d, a0 + kLeftStep * s, b0 + kRightPlane + kRightStep * s, 1);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s)
      Product::run(d, a0 + kLeftStep * s, b0 + kRightStep * s, kPair | add | s);
    hopper::commit_products();
  };
  // A part of a stage has been read.
  const auto release = [&](int stage, int t) {
    if (lane < C::kCluster) hopper::arrive_at(barriers.empty[stage][t], lane);
  };

  // What the epilogue will read for each column, 32 columns to a lane. The right operand's scales
  // may be new: whoever sees the tile's first stage sees them too.
  const auto touch_columns = [&](const GemmMatrix<C>& matrix, int first) {
    hopper::wait(barriers.full[ring.stage][0], ring.phase);
    const int column = first + lane * 32;
    if (warp != 0 || lane * 32 >= C::kTiles * C::kBlockN || column >= g.columns) return;
    P::touch(a, column);
    if constexpr (Loop::kScaled) {
      const RowScale* const scales = matrix.right_scales(g) + column;
      touch(scales);
      if (column + 16 < g.columns) touch(scales + 16);
    }
  };

  if (Loop::kPromotes && warpgroup == 2) hopper::arrive_threads<256>(1);
  for (GemmWalk<C> walk(g); walk.locate(); walk.next()) {
    float sum[C::kTiles][S::kAccumulators];
    const GemmMatrix<C> matrix(g, walk.matrix);
    if (C::kBatched && walk.row_tile * S::kBlockM + (warpgroup - 1) * 64 >= g.rows) {
      // None of the matrix's rows is this warpgroup's: it lets the stages go by.
      for (int at = 0; at < g.depth; at += S::kDepth, ring.next()) {
#pragma unroll
        for (int t = 0; t < C::kTiles; ++t) {
          if constexpr (Loop::kPromotes) {
            hopper::sync_threads<256>(warpgroup);
            hopper::arrive_threads<256>(3 - warpgroup);
          }
          hopper::wait(barriers.full[ring.stage][t], ring.phase);
          release(ring.stage, t);
        }
      }
      continue;
    }
    touch_columns(matrix, walk.column_tile * C::kBlockN);
    if constexpr (Loop::kPromotes) {
      float d[S::kAccumulators];
#pragma unroll
      for (int t = 0; t < C::kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < S::kAccumulators; ++i) sum[t][i] = 0.0f;
      }
      for (int at = 0; at < g.depth; at += S::kDepth, ring.next()) {
#pragma unroll
        for (int t = 0; t < C::kTiles; ++t) {
          hopper::sync_threads<256>(warpgroup);
          multiply(d, 0, t);
          hopper::arrive_threads<256>(3 - warpgroup);
          hopper::wait_products<0>();
          hopper::pin(d);
          release(ring.stage, t);
#pragma unroll
          for (int i = 0; i < S::kAccumulators; ++i) sum[t][i] += d[i];
        }
      }
    } else {
      int before = ring.stage;
      multiply(sum[0], 0, 0);
      ring.next();
      for (int at = S::kDepth; at < g.depth; at += S::kDepth, ring.next()) {
        multiply(sum[0], 1, 0);
        hopper::wait_products<1>();
        release(before, 0);
        before = ring.stage;
      }
      hopper::wait_products<0>();
      hopper::pin(sum[0]);
      release(before, 0);
    }
    const int64_t warp_row = int64_t{walk.row_tile} * S::kBlockM + (warpgroup - 1) * 64 + warp * 16;
    // One copy of the code serves both tiles: a second one would have to be fetched as well.
#pragma unroll 1
    for (int t = 0; t < C::kTiles; ++t) {
      const int first = (walk.column_tile + t) * C::kBlockN;
      if (warp_row < g.rows && first < g.columns) {
        if constexpr (Loop::kScaled) {
          ColumnDoubt doubt;
          scale_columns<P, C>(sum[0], doubt, matrix.right_scales(g), first);
          settle<C>(sum[0], doubt, g, matrix, warp_row, first);
        }
        const int64_t before = matrix.at * g.rows;
        Epilogue<P, C> epilogue{a, before + warp_row + lane / 4, before + g.rows, first};
        if constexpr (Epilogue<P, C>::kTurns) {
          epilogue.turn(sum[0], turned[threadIdx.x / 32 - 4]);
        } else {
          epilogue.run(sum[0]);
        }
      }
      if constexpr (C::kTiles == 2) {
#pragma unroll
        for (int i = 0; i < S::kAccumulators; ++i) sum[0][i] = sum[1][i];
      }
    }
  }
}

template <class Loop, class P, class C>
__global__ void __launch_bounds__(GemmShape<Loop, C>::kThreads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                const GemmOperands g, const GemmDecision how, const typename P::Args a) {
#ifdef KW_HOPPER
  using S = GemmShape<Loop, C>;
  extern __shared__ uint8_t raw[];
  __shared__ GemmBarriers<C> barriers;
  __shared__ GemmRow row;
  __shared__ Turned turned[Epilogue<P, C>::kTurns ? 8 : 1];
  uint8_t* const stages = raw + (1024 - hopper::shared_address(raw) % 1024) % 1024;
  if (threadIdx.x == 0) {
    hopper::prefetch(&left);
    hopper::prefetch(&right);
    for (int s = 0; s < C::kStages; ++s) {
      for (int t = 0; t < C::kTiles; ++t) {
        hopper::init(barriers.full[s][t], 1);
        hopper::init(barriers.empty[s][t], 8 * C::kCluster);  // the consuming warps of the cluster
      }
    }
    hopper::publish_barriers();
  }
  hopper::sync_cluster();
  await_turn();
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  if (warpgroup == 0) {
    hopper::give_registers<S::kFeederRegisters>();
    if (threadIdx.x == 0) {
      feed<Loop, C>(left, right, g, how, stages, barriers);
    } else if (S::kSplits && threadIdx.x >= 32 && how.on_the_way(g)) {
      split_rest<Loop, C>(g, row);
    }
  } else {
    hopper::take_registers<S::kConsumerRegisters>();
    consume<Loop, P, C>(g, a, stages, barriers, turned, warpgroup);
  }
  // No block may leave while another one still signals its barriers or delivers to it.
  hopper::sync_cluster();
#endif
}

namespace detail {

// All that a tensor map is made from, besides what a loop knows.
struct MapKey {
  void* at;
  cuuint64_t sizes[4];
  cuuint64_t strides[3];

  bool operator==(const MapKey& other) const {
    bool same = at == other.at;
    for (int i = 0; i < 4; ++i) same = same && sizes[i] == other.sizes[i];
    for (int i = 0; i < 3; ++i) same = same && strides[i] == other.strides[i];
    return same;
  }
};

// An operand as a tensor that is fetched in boxes of 64 rows, 128 bytes deep: what is in memory as
// (depth, row, inner batch, outer batch) or, if neighbours in memory are rows, as (row, depth,
// ...); what was split as (depth in a step, row in a panel, step and plane, panel of all matrices).
template <class Loop, hopper::Major kMajor>
bool describe(CUtensorMap& map, const Operand& x, const Batch& batch, const void* halves,
              int64_t rows, int64_t depth) {
  constexpr cuuint64_t kPanel = split::kPanel;
  cuuint64_t sizes[4];
  cuuint64_t strides[3];  // of all axes but the first, in bytes
  const Batch each = x.distinct(batch);
  if constexpr (Loop::kScaled) {
    sizes[0] = sizes[1] = kPanel;
    sizes[2] = static_cast<cuuint64_t>(split::whole_panels(depth)) / kPanel * Loop::kPlanes;
    sizes[3] = static_cast<cuuint64_t>(split::whole_panels(rows) * each.count()) / kPanel;
    for (int i = 0; i < 3; ++i) strides[i] = (i == 0 ? Loop::kBytes : strides[i - 1]) * sizes[i];
  } else {
    constexpr bool kAlong = kMajor == hopper::Major::kDepth;
    const int64_t lengths[] = {kAlong ? depth : rows, kAlong ? rows : depth, each.inner,
                               each.outer};
    const int64_t apart[] = {kAlong ? x.row : x.depth, x.inner, x.outer};
    for (int i = 0; i < 4; ++i) sizes[i] = static_cast<cuuint64_t>(lengths[i]);
    for (int i = 0; i < 3; ++i) {  // an axis of one has no stride to speak of
      strides[i] = sizes[i + 1] == 1 ? 16 : static_cast<cuuint64_t>(apart[i]) * Loop::kBytes;
    }
  }
  MapKey key{const_cast<void*>(Loop::kScaled ? halves : x.at), {}, {}};
  for (int i = 0; i < 4; ++i) key.sizes[i] = sizes[i];
  for (int i = 0; i < 3; ++i) key.strides[i] = strides[i];
  thread_local Recent<MapKey, CUtensorMap> known;  // kept while addresses and sizes stay
  return known.find(key, map, [](const MapKey& k, CUtensorMap& made) {
    const cuuint32_t box[] = {128 / Loop::kBytes, kPanel, 1, 1};
    const cuuint32_t step[] = {1, 1, 1, 1};
    const hopper::EncodeMap encode = hopper::encode_map();
    return encode != nullptr &&
           encode(&made, Loop::kMapType, 4, k.at, k.sizes, k.strides, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  });
}

// Splits the operands, of the right one the rows that are wanted early.
template <class Loop, class C>
cudaError_t split_operands(const GemmOperands& g, const GemmDecision& how, cudaStream_t stream) {
  constexpr bool kLeftAlong = C::kLeft == hopper::Major::kDepth;
  constexpr bool kRightAlong = C::kRight == hopper::Major::kDepth;
  const int64_t all = g.right_rows() * g.right.distinct(g.batch).count();
  const bool on_the_way = GemmShape<Loop, C>::kSplits && how.tiles == 1 && how.on_the_way(g);
  const split::Job left = g.left_job();
  const split::Job right = g.right_job<C>(how.frozen ? 0 : on_the_way ? how.early : all);
  const int tiles = (g.columns + C::kBlockN * C::kCluster - 1) / (C::kBlockN * C::kCluster);
  const split::Progress progress{g.progress, on_the_way ? 1 + tiles * C::kCluster : 0, C::kBlockN};
  bool beside = false;
  if constexpr (!kLeftAlong) {
    const cudaError_t error = split::run_across<Loop::kPlanes>(left, g.depth, stream);
    if (error != cudaSuccess) return error;
    beside = true;
  }
  if constexpr (!kRightAlong) {
    const cudaError_t error = split::run_across<Loop::kPlanes>(right, g.depth, stream, beside);
    if (error != cudaSuccess) return error;
    beside = beside || right.count > 0;
  }
  const split::Along<Loop::kPlanes, C::kBatched, C::kDepth> along{
      kLeftAlong ? left : split::Job{},
      kRightAlong ? right : split::Job{},
      g.depth,
      progress,
      stream,
      beside};
  return along.run();
}

}  // namespace detail

template <class Loop, class P, class Group>
cudaError_t multiply(const GemmOperands& g, const GemmDecision& how, const typename P::Args& a,
                     cudaStream_t stream) {
  using S = GemmShape<Loop, Group>;
  constexpr int kTurned = Epilogue<P, Group>::kTurns ? 8 * sizeof(Turned) : 0;
  static_assert(Group::kBlockM == S::kBlockM && S::kShared + kTurned <= 226 * 1024,
                "the tile must fit");
  static_assert(S::kLeftShare % split::kPanel == 0 && S::kRightShare % split::kPanel == 0 &&
                    Group::kBlockN % split::kPanel == 0,
                "whole boxes");
  static_assert(Group::kBand % Group::kDown == 0, "a cluster must not reach into the next band");
  CUtensorMap left;
  CUtensorMap right;
  if (!detail::describe<Loop, Group::kLeft>(left, g.left, g.batch, g.left_halves, g.rows,
                                            g.depth) ||
      !detail::describe<Loop, Group::kRight>(right, g.right, g.batch, g.right_halves, g.columns,
                                             g.depth)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = gemm_kernel<Loop, P, Group>;
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel), S::kShared);
  if (error != cudaSuccess) return error;
  const Grid grid{static_cast<unsigned>(how.clusters * Group::kCluster), S::kThreads, stream,
                  S::kShared, Group::kCluster};
  return launch(kernel, grid, left, right, g, how, a);
}

template <class Loop, class P, class C, class Layout = Plain>
cudaError_t gemm(const GemmOperands& g, const GemmDecision& how, const typename P::Args& a,
                 cudaStream_t stream) {
  using One = GemmGroup<C, 1, Layout>;
  static_assert(One::kVec < 4 || Loop::kScaled, "only rows that are split can be interleaved");
  if (g.rows == 0 || g.batch.count() == 0) return cudaSuccess;
  if constexpr (Loop::kScaled) {
    const cudaError_t error = detail::split_operands<Loop, One>(g, how, stream);
    if (error != cudaSuccess) return error;
  }
  if constexpr (Loop::kPromotes && One::kCluster == 2 && One::kBlockN == 128) {
    if (how.tiles == 2) return multiply<Loop, P, GemmGroup<C, 2, Layout>>(g, how, a, stream);
  }
  return multiply<Loop, P, One>(g, how, a, stream);
}

}  // namespace kw

// ---- resident.cuh -------------------------------------------------------------------------------
// Row programs on the GPU, the row kept in registers from the first load to the last store.
//
// A team of kLanes threads owns a segment (or the row, where there are none); kTeams teams share a
// row, kRows rows share a block. Memory is read once and written once. Teams within a warp reduce
// by shuffles, larger ones through shared memory.

namespace kw {

// One thread's part of a row: kOwned segments, kChunks chunks of each.
template <class P, class C>
struct ResidentThread {
  static constexpr int V = C::kVec;
  static constexpr int kRowThreads = C::kLanes * C::kTeams;
  static constexpr int kSegment = P::kSegment ? P::kSegment : P::kElements;
  static constexpr int kSegments = P::kElements / kSegment;
  static constexpr int kOwned = (kSegments + C::kTeams - 1) / C::kTeams;
  static constexpr int kChunks = (kSegment + C::kLanes * V - 1) / (C::kLanes * V);
  static constexpr bool kExact = kSegments % C::kTeams == 0 && kSegment % (C::kLanes * V) == 0;

  const typename P::Args& a;
  int64_t row;
  int lane = static_cast<int>(threadIdx.x % C::kLanes);
  int team = static_cast<int>(threadIdx.x / C::kLanes % C::kTeams);
  typename P::template Fields<V> f[kOwned][kChunks];
  typename P::template Scalars<1> s[kOwned];

  __device__ bool inside(int q, int c) const {
    return kExact || (q * C::kTeams + team < kSegments && (c * C::kLanes + lane) * V < kSegment);
  }

  __device__ Cursor cursor(int q, int c) const {
    return {row, (q * C::kTeams + team) * kSegment + (c * C::kLanes + lane) * V};
  }

  // This thread's share of a stage in segment q.
  template <class S>
  __device__ __forceinline__ auto share(S stage, int q) {
    constexpr Combine kOp = P::kCombine[S::value];
    using T = TotalOf<P, S::value>;
    T total = identity<kOp, T>();
    // Four chunks of a sum that is a double are exact as floats, where each of them is there.
    constexpr int kFours = kExact && sizeof(T) > sizeof(float) ? kChunks / 4 : 0;
    KW_LANES
    for (int four = 0; four < kFours; ++four) {
      Vec<4> chunks;
      KW_LANES
      for (int n = 0; n < 4; ++n) {
        const int c = four * 4 + n;
        chunks[n] = combine_lanes<kOp>(P::contribution(stage, f[q][c], s[q], a, cursor(q, c)));
      }
      total = combine<kOp>(total, fold_to_total<kOp, T>(chunks));
    }
    KW_LANES
    for (int c = kFours * 4; c < kChunks; ++c) {
      if (!inside(q, c)) continue;
      const Vec<V> x = P::contribution(stage, f[q][c], s[q], a, cursor(q, c));
      total = combine<kOp>(total, T{combine_lanes<kOp>(x)});
    }
    return total;
  }

  template <class S, class T>
  __device__ __forceinline__ void finish_segment(S stage, int q, T total) {
    constexpr Combine kOp = P::kCombine[S::value];
    P::finish(stage, s[q], Vec<1, T>{{reduce_threads<kOp, C::kLanes>(total)}}, a);
  }

  // Stages I up to End, all over segment q.
  template <int I, int End>
  __device__ __forceinline__ void segment_stages(int q) {
    if constexpr (I < End) {
      finish_segment(Stage<I>{}, q, share(Stage<I>{}, q));
      segment_stages<I + 1, End>(q);
    }
  }

  __host__ __device__ static constexpr int next_over_row(int stage) {
    while (stage < P::kStages && P::kOverSegment[stage]) ++stage;
    return stage;
  }

  // Everything from stage I on. The first stage over segments loads all of them, so that many loads
  // are in flight; then each segment goes through its stages alone, which takes few registers.
  template <int I>
  __device__ __forceinline__ void run_from() {
    constexpr int kEnd = next_over_row(I);
    if constexpr (I < kEnd) {
      TotalOf<P, I> first[kOwned];
      KW_LANES
      for (int q = 0; q < kOwned; ++q) first[q] = share(Stage<I>{}, q);
      if constexpr (kEnd == P::kStages) {
        KW_LANES
        for (int q = 0; q < kOwned; ++q) {
          finish_segment(Stage<I>{}, q, first[q]);
          segment_stages<I + 1, kEnd>(q);
        }
      } else {
        constexpr Combine kOp = P::kCombine[kEnd];
        auto total = identity<kOp, TotalOf<P, kEnd>>();
        KW_LANES
        for (int q = 0; q < kOwned; ++q) {
          finish_segment(Stage<I>{}, q, first[q]);
          segment_stages<I + 1, kEnd>(q);
          total = combine<kOp>(total, share(Stage<kEnd>{}, q));
        }
        finish_row<kEnd>(total);
      }
    } else if constexpr (kEnd < P::kStages) {
      constexpr Combine kOp = P::kCombine[kEnd];
      auto total = identity<kOp, TotalOf<P, kEnd>>();
      KW_LANES
      for (int q = 0; q < kOwned; ++q) total = combine<kOp>(total, share(Stage<kEnd>{}, q));
      finish_row<kEnd>(total);
    }
  }

  template <int I>
  __device__ __forceinline__ void finish_row(TotalOf<P, I> total) {
    const Vec<1, TotalOf<P, I>> all{{reduce_threads<P::kCombine[I], kRowThreads>(total)}};
    KW_LANES
    for (int q = 0; q < kOwned; ++q) P::finish(Stage<I>{}, s[q], all, a);
    run_from<I + 1>();
  }

  __device__ __forceinline__ void store() {
    KW_LANES
    for (int q = 0; q < kOwned; ++q) {
      KW_LANES
      for (int c = 0; c < kChunks; ++c) {
        if (inside(q, c)) P::store_elements(f[q][c], s[q], a, cursor(q, c));
      }
      if (lane == 0 && inside(q, 0)) P::store_segment(s[q], a, cursor(q, 0));
    }
    if (lane == 0 && team == 0) P::store_row(s[0], a, Cursor{row, 0});
  }
};

// `Row` has 32 bits wherever they suffice: programs divide by sizes to find what a row consists of,
// and 64 bits take several times as long.
template <class Row, class P, class C>
__device__ __forceinline__ void run_resident(const typename P::Args& a) {
  constexpr int kRowThreads = C::kLanes * C::kTeams;
  const Row rows = static_cast<Row>(P::rows(a));
  const Row wanted = static_cast<Row>(blockIdx.x) * C::kRows + threadIdx.x / kRowThreads;
  const bool live = wanted < rows;
  // Idle teams repeat a row and store nothing: everyone takes part in the shuffles.
  ResidentThread<P, C> thread{a, static_cast<int64_t>(live ? wanted : rows - 1)};
  thread.template run_from<0>();
  if (live) thread.store();
}

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    resident_kernel(const typename P::Args a) {
  await_turn();
  if (P::rows(a) < int64_t{1} << 31) {
    run_resident<uint32_t, P, C>(a);
  } else {
    run_resident<uint64_t, P, C>(a);
  }
}

template <class P, class C>
cudaError_t resident(const typename P::Args& a, cudaStream_t stream) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((rows + C::kRows - 1) / C::kRows);
  return launch(resident_kernel<P, C>, Grid{grid, C::kThreads, stream}, a);
}

}  // namespace kw

// ---- in_memory.cuh ------------------------------------------------------------------------------
// The program of a product's epilogue as a row program, over a product that lies in memory.
//
// Where the library makes a product (few rows, other GPUs), the program that would have been its
// epilogue runs in a row kernel after it:
//   InMemory<P, T>   reads the product, of type T, where the epilogue has it in registers
//   Segments<P>      takes each segment for a row, if nothing larger is reduced: more rows run in
//                    parallel
//   Flat<P>          takes all rows for one, if nothing is reduced and all that is read and written
//                    lies in one go: no chunk of lanes ends at the end of a row

namespace kw {

template <class P, class T>
struct InMemory : P {
  struct Args : P::Args {
    const T* product;
  };
  template <int V>
  using Fields = typename P::template Fields<V>;
  template <int L>
  using Scalars = typename P::template Scalars<L>;

  template <int V>
  KW_FN static void load(Fields<V>& f, const Args& a, Cursor at) {
    const auto product = load_row<V>(a.product + at.row * P::kColumns + at.element);
    Vec<V> lanes;
    KW_LANES
    for (int v = 0; v < V; ++v) lanes.lanes[v] = product[v];
    P::begin(f, lanes);
  }

  template <int I, int V, int L>
  KW_FN static Vec<V> contribution(Stage<I> stage, Fields<V>& f, const Scalars<L>& s, const Args& a,
                                   Cursor at) {
    if constexpr (I == 0) load<V>(f, a, at);
    return P::contribution(stage, f, s, a, at);
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    if constexpr (P::kStages == 0) load<V>(f, a, at);
    P::store_elements(f, s, a, at);
  }
};

template <class P>
struct Segments : P {
  static constexpr int kPerRow = P::kElements / P::kSegment;
  static constexpr int kElements = P::kSegment;
  static constexpr int kSegment = 0;
  static constexpr bool kOverSegment[P::kStages] = {};
  static constexpr bool kStoresSegments = false;
  using Args = typename P::Args;
  template <int V>
  using Fields = typename P::template Fields<V>;
  template <int L>
  using Scalars = typename P::template Scalars<L>;

  KW_FN static int64_t rows(const Args& a) { return P::rows(a) * kPerRow; }
  KW_FN static int64_t elements(const Args&) { return kElements; }

  KW_FN static Cursor inside(Cursor at) {
    return {at.row / kPerRow, at.row % kPerRow * kElements + at.element};
  }

  template <int I, int V, int L>
  KW_FN static Vec<V> contribution(Stage<I> stage, Fields<V>& f, const Scalars<L>& s, const Args& a,
                                   Cursor at) {
    return P::contribution(stage, f, s, a, inside(at));
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    P::store_elements(f, s, a, inside(at));
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    P::store_segment(s, a, inside(at));
  }
};

}  // namespace kw

// ---- run.hpp ------------------------------------------------------------------------------------
// The kernels of a call one after another: what C++ does between two calls that only torch makes.
//
// A run is straight-line code over a Run: it takes memory for what only its kernels see, and starts
// these. The memory is one piece, which Python brings; how much there must be is what the same code
// says when it is run without tensors: then it starts nothing and counts what is taken.

namespace kw {

// Is told the name of each kernel before it starts, if anybody wants to know.
inline void (*watcher)(const char* name) = nullptr;
// The kernel that this thread started last, for errors.
inline thread_local const char* last_launch = "";

}  // namespace kw

// ---- few_rows.cuh -------------------------------------------------------------------------------
// left [rows, depth] times right [columns, depth] transposed, plus a bias, in float32 for a few
// rows: for up to eight the time is that of reading `right` from memory once.
//
// A warp has four rows of `right` and all rows of `left`. Its lanes share the depth: each holds its
// part of the 32 sums, and in the end they are added up across the lanes. The rows of `left` are
// read again and again, but the warps of a multiprocessor go through the depth at the same pace and
// find them in the L1 cache. Where there are too few columns to keep all warps busy, the warps of a
// block share the depth as well. Sums are float32 multiply-adds in a fixed order: NaN, infinity and
// rounding need no care.
//
// Each eight rows have blocks of their own, which read `right` again: cheap while the L2 cache
// holds it.

namespace kw {

struct FewRows {
  const float* left;
  const float* right;
  const float* bias;  // or null
  float* out;
  int64_t rows;
  int columns;
  int depth;
};

namespace few {

inline constexpr int kMostRows = 8;
inline constexpr int kEach = 4;
inline constexpr int kWarps = 8;

// Adds up kCount values, 32 or fewer, over the lanes of a warp. Lanes give away half of what they
// have in every step, and are left with one sum. Returns its index.
template <int kCount>
__device__ __forceinline__ int scatter_sums(float (&x)[kCount], int lane) {
  int index = 0;
#pragma unroll
  for (int apart = 16, count = kCount; apart > 0; apart /= 2) {
    const bool upper = (lane & apart) != 0;
    if (count > 1) {
      count /= 2;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i >= count) break;
        const float given = upper ? x[i] : x[i + count];
        x[i] = (upper ? x[i + count] : x[i]) + __shfl_xor_sync(0xffffffff, given, apart);
      }
      if (upper) index += count;
    } else {
      x[0] += __shfl_xor_sync(0xffffffff, x[0], apart);
    }
  }
  return index;
}

template <bool kShareDepth>
__host__ __device__ constexpr int blocks_across(int columns) {
  const int own = kShareDepth ? kEach : kWarps * kEach;
  return (columns + own - 1) / own;
}

// kRows may be more than there are: the last one is repeated and not stored.
template <int kRows, bool kShareDepth>
__global__ void __launch_bounds__(kWarps * 32, 2) kernel(const FewRows g) {
  constexpr int V = 4;
  constexpr int kSteps = kRows > 1 ? 1 : 2;  // whose loads are in flight together
  constexpr int kLanes = kShareDepth ? kWarps * 32 : 32;
  constexpr int kStride = kSteps * kLanes * V;
  const int thread = static_cast<int>(threadIdx.x);
  const int across = blocks_across<kShareDepth>(g.columns);
  const int block = static_cast<int>(blockIdx.x) % across;
  const int column = (kShareDepth ? block : block * kWarps + thread / 32) * kEach;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / across * kMostRows;
  const float* right[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    right[e] = g.right + int64_t{min(column + e, g.columns - 1)} * g.depth;
  }
  const auto load = [&](Vec<V>(&w)[kSteps][kEach], int start) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = start + s * kLanes * V;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        w[s][e] = at < g.depth ? load_once<V>(right[e] + at) : Vec<V>{};
      }
    }
  };
  await_turn();
  float sums[kRows * kEach] = {};
  Vec<V> w[kSteps][kEach];
  const int first = thread % kLanes * V;
  load(w, first);
#pragma unroll 1
  for (int start = first; start < g.depth; start += kStride) {
    Vec<V> next[kSteps][kEach];
    load(next, start + kStride);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = start + s * kLanes * V;
      if (at >= g.depth) break;
      const float* left = g.left + first_row * g.depth + at;
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const Vec<V> x = load_row<V>(left);
        left += first_row + m + 1 < g.rows ? g.depth : 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          float& sum = sums[m * kEach + e];
#pragma unroll
          for (int v = 0; v < V; ++v) sum = fmaf(w[s][e].lanes[v], x.lanes[v], sum);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) w[s][e] = next[s][e];
    }
  }

  constexpr int kCount = kRows * kEach;
  constexpr int kSame = 32 / kCount;  // lanes that hold the same sum
  const int index = scatter_sums(sums, thread % 32);
  float sum = sums[0];
  if constexpr (kShareDepth) {
    __shared__ float partial[kWarps][32];
    partial[thread / 32][thread % 32] = sum;
    __syncthreads();
    if (thread >= 32) return;
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += partial[i][thread];
  }
  const int64_t row = first_row + index / kEach;
  const int at = column + index % kEach;
  if (thread % kSame != 0 || row >= g.rows || at >= g.columns) return;
  g.out[row * g.columns + at] = g.bias != nullptr ? sum + g.bias[at] : sum;
}

template <int kRows, bool kShareDepth>
cudaError_t run(const FewRows& g, cudaStream_t stream) {
  const int64_t down = (g.rows + kMostRows - 1) / kMostRows;
  const auto blocks = static_cast<unsigned>(down * blocks_across<kShareDepth>(g.columns));
  return launch(kernel<kRows, kShareDepth>, Grid{blocks, kWarps * 32, stream}, g);
}

}  // namespace few

template <bool kShareDepth>
cudaError_t few_rows(const FewRows& g, cudaStream_t stream) {
  if (g.rows == 0) return cudaSuccess;
  return g.rows == 1 ? few::run<1, kShareDepth>(g, stream)
                     : few::run<few::kMostRows, kShareDepth>(g, stream);
}

}  // namespace kw

// ---- thin_sm90.cuh ------------------------------------------------------------------------------
// left [rows, depth] times right [columns, depth] transposed, plus a bias, in float32 for 9 to 256
// rows on Hopper's tensor cores: about the time of reading `right` from memory once.
//
// The product is computed transposed: the rows of `right`, a weight, are the long side of the
// matrix instruction and come from registers, the few rows of `left` are its short side and come
// from shared memory. `left` is small and split before (split.cuh). Nobody else needs what a block
// reads of `right`, so it is split on its way through the registers and never stored:
//
//   copy engine   float32 tiles of `right`, 128 rows by 64 of depth, and the halves of `left`, each
//                 into a ring of stages of its own;
//   two warpgroups   take 64 rows of `right` each: load, find the largest magnitude of a row's 64
//                 numbers, scale by a power of two, part into float16 hi and lo, multiply. The
//                 tensor cores truncate when they accumulate, so every 64 of depth are added to
//                 float32 sums anyway, and the addition undoes the scale: a row needs no scale of
//                 its own, and `right` is read once. While a step is multiplied the next is split,
//                 and the warpgroups take turns, so that one multiplies while the other one adds.
//
// Blocks work in pairs and share what they have in common through the copy engine: two tiles of
// `right` have the same rows of `left`, and for more than 128 rows two tiles of `left` have the
// same rows of `right`. Where there are fewer tiles than multiprocessors the depth is parted; a
// second kernel adds up the parts in a fixed order, computes again what the split leaves in doubt,
// as gemm_sm90.cuh does, and adds the bias.

namespace kw {

struct ThinOperands {
  const float* left;
  const float* right;
  const float* bias;  // or null
  float* out;
  uint16_t* left_halves;
  RowScale* left_scales;
  float* sums;             // [parts, rows, columns]
  RowScale* right_scales;  // [parts, columns]
  int rows;
  int columns;
  int depth;
  int parts;  // of the depth
};

namespace thin {

inline constexpr int kTile = 128;  // rows of `right` to a block
inline constexpr int kStep = 64;   // of depth to a stage
inline constexpr int kMostRows = 256;
inline constexpr int kPair = 2;
inline constexpr int kThreads = 384;
inline constexpr int kFeederRegisters = 24;
inline constexpr int kConsumerRegisters = 240;

template <int kPlanes, int kRows>
struct Shape {
  static constexpr int kRowBytes = 128;                 // of a swizzled row
  static constexpr int kHalfBytes = kTile * kRowBytes;  // 32 of depth of `right`
  static constexpr int kRightBytes = 2 * kHalfBytes;
  static constexpr int kLeftPlane = kRows * kRowBytes;
  static constexpr int kLeftBytes = kPlanes * kLeftPlane;
  static constexpr int kRoom = 224 * 1024;
  static constexpr int kLeftStages = kLeftBytes > 16 * 1024 ? 3 : 4;
  static constexpr int kRightStages = (kRoom - kLeftStages * kLeftBytes) / kRightBytes;
  static constexpr int kShared = kRoom + 1024;  // the swizzle wants multiples of 1024
};

template <class S>
struct Barriers {
  hopper::Barrier right_full[S::kRightStages];
  hopper::Barrier right_empty[S::kRightStages];
  hopper::Barrier left_full[S::kLeftStages];
  hopper::Barrier left_empty[S::kLeftStages];
};

// What a block multiplies: 128 rows of `right` and up to kRows of `left`, over a part of the depth.
template <int kRows>
struct Work {
  bool two_lefts;   // the pair shares `right`; else it shares `left`
  bool two_halves;  // of `left`; else the second one holds nothing, and is not fetched
  int rank;
  int part;
  int first_column;
  int first_row;
  int first_step;
  int steps;

  __device__ __forceinline__ explicit Work(const ThinOperands& g) {
    const int pair = hopper::block_index() / kPair;
    two_lefts = g.rows > kRows;
    rank = hopper::cluster_rank();
    part = pair % g.parts;
    first_column = (pair / g.parts * (two_lefts ? 1 : kPair) + (two_lefts ? 0 : rank)) * kTile;
    first_row = two_lefts ? rank * kRows : 0;
    two_halves = g.rows - first_row > kRows / 2;
    const int all = (g.depth + kStep - 1) / kStep;
    first_step = static_cast<int>(int64_t{all} * part / g.parts);
    steps = static_cast<int>(int64_t{all} * (part + 1) / g.parts) - first_step;
  }
};

// Half a stage, `half` 0 or 1, for this block alone, or for both if they share it: then each block
// fetches one of the halves.
__device__ __forceinline__ void fetch(void* to, const CUtensorMap* map, hopper::Barrier& full,
                                      const hopper::Box& box, uint64_t policy, bool shared,
                                      bool mine) {
  if (!shared) {
    hopper::copy_box<1>(to, map, full, box, policy);
  } else if (mine) {
    hopper::copy_box<kPair>(to, map, full, box, policy);
  }
}

template <class S, int kRows>
__device__ __forceinline__ void feed_right(const CUtensorMap& map, const Work<kRows>& work,
                                           uint8_t* stages, Barriers<S>& barriers) {
  detail::Ring<S::kRightStages> ring;
  const uint64_t policy = hopper::cache_policy(true);
#pragma unroll 1
  for (int at = 0; at < work.steps; ++at, ring.next()) {
    hopper::Barrier& full = barriers.right_full[ring.stage];
    hopper::wait(barriers.right_empty[ring.stage], ring.phase ^ 1);
    hopper::arrive_expecting(full, S::kRightBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int depth = (work.first_step + at) * kStep + half * (kStep / 2);
      fetch(stages + ring.stage * S::kRightBytes + half * S::kHalfBytes, &map, full,
            {depth, work.first_column, 0, 0}, policy, work.two_lefts, half == work.rank);
    }
  }
}

template <class S, int kPlanes, int kRows>
__device__ __forceinline__ void feed_left(const CUtensorMap& map, const Work<kRows>& work,
                                          uint8_t* stages, Barriers<S>& barriers) {
  detail::Ring<S::kLeftStages> ring;
  const uint64_t policy = hopper::cache_policy(false);
#pragma unroll 1
  for (int at = 0; at < work.steps; ++at, ring.next()) {
    hopper::Barrier& full = barriers.left_full[ring.stage];
    hopper::wait(barriers.left_empty[ring.stage], ring.phase ^ 1);
    hopper::arrive_expecting(full, work.two_halves ? S::kLeftBytes : S::kLeftBytes / 2);
#pragma unroll
    for (int box = 0; box < kPlanes * 2; ++box) {
      const int plane = box / 2;
      const int half = box % 2;
      const int row = work.first_row + half * (kRows / 2);
      if (half != 0 && !work.two_halves) continue;
      fetch(stages + ring.stage * S::kLeftBytes + box * (S::kLeftPlane / 2), &map, full,
            {0, row % split::kPanel, (work.first_step + at) * kPlanes + plane, row / split::kPanel},
            policy, !work.two_lefts, half == work.rank);
    }
  }
}

// A warpgroup's 64 rows of `right` for one step, as the left operand of its products. In the
// instruction's layout a thread has two of the rows, i, and of every 16 of depth, s, two neighbours
// in each half, h.
template <int kPlanes>
struct Fragment {
  uint32_t planes[kPlanes][4][4];  // [plane][s][2 * h + i]
  float down[2];                   // undoes the scale of row i

  __device__ __forceinline__ void pin() {
#pragma unroll
    for (int n = 0; n < kPlanes * 16; ++n) {
      asm volatile("" : "+r"(planes[n / 16][n / 4 % 4][n % 4])::"memory");
    }
  }
};

// Where a thread finds its numbers in a stage of `right`, whose rows of 128 bytes are swizzled: 16
// bytes c of row r lie at c ^ r % 8. So that a half warp meets all banks, its rows are even ones,
// and those of the other half are odd.
struct Place {
  int row;     // in the tile; the second row is eight further on
  int offset;  // in bytes, of s = h = i = 0

  __device__ __forceinline__ Place() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int group = lane / 4;
    const int quad = lane % 4;
    const int within = group % 4 * 2 + group / 4;
    row = static_cast<int>(threadIdx.x / 32 - 4) * 16 + within;
    offset = row * 128 + ((quad / 2 ^ within) * 16 | quad % 2 * 8);
  }

  template <class S>
  __device__ __forceinline__ float2 load(const uint8_t* stage, int s, int h, int i) const {
    const int at = (offset ^ (s % 2 * 64 | h * 32)) + s / 2 * S::kHalfBytes + i * 1024;
    return *reinterpret_cast<const float2*>(stage + at);
  }
};

// What a thread remembers of its two rows.
struct Rows {
  float most[2] = {};     // the largest magnitude so far
  float residue[2] = {};  // what was lost of the thread's own numbers
};

__device__ __forceinline__ uint32_t smaller_magnitudes(uint32_t least, uint32_t pair) {
  asm("{\n.reg .b32 x;\nabs.f16x2 x, %1;\nmin.f16x2 %0, %0, x;\n}" : "+r"(least) : "r"(pair));
  return least;
}

// Whether one of two float16 magnitudes is below the smallest that loses nothing that counts.
template <int kPlanes>
__device__ __forceinline__ bool loses(uint32_t least) {
  constexpr uint32_t kBits = kPlanes == 2 ? 0x3000 : 0x0400;  // kSmallest as float16
  return (least & 0xffff) < kBits || least >> 16 < kBits;
}

template <class S, int kPlanes>
__device__ __forceinline__ void convert(Fragment<kPlanes>& to, Rows& rows, const uint8_t* stage,
                                        const Place& place) {
  float2 x[4][4];
  float most[2] = {};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int n = 0; n < 4; ++n) x[s][n] = place.load<S>(stage, s, n / 2, n % 2);
  }
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      most[n % 2] = maximum(most[n % 2], fabsf(x[s][n].x));
      most[n % 2] = maximum(most[n % 2], fabsf(x[s][n].y));
    }
  }
  float up[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    most[i] = maximum(most[i], __shfl_xor_sync(0xffffffff, most[i], 1));
    most[i] = maximum(most[i], __shfl_xor_sync(0xffffffff, most[i], 2));
    rows.most[i] = maximum(rows.most[i], most[i]);
    // The largest comes to [2^14, 2^15); what is smaller than 2^-100 stays below.
    const uint32_t exponent = max(__float_as_uint(most[i]) >> 23, 27u);
    up[i] = __uint_as_float((268u - exponent) << 23);
    to.down[i] = __uint_as_float((exponent - 14u) << 23);
  }
  uint32_t least = 0x7c007c00;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t planes[kPlanes];
      split::split_pair<kPlanes>(float2{x[s][n].x * up[n % 2], x[s][n].y * up[n % 2]}, planes);
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) to.planes[p][s][n] = planes[p];
      least = smaller_magnitudes(least, planes[0]);
    }
  }
  // Rows behind the end, and others of zeros, lose nothing.
  if (loses<kPlanes>(least) && (most[0] != 0.0f || most[1] != 0.0f)) {
#pragma unroll 1
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 y = place.load<S>(stage, s, n / 2, n % 2);
        const float gone = split::lost<kPlanes>(float2{y.x * up[n % 2], y.y * up[n % 2]});
        rows.residue[n % 2] += gone * to.down[n % 2];
      }
    }
  }
}

// What the second kernel must know of a row: its scale, if all of it had the one of its largest
// number, and its doubt. A NaN, an infinity and what might overflow make the scale NaN.
template <int kPlanes>
__device__ __forceinline__ RowScale bound(float most, float residue) {
  const uint32_t exponent = __float_as_uint(most) >> 23;
  float scale = __uint_as_float((max(exponent, 27u) - 14u) << 23);
  if (most == 0.0f) scale = 0.0f;
  if (exponent > 127 + 60) scale = __builtin_nanf("");
  return {scale, residue * split::kDoubtPerResidue<kPlanes>};
}

template <class S, int kPlanes, int kRows>
__device__ __forceinline__ void consume(const ThinOperands& g, const Work<kRows>& work,
                                        const uint8_t* rights, const uint8_t* lefts,
                                        Barriers<S>& barriers) {
  using Product = hopper::RegisterProduct<kRows>;
  constexpr int kCount = kRows / 2;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Place place;
  Rows rows;
  detail::Ring<S::kRightStages> right;
  detail::Ring<S::kLeftStages> left;
  // A stage is free when the warps of all blocks that have it are done with it.
  const auto release = [&](hopper::Barrier& empty, bool shared) {
    __syncwarp();
    if (lane < (shared ? kPair : 1)) hopper::arrive_at(empty, shared ? lane : work.rank);
  };
  const auto prepare = [&](Fragment<kPlanes>& to) {
    hopper::wait(barriers.right_full[right.stage], right.phase);
    convert<S>(to, rows, rights + right.stage * S::kRightBytes, place);
    release(barriers.right_empty[right.stage], work.two_lefts);
    right.next();
  };
  float sum[kCount];
  float d[kCount];
#pragma unroll
  for (int n = 0; n < kCount; ++n) sum[n] = 0.0f;
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  const auto multiply = [&](const Fragment<kPlanes>& a) {
    const uint64_t b =
        hopper::tile_descriptor<hopper::Major::kDepth>(lefts + left.stage * S::kLeftBytes);
    constexpr uint64_t kPlane = S::kLeftPlane / 16;
    hopper::wait(barriers.left_full[left.stage], left.phase);
    hopper::sync_threads<256>(warpgroup);
    hopper::pin(d);
    hopper::begin_products();
    if constexpr (kPlanes == 2) {  // small terms first
#pragma unroll
      for (int s = 0; s < 4; ++s) Product::run(d, a.planes[1][s], b + 2 * s, s);
#pragma unroll
      for (int s = 0; s < 4; ++s) Product::run(d, a.planes[0][s], b + kPlane + 2 * s, 1);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) Product::run(d, a.planes[0][s], b + 2 * s, (kPlanes - 1) | s);
    hopper::commit_products();
    hopper::arrive_threads<256>(3 - warpgroup);
  };
  const auto add = [&](Fragment<kPlanes>& a) {
    hopper::wait_products<0>();
    hopper::pin(d);
    a.pin();
    release(barriers.left_empty[left.stage], !work.two_lefts);
    left.next();
#pragma unroll
    for (int n = 0; n < kCount; ++n) sum[n] = fmaf(d[n], a.down[n / 2 % 2], sum[n]);
  };

  if (warpgroup == 2) hopper::arrive_threads<256>(1);
  Fragment<kPlanes> even;
  Fragment<kPlanes> odd;
  prepare(even);
  int at = 0;
#pragma unroll 1
  for (; at + 2 < work.steps; at += 2) {
    multiply(even);
    prepare(odd);
    add(even);
    multiply(odd);
    prepare(even);
    add(odd);
  }
  multiply(even);
  if (at + 1 < work.steps) {
    prepare(odd);
    add(even);
    multiply(odd);
    add(odd);
  } else {
    add(even);
  }

  const int quad = lane % 4;
  const int64_t plane = int64_t{g.rows} * g.columns;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = work.first_column + place.row + 8 * i;
    float residue = rows.residue[i];
    residue += __shfl_xor_sync(0xffffffff, residue, 1);
    residue += __shfl_xor_sync(0xffffffff, residue, 2);
    if (column >= g.columns) continue;
    if (quad == 0 && work.first_row == 0) {
      g.right_scales[int64_t{work.part} * g.columns + column] =
          bound<kPlanes>(rows.most[i], residue);
    }
    float* const to = g.sums + work.part * plane + column;
#pragma unroll
    for (int n = 0; n < kCount / 2; ++n) {
      const int row = work.first_row + n / 2 * 8 + quad * 2 + n % 2;
      if (row < g.rows) to[int64_t{row} * g.columns] = sum[n / 2 * 4 + i * 2 + n % 2];
    }
  }
}

template <int kPlanes, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
           const ThinOperands g) {
#ifdef KW_HOPPER
  using S = Shape<kPlanes, kRows>;
  extern __shared__ uint8_t raw[];
  __shared__ Barriers<S> barriers;
  uint8_t* const rights = raw + (1024 - hopper::shared_address(raw) % 1024) % 1024;
  uint8_t* const lefts = rights + S::kRightStages * S::kRightBytes;
  const Work<kRows> work(g);
  if (threadIdx.x == 0) {
    hopper::prefetch(&left);
    hopper::prefetch(&right);
    for (int s = 0; s < S::kRightStages; ++s) {
      hopper::init(barriers.right_full[s], 1);
      hopper::init(barriers.right_empty[s], work.two_lefts ? 8 * kPair : 8);  // consuming warps
    }
    for (int s = 0; s < S::kLeftStages; ++s) {
      hopper::init(barriers.left_full[s], 1);
      hopper::init(barriers.left_empty[s], work.two_lefts ? 8 : 8 * kPair);
    }
    hopper::publish_barriers();
  }
  hopper::sync_cluster();
  await_turn();
  if (threadIdx.x < 128) {
    hopper::give_registers<kFeederRegisters>();
    if (threadIdx.x == 0) {
      feed_right<S>(right, work, rights, barriers);
    } else if (threadIdx.x == 32) {
      feed_left<S, kPlanes>(left, work, lefts, barriers);
    }
  } else {
    hopper::take_registers<kConsumerRegisters>();
    consume<S, kPlanes>(g, work, rights, lefts, barriers);
  }
  // No block may leave while the other one still signals its barriers or delivers to it.
  hopper::sync_cluster();
#endif
}

// Adds up the parts of the depth, undoes the scales of `left`, computes again what is in doubt and
// adds the bias. A thread has kEach rows of a column, and loads kAtOnce parts before it adds them.
inline constexpr int kFinishing = 256;
inline constexpr int kEach = 2;
inline constexpr int kAtOnce = 4;

template <int kEach>
__global__ void __launch_bounds__(kFinishing) finish(const ThinOperands g) {
  const int bands = (g.rows + kEach - 1) / kEach;
  const int block = static_cast<int>(blockIdx.x);
  const int warp_column = block / bands * kFinishing + static_cast<int>(threadIdx.x / 32 * 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int column = warp_column + lane;
  const bool inside = column < g.columns;
  const int first = block % bands * kEach;
  const int64_t plane = int64_t{g.rows} * g.columns;
  await_turn();
  RowScale right{};
  float sum[kEach] = {};
#pragma unroll 1
  for (int part = 0; part < (inside ? g.parts : 0); part += kAtOnce) {
    RowScale scales[kAtOnce] = {};
    float some[kAtOnce][kEach] = {};
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      if (part + p >= g.parts) break;
      scales[p] = g.right_scales[int64_t{part + p} * g.columns + column];
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int64_t at = (part + p) * plane + int64_t{first + n} * g.columns + column;
        if (first + n < g.rows) some[p][n] = g.sums[at];
      }
    }
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      right.scale = maximum(right.scale, scales[p].scale);
      right.doubt += scales[p].doubt;
#pragma unroll
      for (int n = 0; n < kEach; ++n) sum[n] += some[p][n];
    }
  }
  const float bias = inside && g.bias != nullptr ? g.bias[column] : 0.0f;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int row = first + n;
    if (row >= g.rows) break;
    const RowScale left = g.left_scales[row];
    float least = right.doubt * left.scale + right.scale * left.doubt;
    if (least == 0.0f || left.scale == 0.0f) least = -1.0f;  // zeros are zero without any doubt
    float value = sum[n] * left.scale;
    unsigned again = __ballot_sync(0xffffffff, inside && !(fabsf(value) > least));
#pragma unroll 1
    while (again != 0) {
      const int owner = __ffs(static_cast<int>(again)) - 1;
      again &= again - 1;
      const float* const lefts[] = {g.left + int64_t{row} * g.depth};
      const float* const rights[] = {g.right + int64_t{warp_column + owner} * g.depth};
      float dot[1] = {};
      detail::dots<true>(dot, lefts, rights, g.depth, 1, 1);
      const float exact = reduce_threads<Combine::kSum, 32>(dot[0]);
      if (lane == owner) value = exact;
    }
    if (inside) {
      g.out[int64_t{row} * g.columns + column] = g.bias != nullptr ? value + bias : value;
    }
  }
}

inline bool describe(CUtensorMap& map, CUtensorMapDataType type, cuuint64_t bytes, const void* at,
                     const cuuint64_t (&sizes)[4], const cuuint32_t (&box)[4]) {
  cuuint64_t strides[3];
  for (int i = 0; i < 3; ++i) strides[i] = (i == 0 ? bytes : strides[i - 1]) * sizes[i];
  const cuuint32_t each[] = {1, 1, 1, 1};
  const hopper::EncodeMap encode = hopper::encode_map();
  return encode != nullptr && encode(&map, type, 4, const_cast<void*>(at), sizes, strides, box,
                                     each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int kPlanes, int kRows>
cudaError_t multiply(const ThinOperands& g, cudaStream_t stream) {
  using S = Shape<kPlanes, kRows>;
  static_assert(S::kRightStages >= 3, "the copy engine must run ahead");
  constexpr cuuint64_t kPanel = split::kPanel;
  const auto panels = static_cast<cuuint64_t>(split::whole_panels(g.rows)) / kPanel;
  const auto steps = static_cast<cuuint64_t>(split::whole_panels(g.depth)) / kPanel;
  CUtensorMap left;
  CUtensorMap right;
  if (!describe(left, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, g.left_halves,
                {kPanel, kPanel, steps * kPlanes, panels}, {kStep, kRows / 2, 1, 1}) ||
      !describe(right, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, g.right,
                {static_cast<cuuint64_t>(g.depth), static_cast<cuuint64_t>(g.columns), 1, 1},
                {kStep / 2, kTile, 1, 1})) {
    return cudaErrorInvalidValue;
  }
  const auto run = kernel<kPlanes, kRows>;
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(run), S::kShared);
  if (error != cudaSuccess) return error;
  const int tall = g.rows > kRows ? kTile : kPair * kTile;  // of `right` to a pair
  const int pairs = (g.columns + tall - 1) / tall * g.parts;
  return launch(run,
                Grid{static_cast<unsigned>(pairs * kPair), kThreads, stream, S::kShared, kPair},
                left, right, g);
}

}  // namespace thin

// For a depth that is a multiple of four, which the copy engine needs. kPlanes and kDepth as in
// split.cuh.
template <int kPlanes, int kDepth>
cudaError_t thin_product(const ThinOperands& g, cudaStream_t stream) {
  if (g.rows == 0) return cudaSuccess;
  const Operand left{g.left, 0, 0, g.depth, 1};
  cudaError_t error = split_all<kPlanes, hopper::Major::kDepth, false, kDepth>(
      left, Batch{}, g.left_halves, g.left_scales, g.rows, g.depth, stream);
  if (error != cudaSuccess) return error;
  error = g.rows <= 64 ? thin::multiply<kPlanes, 64>(g, stream)
                       : thin::multiply<kPlanes, 128>(g, stream);
  if (error != cudaSuccess) return error;
  const int bands = (g.rows + thin::kEach - 1) / thin::kEach;
  const int across = (g.columns + thin::kFinishing - 1) / thin::kFinishing;
  return launch(thin::finish<thin::kEach>,
                Grid{static_cast<unsigned>(bands * across), thin::kFinishing, stream}, g);
}

}  // namespace kw
"""


# --------------------------------------------------------------------------------------------------
# 6. At import: the programs are built, or found as built before.
# --------------------------------------------------------------------------------------------------


_KW_KERNEL_LIBRARY = _kw_Library(_kw_library_for_gpu("kw_model", _KW_PROGRAMS, _KW_HEADERS))
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
    reaches=[(0, 1, 2, 3, 4)],
    rewritten=[],
    recalled=[],
    random=False,
    refused=None,
    globals=False,
    freezes=True,
    guarded=True,
    precision=_kw_Precision("highest", True),
)
