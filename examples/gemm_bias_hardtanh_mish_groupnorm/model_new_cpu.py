# --------------------------------------------------------------------------------------------------
# ModelNew is Model, faster: written by kernelwright 0.1.0 for cpu.
#
# 1. The original model, as it was given.
# 2. The fused model: ModelNew, where each operator went, and the steps of a call.
# 3. The generated programs, in C++, for this model alone.
# 4. The runtime, which builds and launches them.
# 5, 6. The library: the package's own text, of which `kernelwright check` on this file says so.
# 7. What happens when this file is imported.
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

    linear (model.py:17)      left to ATen: linear.default; a library contraction: 1.37e+11
                              flop, 3.36e+08 bytes
    linear (model.py:17)      fused into add_bias_hardtanh_mish_group_norm; its bias: one kernel
                              for 5 operator(s) over the same rows
    add (model.py:17)         fused into add_bias_hardtanh_mish_group_norm; linear(x, W, b) + c
                              => linear(x, W, b + c); one kernel for 5 operator(s) over the same
                              rows
    hardtanh (model.py:18)    fused into add_bias_hardtanh_mish_group_norm; one kernel for 5
                              operator(s) over the same rows
    mish (model.py:18)        fused into add_bias_hardtanh_mish_group_norm; one kernel for 5
                              operator(s) over the same rows
    group_norm (model.py:19)  fused into add_bias_hardtanh_mish_group_norm; one kernel for 5
                              operator(s) over the same rows
    """

    def __new__(cls, *args, **kwargs):
        return _KW_FUSION.register(super().__new__(cls))

    def forward(self, x):
        memo, kind = _KW_FUSION.look(self, x)
        if kind.cause is not None:
            memo.fall_back(kind.cause)
            return super().forward(x)
        batch = x.shape[0]
        (group_norm,) = _KW_FUSION.run(memo, kind, (x,))
        return group_norm.reshape((batch, 8192))

    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return _KW_FUSION.memo(self).fallbacks


def _kw_fused(run, x, bias, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias):
    """The steps of a call: inputs and state in, results out."""
    batch = x.shape[0]
    gemm_product = run.call(torch.nn.functional.linear, x, gemm_weight)
    group_norm = run.empty((batch, 256, 32), torch.float32)
    run.launch(
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
    for tensor, (dtype, shape, device) in zip(state, _KW_STATE_TYPES):
        if tensor.dtype != dtype or tensor.shape != shape:
            return "a parameter has another type or shape"
        if tensor.device != x.device and tensor.device.type != device:
            return "a parameter is on another device"
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


def _kw_written(module):
    """The buffers that a call changes."""
    return ()


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


def _kw_together():
    """All of this as one value, which ModelNew asks."""
    return _kw_Fusion(
        "kw_model",
        device="cpu",
        kernels=_KW_KERNEL_LIBRARY,
        precision=_kw_Precision,
        switch=lambda: None,
        outside=_kw_outside,
        fused=_kw_fused,
        original=_kw_original,
        blank=_kw_blank,
        state=_kw_state,
        written=_kw_written,
        baked_in=_KW_BAKED_IN,
        inputs=1,
        reaches=[(0, 1, 2, 3, 4, 5)],
        rewritten=[],
        recalled=[],
        random=False,
        refused=None,
        globals=False,
    )


# --------------------------------------------------------------------------------------------------
# 3. The generated programs, for this model alone.
# --------------------------------------------------------------------------------------------------


_KW_PROGRAMS = r"""
// ---- A unit of its own, if need be. Cost: 0
extern "C" int64_t run_launches(const int64_t* table, char* const* bases, int64_t first,
                                int64_t second) {
  return kw::run_launches(table, bases, first, second);
}

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
    float* group_norm_affine_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
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
    kw::Vec<L> group_norm_sum;
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
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) {
      s.group_norm_sum[l] = total[l];
      s.group_norm_mean[l] = s.group_norm_sum[l] / 32.0f;
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
    for (int l = 0; l < L; ++l) {
      s.group_norm_square_sum[l] = total[l];
      s.group_norm_rstd[l] = kw::rsqrt(s.group_norm_square_sum[l] / 32.0f + 1e-05f);
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a,
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
# 4. The runtime: it builds and launches the programs.
# --------------------------------------------------------------------------------------------------


import ctypes
import fcntl
import hashlib
import os
import platform
import re
import sys

import torch
from torch.utils.cpp_extension import load
from torch.utils.cpp_extension import load_inline


_KW_NATIVE = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
_KW_EXACT = ["-fno-math-errno", "-fno-trapping-math"]  # not -ffast-math: NaN and infinity must work

def _kw_machine():
    """The instruction set that -march=native stands for here."""
    if not os.path.exists("/proc/cpuinfo"):
        return [platform.processor()]
    with open("/proc/cpuinfo") as info:
        return sorted({line for line in info if line.lower().startswith(("flags", "features"))})


def _kw_units():
    """The kernels as texts that compile side by side: costly ones apart, cheap ones together."""
    _, *parts = re.split(r"^// ---- A unit .* Cost: (\d+)\n", _KW_PROGRAMS, flags=re.MULTILINE)
    costs, texts = [int(cost) for cost in parts[::2]], parts[1::2]
    count = min(os.cpu_count() or 1, -(-sum(costs) // max(*costs, 4)))
    units, loads = [[] for _ in range(count)], [0] * count
    for i in sorted(range(len(texts)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        units[least].append(i)
        loads[least] += costs[i]
    return [_KW_HEADERS + "".join(texts[i] for i in sorted(unit)) for unit in units]


def _kw_build():
    """Compile the kernels, or load what an earlier process compiled from the same text."""
    flags = dict(
        extra_cflags=["-O3", "-std=c++17", "-fopenmp", _KW_NATIVE, *_KW_EXACT],
        extra_ldflags=["-fopenmp"],
    )
    units = _kw_units()
    text = [*units, repr(flags), torch.__version__, sys.version, platform.platform()]
    text += [os.environ.get(name, "") for name in ("CXX", "CC", "CUDA_HOME")] + _kw_machine()
    name = "kw_model_" + hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kernelwright"
    )
    folder = os.path.join(root, name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, "building"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        stale = os.path.join(folder, "lock")
        if os.path.exists(stale):
            os.remove(stale)  # torch's own lock outlives a killed build; ours does not
        flags.update(is_python_module=False)  # plain C functions: no binding to compile
        flags.update(name=name, build_directory=folder)
        if len(units) == 1:
            path = load_inline(cpp_sources=units, no_implicit_headers=True, **flags)
        else:
            path = load(sources=[_kw_write(folder, i, unit) for i, unit in enumerate(units)], **flags)
    return ctypes.CDLL(path)


def _kw_write(folder, number, unit):
    """A unit as a file, for the compiler; one that is there already is not built again."""
    path = os.path.join(folder, f"unit_{number}.cpp")
    if not os.path.exists(path):
        with open(path + ".new", "w") as file:
            file.write(unit)
        os.replace(path + ".new", path)
    return path


_KW_MATMUL_PRECISION = "highest"
_KW_CONV_TF32 = True


class _kw_Precision:
    """Runs float32 contractions at the precision this file was compiled for."""

    def __enter__(self):
        self.matmul = torch.get_float32_matmul_precision()
        self.conv = torch.backends.cudnn.allow_tf32
        if self.matmul != _KW_MATMUL_PRECISION:
            torch.set_float32_matmul_precision(_KW_MATMUL_PRECISION)
        if self.conv != _KW_CONV_TF32:
            torch.backends.cudnn.allow_tf32 = _KW_CONV_TF32

    def __exit__(self, *error):
        if self.matmul != _KW_MATMUL_PRECISION:
            torch.set_float32_matmul_precision(self.matmul)
        if self.conv != _KW_CONV_TF32:
            torch.backends.cudnn.allow_tf32 = self.conv


# --------------------------------------------------------------------------------------------------
# 5. The library, in Python: what this file uses of embedded/ of kernelwright 0.1.0
# for cpu. Identical to the package; `kernelwright check` on this file proves it.
# sha256 60482490d107ab7ec1d340152a045c1f3937c07f6fb71fd90ebeca67c6c56917
# --------------------------------------------------------------------------------------------------


import collections
import contextlib
import ctypes
import enum
import hashlib
import itertools
import math
import operator
import struct
import types
import warnings
import weakref

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree


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


# What a module remembers between calls: how it was found, what fell back, what is frozen.
#
# Looking at everything that a trace took for granted is slow. Looking whether anything was touched
# since is fast: all that hangs on the module (attributes, tables of submodules, parameters and hooks,
# lists and dicts among the attributes) is compared by identity, at once, in C.

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
_KW_END = object()  # ends both sides of a comparison, so that neither may be longer


def _kw_live_views(value, seen):
    """Iterables over everything inside a value that can be replaced, now and later."""
    if id(value) in seen or isinstance(value, (torch.Tensor, _kw_Memo)):
        return
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, (list, set, collections.deque)):
        inside = value
    elif isinstance(value, tuple):
        inside = ()
    elif isinstance(value, nn.Module) or _kw_is_record(value):
        inside = vars(value).values()
    else:
        return
    seen.add(id(value))
    yield inside
    if isinstance(value, nn.Module):
        seen.update(id(vars(value)[name]) for name in _KW_UNWATCHED if name in vars(value))
    for item in list(value if isinstance(value, tuple) else inside):
        yield from _kw_live_views(item, seen)


class _kw_Memo:
    """The record of one module, kept in its `__dict__`; copies of a module start without one."""

    def __init__(self, module, fusion, before=None):
        self.module = module
        self.fusion = fusion
        self.namespace = vars(module)
        self.fallbacks = before.fallbacks if before else collections.Counter()
        self.frozen = before.frozen if before else {}
        self.look()

    def __reduce__(self):
        return type(None), ()

    def look(self):
        """Examine the module, and remember what there was to see."""
        self.cause = self.fusion.refused or _kw_examine(self.module, self.fusion.baked_in)
        self.state = self.fusion.state(self.module) if self.cause is None else ()
        self.namespace["_kernelwright"] = self
        self.modules = list(self.module.modules())
        self.types = [type(m) for m in self.modules]
        everywhere = vars(nn.modules.module)
        self.views = [everywhere[f"_global{name}"].values() for name in _KW_HOOKS]
        if any(self.views) and self.cause is None:
            self.cause = "there are global hooks"
        views = [*self.views, *_kw_live_views(self.module, set())]
        self.bare = [view for view in views if not view]  # most tables of hooks are empty
        self.views = [*filter(None, views), (_KW_END,)]
        self.seen = list(itertools.chain.from_iterable(self.views))

    def is_current(self, module):
        """Whether this is the record of that very module, and nothing was touched since."""
        return (
            self.namespace is vars(module)
            and not any(self.bare)
            and all(map(operator.is_, itertools.chain.from_iterable(self.views), self.seen))
            and all(map(operator.is_, map(type, self.modules), self.types))
        )

    def fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in self.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        self.fallbacks[cause] += 1


# The kernels inside an autograd function; its backward runs the original forward once more.
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
        written = fusion.written(module)
        pairs = [(w, w.detach().clone()) for w in written]
        named = zip(fusion.state(module), state, strict=True)
        pairs += [(own, given) for own, given in named if given is not None]
        with _kw_as_at_first(device, random), _kw_StandIns(pairs):
            results = fusion.original(module, *inputs, *constants)
    pairs = zip(results, cotangents, strict=False)  # new values of buffers have none
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


class _kw_Recorded(torch.autograd.Function):
    """The kernels as one node of autograd's graph."""

    @staticmethod
    def forward(ctx, memo, steps, constants, *tensors):
        fusion = memo.fusion
        ctx.memo, ctx.constants = memo, constants
        ctx.random = _kw_random_state(tensors[0].device) if fusion.random else None
        ctx.save_for_backward(*_kw_kept(tensors, fusion))
        ctx.set_materialize_grads(False)
        results = steps.run(memo, tensors)
        apart = fusion.apart(ctx.needs_input_grad[3:])
        if apart:
            ctx.mark_non_differentiable(*[results[i] for i in apart])
        return results

    @classmethod
    def record(cls, *arguments):
        """apply() without its search for wrappers of torch.func, which are known not to be here."""
        return super(torch.autograd.Function, cls).apply(*arguments)

    @staticmethod
    def backward(ctx, *cotangents):
        wanted = ctx.needs_input_grad[3:]
        memo, tensors = ctx.memo, ctx.saved_tensors
        call = (memo.fusion, memo.module, ctx.constants, ctx.random)
        found = _kw_gradients(*call, tensors, wanted, cotangents)
        return None, None, None, *found


# The kernels as an operator of torch.library, for everything that traces instead of running.
#
# torch.compile, torch.export, fake tensors and the JIT's tracer see one call with a fake
# implementation and a backward. An eager call does not come this way: a dispatch costs more than a
# small kernel.

_KW_LIBRARY = torch.library.Library("kernelwright", "FRAGMENT")


class _kw_Glance:
    """What a traced call knows of its module; the tracer guards whatever this reads."""

    def __init__(self, module, fusion, original=False):
        self.cause = fusion.refused or _kw_examine(module, fusion.baked_in)
        if original:  # a model around it is being compiled, or differentiated
            self.cause = "the original is wanted"
        self.state = fusion.state(module) if self.cause is None else ()

    def fall_back(self, cause):
        """Nothing to count: the tracer follows the original forward instead."""


class _kw_Unfrozen:
    """The record of no module in particular."""

    frozen = {}  # noqa: RUF012


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
        return list(self.fusion.steps(_kw_Unfrozen, tensors).run(_kw_Unfrozen, tensors))

    def blank(self, tensors):
        return list(self.fusion.blank(*tensors))

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


# Kernels in a row: one crossing into C starts all of them, from a table that was made before.

_KW_ALIGNMENT = 16
_KW_UNALIGNED = -1


class _kw_Library:
    """The compiled kernels of a file. `prepare` and `start` are all that Python asks of it."""

    def __init__(self, compiled, on_gpu):
        self.compiled, self.on_gpu = compiled, on_gpu
        self.run = compiled.run_launches
        self.run.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
        self.run.restype = ctypes.c_int64

    def table(self, launches, bases):
        """The launches as numbers: for each its function, its operands, its sizes.

        An operand is the position of a base address and the bytes from there on.
        """
        most = [max(len(launch[i]) for launch in launches) for i in (1, 2)]
        found = [len(launches), bases, _KW_ALIGNMENT if self.on_gpu else 1, *most]
        for name, operands, numbers in launches:
            address = ctypes.cast(self.compiled[name], ctypes.c_void_p).value
            found += [address, len(operands), len(numbers)]
            found += [number for operand in operands for number in operand]
            found += numbers
        return struct.pack(f"{len(found)}q", *found)

    def start(self, launches, addresses):
        """Run kernels on torch's current stream, or with as many threads as torch itself uses.

        Nothing here waits for a GPU.
        """
        if self.on_gpu:
            device = launches.device.index
            stream = torch._C._cuda_getCurrentRawStream(device)
            return self.run(launches.table, addresses, device, stream)
        return self.run(launches.table, addresses, torch.get_num_threads(), 0)

    def launch(self, name, device, tensors, *sizes):
        """A single kernel at once."""
        operands = [(i, 0) for i in range(len(tensors))]
        launches = _kw_Launches(self, device, [(name, operands, sizes)], range(len(tensors)))
        launches(tensors, None)

    def error(self, name, code):
        self.compiled.cuda_error_text.restype = ctypes.c_char_p
        text = self.compiled.cuda_error_text(code).decode()
        return RuntimeError(f"The launch of {name} failed: {text}.")


class _kw_Launches:
    """Kernels one after another; `bases` are the places of the tensors that they work on."""

    def __init__(self, library, device, launches, bases):
        self.library, self.device, self.bases = library, device, bases
        self.names = [name for name, _, _ in launches]
        self.table = library.table(launches, len(bases))
        self.packed = struct.Struct(f"{len(bases)}P")

    def __call__(self, values, memo):
        """Kernels read dense, aligned memory; anything else is copied first."""
        tensors = [t if (t := values[i]).is_contiguous() else t.contiguous() for i in self.bases]
        addresses = self.packed.pack(*[t.data_ptr() for t in tensors])
        code = self.library.start(self, addresses)
        if code == _KW_UNALIGNED:
            tensors = [t.clone() if t.data_ptr() % _KW_ALIGNMENT else t for t in tensors]
            addresses = self.packed.pack(*[t.data_ptr() for t in tensors])
            code = self.library.start(self, addresses)
        if code:
            raise self.library.error(self.names[code >> 32], code & 0xFFFFFFFF)


# The steps of a call, recorded once for each kind of call, then run again with other tensors.
#
# `fused` is written as if every line ran in every call. It is given Values in the place of tensors,
# and its lines are noted: memory, launches, calls of the library. What depends on sizes alone is
# thereby done once: which way is taken, shapes, addresses inside of one workspace, and the tables
# from which C starts all kernels between two library calls.

_KW_APART = 256  # bytes at whose multiples temporaries begin


class _kw_Value:
    """What stands for a tensor while steps are recorded; `rows` are a slice of it."""

    def __init__(self, index, shape=None, dtype=None, rows=None):
        self.index, self.shape, self.dtype, self.rows = index, shape, dtype, rows

    def __getitem__(self, rows):
        return _kw_Value(self.index, self.shape, self.dtype, rows)

    @property
    def bytes(self):
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def offset(self):
        """The bytes before its first row."""
        start = self.rows.start or 0 if self.rows else 0
        return start * math.prod(self.shape[1:]) * self.dtype.itemsize if start else 0


class _kw_Empty:
    """Memory that has to be a tensor of its own, since it is handed on."""

    def __init__(self, value, device):
        self.index, self.value, self.uses = value.index, value, (value.index,)
        self.shape, self.strides = tuple(value.shape), _kw_dense(value.shape)
        self.options = {"dtype": value.dtype, "device": device}

    def __call__(self, values, memo):
        values[self.index] = torch.empty_strided(self.shape, self.strides, **self.options)


def _kw_dense(shape):
    """Strides, spelled out: torch takes a third less time for memory that is described so."""
    return tuple(math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape)))


class _kw_Call:
    """A function of tensors, left to torch."""

    def __init__(self, function, given, index):
        self.function, self.index = function, index
        self.given = [(v.index, v.rows) for v in given]
        self.uses = (*(v.index for v in given), index)

    def __call__(self, values, memo):
        given = [values[i] if rows is None else values[i][rows] for i, rows in self.given]
        values[self.index] = self.function(*given)


class _kw_Kept:
    """The halves of a weight that is frozen."""

    def __init__(self, target, weight, halves, scales):
        self.target, self.weight = target, weight.index
        self.indices = self.uses = (halves.index, scales.index)

    def __call__(self, values, memo):
        *made, stamp = memo.frozen[self.target]
        if stamp != _kw_stamped(values[self.weight]):
            again = "call freeze() again or unfreeze()"
            raise RuntimeError(f"The weight {self.target} changed after freeze(); {again}.")
        for index, tensor in zip(self.indices, made, strict=True):
            values[index] = tensor


def _kw_stamped(weight):
    """What tells that a weight was changed; a write through `.data` leaves it as it is."""
    return weight.data_ptr(), None if weight.is_inference() else weight._version


class _kw_Steps:
    """One kind of call. While `fused` is recorded, it is given this to say what is to be done."""

    def __init__(self, fusion, memo, tensors):
        self.library, self.precision = fusion.kernels, fusion.precision
        self.device = tensors[0].device
        self.frozen = set(memo.frozen)
        self.given = self.count = len(tensors)
        self.tape, self.launches = [], {}
        values = [_kw_Value(i, t.shape, t.dtype) for i, t in enumerate(tensors)]
        self.finish(fusion.fused(self, *values))

    # ---- what fused() says -------------------------------------------------------------------

    def value(self, shape=None, dtype=None):
        self.count += 1
        return _kw_Value(self.count - 1, shape, dtype)

    def empty(self, shape, dtype):
        """Memory without values."""
        value = self.value(shape, dtype)
        self.tape.append(_kw_Empty(value, self.device))
        return value

    def launch(self, name, operands, *numbers):
        """A kernel, on what it reads and what it writes, with its sizes."""
        self.launches[len(self.tape)] = (f"launch_{name}", operands, numbers)
        self.tape.append(None)

    def call(self, function, *given):
        """A function of torch, or of anybody."""
        value = self.value()
        self.tape.append(_kw_Call(function, given, value.index))
        return value

    def contract(self, function, *given):
        """A product or convolution of the library, at the precision of this file."""

        def precise(*tensors):
            with self.precision():
                return function(*tensors)

        return self.call(precise, *given)

    def kept(self, target, weight, halves, scales):
        """The halves of a frozen weight, or memory for them, and whether they are frozen."""
        if target not in self.frozen:
            return self.empty(*halves), self.empty(*scales), False
        found = self.value(*halves), self.value(*scales)
        self.tape.append(_kw_Kept(target, weight, *found))
        return *found, True

    # ---- what is made of it ------------------------------------------------------------------

    def finish(self, results):
        """Temporaries of kernels alone share a workspace; launches in a row become one step."""
        self.results = [v.index for v in results]
        handed = {*self.results, *(i for s in self.tape if isinstance(s, _kw_Call) for i in s.uses)}
        places, self.bytes = self.placed(handed)
        steps, row = [], []
        for i, step in enumerate(self.tape):
            if i in self.launches:
                row.append(self.launches[i])
            elif not isinstance(step, _kw_Empty) or step.index in handed:
                if row and not isinstance(step, _kw_Empty):
                    steps.append(self.in_a_row(row, places))
                    row = []
                steps.append(step)
        if row:
            steps.append(self.in_a_row(row, places))
        self.steps = list(zip(steps, self.done(steps), strict=True))
        self.blank = [None] * (self.count + 1 - self.given)  # the workspace is behind all others
        self.tape = self.launches = None

    def placed(self, handed):
        """Where in the workspace temporaries lie, and how large it is; what is over makes room."""
        last = {v.index: i for i, (_, vs, _) in self.launches.items() for v in vs}
        placed, found = [], {}
        for i, step in enumerate(self.tape):
            if isinstance(step, _kw_Empty) and step.index not in handed and step.index in last:
                size = -(-max(1, step.value.bytes) // _KW_APART) * _KW_APART
                at = 0
                for start, stop, end in sorted(placed):
                    if end >= i and at + size <= start:
                        break
                    at = max(at, stop) if end >= i else at
                placed.append((at, at + size, last[step.index]))
                found[step.index] = at
        return found, max([stop for _, stop, _ in placed], default=0)

    def in_a_row(self, row, places):
        bases, launches = {}, []
        for name, values, numbers in row:
            operands = []
            for v in values:
                base, offset = (self.count, places[v.index]) if v.index in places else (v.index, 0)
                operands.append((bases.setdefault(base, len(bases)), offset + v.offset))
            launches.append((name, operands, numbers))
        step = _kw_Launches(self.library, self.device, launches, list(bases))
        step.uses = step.bases
        return step

    def done(self, steps):
        """For each step the values that nobody needs behind it."""
        needed, found = {*range(self.given), *self.results}, []
        for step in reversed(steps):
            found.append([i for i in dict.fromkeys(step.uses) if i not in needed])
            needed.update(step.uses)
        return reversed(found)

    def run(self, memo, tensors):
        values = [*tensors, *self.blank]
        if self.bytes:
            room = (self.bytes,), (1,)
            values[-1] = torch.empty_strided(*room, dtype=torch.uint8, device=self.device)
        for step, done in self.steps:
            step(values, memo)
            for i in done:
                values[i] = None
        return tuple([values[i] for i in self.results])


# Which way a call takes: the kernels at once, inside an autograd function, or as an operator.

_KW_LITERALS = (int, bool, str, type(None))
_KW_MOST_KINDS = 128  # of calls that are remembered
_KW_TYPE = operator.attrgetter("dtype", "shape", "device")


class _kw_Kind:
    """What is known of a kind of call: why the kernels cannot take it, or its recorded steps."""

    def __init__(self, cause, types=None):
        self.cause, self.types = cause, types
        self.steps = None


class _kw_Fusion:
    """All that the emitted functions of one model are to the code around them.

    `fused(run, *inputs, *state)` says how the results are computed; `original(module, *inputs,
    *constants)` computes the same with the user's own forward; `outside(state, *arguments)` says
    why the kernels cannot take a call; `state(module)` reads parameters and buffers,
    `written(module)` the buffers that a call changes. `reaches` gives for each result the tensors
    that its gradient flows to, `blank` empty results for tracers; `globals` says that some of the
    state lies in the file, where no memo watches it; `switch` reads what may be set in the file.
    """

    def __init__(self, stem, **parts):
        self.__dict__.update(parts)
        self.operator = _kw_Operator(self, stem)
        self.parted, self.kinds, self.recorded = {}, {}, {}

    def register(self, module):
        """Every ModelNew comes by here when it is made."""
        self.operator.modules.add(module)
        vars(module)["_kernelwright"] = None
        return module

    def apart(self, needed):
        """The results that no gradient flows from, where these tensors need one."""
        if needed not in self.parted:
            flows = [any(needed[i] for i in of) for of in self.reaches]
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
            memo.state = self.state(module)
        return memo

    def look(self, module, *arguments):
        """The module's record, and what is known of calls like this one."""
        memo = self.memo(module)
        if memo.cause is not None:
            return memo, _kw_Kind(memo.cause)
        key = None if _kw_is_watched(self.device) else self.key(memo, arguments)
        if key is not None:
            kind = self.kinds.get(key)
            if kind is not None and kind.types == list(map(_KW_TYPE, memo.state)):
                return memo, kind
        kind = _kw_Kind(self.outside(memo.state, *arguments))
        if key is not None and kind.cause is None:
            kind.types = list(map(_KW_TYPE, memo.state))
            _kw_remember(self.kinds, key, kind)
        return memo, kind

    def key(self, memo, arguments):
        """All that outside() asks of the arguments; None where that cannot be told in short."""
        found = [*memo.frozen, self.switch()]
        for value in arguments:
            kind = type(value)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                if value.layout is not torch.strided:
                    return None
                order = value.is_contiguous() or value.stride()
                found += (kind, value.dtype, value.device, value.shape, order)
            elif kind in _KW_LITERALS:
                found += (kind, value)
            elif kind is float:
                found += (kind, repr(value))  # 0.0 and -0.0 are equal
            else:
                return None
        return tuple(found)

    def run(self, memo, kind, inputs, constants=()):
        """The results of a call that the kernels cover."""
        tensors = (*inputs, *memo.state)
        if kind.steps is None:
            if torch.compiler.is_compiling() or _kw_is_traced(inputs):
                return self.operator.call(list(tensors))
            kind.steps = self.steps(memo, tensors)
        if torch.is_grad_enabled() and True in [t.requires_grad for t in tensors]:
            return _kw_Recorded.record(memo, kind.steps, constants, *tensors)
        return kind.steps.run(memo, tensors)

    def steps(self, memo, tensors):
        """The steps for tensors of these sizes, recorded where they are not yet."""
        inputs = tensors[: self.inputs]
        key = (*memo.frozen, self.switch(), inputs[0].device, *(t.shape for t in inputs))
        found = self.recorded.get(key)
        if found is None:
            found = _kw_Steps(self, memo, tensors)
            _kw_remember(self.recorded, key, found)
        return found


def _kw_remember(table, key, value):
    """Keep a value, and not too many of them."""
    if len(table) >= _KW_MOST_KINDS:
        table.clear()
    table[key] = value


def _kw_is_watched(device):
    """Whether anything stands between a call and the memory of its tensors."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch.is_autocast_enabled(device)
    )


def _kw_is_recomputing():
    """Whether the backward of a module around this one runs its original forward."""
    if torch._C._len_torch_function_stack() == 0:
        return False
    modes = _get_current_function_mode_stack()
    return any(hasattr(mode, "_kernelwright_stands_in") for mode in modes)


def _kw_is_ordinary(value):
    """Whether this is a tensor with memory of its own, or a fake one that stands for such."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) or isinstance(value, FakeTensor)


def _kw_is_traced(inputs):
    """Whether a dispatch mode, the JIT's tracer or fake tensors stand between us and the memory."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or isinstance(inputs[0], FakeTensor)
    )


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


# --------------------------------------------------------------------------------------------------
# 6. The library, in C++: what this file uses of kernels/ of kernelwright 0.1.0
# for cpu. Identical to the package; `kernelwright check` on this file proves it.
# sha256 0dc9eec5a17e0e8eb0fe6713adde09681869ad75faa521107209d382156192ed
# --------------------------------------------------------------------------------------------------


_KW_HEADERS = r"""
#include <algorithm>
#include <cstdint>
#include <math.h>
#include <memory>
#include <stdint.h>
#include <vector>

// ---- scalar.cuh ---------------------------------------------------------------------------------
// The float32 scalar functions of the expression IR, one definition for device and host.
//
// Each follows the torch function of its name, special values included: NaN in, NaN out (except
// sign, where torch says 0), and infinities where eager puts them. Truth values are 1.0f and 0.0f.
//
// On the device (sm_80 and later) the transcendental ones are CUDA's accurate functions. On the
// host they are the branch-free polynomials below, so that GCC vectorises a plain loop over any of
// them (all but pow, sin and cos) under -O3 -fno-math-errno -fno-trapping-math. Never -ffast-math:
// it breaks NaN, infinities and the argument reductions. The polynomials are minimax fits made by
// tests/cpu/scalar_fit.py; the ulp bounds of all functions are the table in
// tests/cpu/test_scalar.py. Nothing relies on a fused multiply-add: products that must be exact
// have few enough bits.

#define KW_FN inline __attribute__((always_inline))

namespace kw {

namespace detail {

inline constexpr float kInf = __builtin_huge_valf();
inline constexpr float kLog2e = 1.44269504f;
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

// c0 + c1 x + c2 x^2 + ...; Horner's rule in x^2 over pairs, half as long a chain as in x.
template <class... Rest>
KW_FN float polynomial(float x, float c0, float c1, Rest... rest) {
  return polynomial(x, rest...) * (x * x) + (c1 * x + c0);
}

// The selects below compare bits as integers where they can: GCC turns the inverse of a float
// comparison, which must hold for NaN, into up to six instructions on AArch64.

KW_FN bool sign_bit(float x) {
  return static_cast<int32_t>(to_bits(x)) < 0;
}

// x <= -0.0f; false for NaN.
KW_FN bool negative(float x) {
  return to_bits(x) - 0x80000000u <= 0x7f800000u;
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
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  constexpr float kRound = 12582912.0f;
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

// a / b within 2 ulp for b from 1 to 2^126, beyond which the quotients below are as good as 0. The
// device's exact division takes many times the instructions of an approximate reciprocal.
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

// V floats, one per lane. A single one stands for every lane.
template <int V>
struct Vec {
  float lanes[V];
  KW_FN float& operator[](int v) { return lanes[V == 1 ? 0 : v]; }
  KW_FN float operator[](int v) const { return lanes[V == 1 ? 0 : v]; }
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

template <Combine C>
KW_FN float identity() {
  if constexpr (C == Combine::kSum) return 0.0f;
  if constexpr (C == Combine::kProd) return 1.0f;
  if constexpr (C == Combine::kMax) return -detail::kInf;
  if constexpr (C == Combine::kMin) return detail::kInf;
}

template <Combine C>
KW_FN float combine(float x, float y) {
  if constexpr (C == Combine::kSum) return x + y;
  if constexpr (C == Combine::kProd) return x * y;
  if constexpr (C == Combine::kMax) return maximum(x, y);
  if constexpr (C == Combine::kMin) return minimum(x, y);
}

// Folds the upper half of the lanes onto the lower one until a single lane is left: a short chain
// of widths known to the compiler, which keeps it in vector registers.
template <Combine C, int Width, int V>
KW_FN float fold_lanes(Vec<V>& x) {
  if constexpr (Width == 1) {
    return x.lanes[0];
  } else {
    constexpr int kHalf = Width / 2;
    KW_LANES
    for (int v = 0; v < kHalf; ++v) x.lanes[v] = combine<C>(x.lanes[v], x.lanes[Width - kHalf + v]);
    return fold_lanes<C, Width - kHalf>(x);
  }
}

template <Combine C, int V>
KW_FN float combine_lanes(Vec<V> x) {
  return fold_lanes<C, V>(x);
}

}  // namespace kw

// ---- chunks.hpp ---------------------------------------------------------------------------------
// Walking a row on the CPU: chunks of V lanes that the compiler vectorises, then single lanes.
//
// Sums are kept per lane and combined at the end, which is also what makes them accurate.

// GCC leaves lambdas out of line when they are large; their captures then live in memory.
#define KW_INLINE __attribute__((always_inline))

namespace kw {

template <Combine C, int V>
KW_FN void accumulate(Vec<V>& total, const Vec<V>& x) {
  KW_LANES
  for (int v = 0; v < V; ++v) total.lanes[v] = combine<C>(total.lanes[v], x.lanes[v]);
}

template <Combine C, int V>
KW_FN Vec<V> identities() {
  Vec<V> x;
  for (int v = 0; v < V; ++v) x.lanes[v] = identity<C>();
  return x;
}

// A total over a long row. So many chunks are summed before they join it: then the error grows with
// the number of blocks, and not with the length of the row.
template <Combine C, int V>
struct BlockwiseTotal {
  static constexpr int kBlock = 128;
  Vec<V> done = identities<C, V>();
  Vec<V> block = identities<C, V>();
  int chunks = 0;

  KW_FN void add(const Vec<V>& x) {
    accumulate<C, V>(block, x);
    if (++chunks == kBlock) {
      accumulate<C, V>(done, block);
      block = identities<C, V>();
      chunks = 0;
    }
  }

  KW_FN void add_one(float x) { done.lanes[0] = combine<C>(done.lanes[0], x); }

  KW_FN Vec<V> all() const {
    Vec<V> total = done;
    accumulate<C, V>(total, block);
    return total;
  }
};

// Threads for a program: waking others costs more than a few thousand elements of work.
template <class P>
KW_FN int threads_for(const typename P::Args& a, int threads) {
  return P::rows(a) * P::elements(a) < 32768 ? 1 : threads;
}

// Calls body(lanes, index, element) over [begin, end): chunks of V lanes along runs, then single
// lanes. `index` counts the chunks of either width on their own.
template <int V, class F>
KW_FN void for_each_chunk(int64_t begin, int64_t end, int64_t run, F&& body) {
  int64_t wide = 0;
  int64_t single = 0;
  for (int64_t start = begin; start < end; start += run) {
    int64_t e = start;
    const int64_t stop = std::min(start + run, end);
    for (; e + V <= stop; e += V) body(Stage<V>{}, wide++, e);
    if constexpr (V > 1) {
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
  static constexpr int64_t kWide = kSegment / kRun * (kRun / V);
  static constexpr int64_t kSingle = V > 1 ? kSegment - kWide * V : 0;
  using Wide = typename P::template Fields<V>;
  using Single = typename P::template Fields<1>;
  using Scalars = typename P::template Scalars<1>;

  // On lines of the cache, which a vector would otherwise straddle.
  struct alignas(64) Segment {
    Wide wide[kWide + 1];
    Single single[kSingle + 1];
    Scalars scalars;

    template <class F>
    KW_FN void chunks(int64_t begin, F&& body) {
      for_each_chunk<V>(begin, begin + kSegment, kRun,
                        [&](auto lanes, int64_t i, int64_t e) KW_INLINE {
                          if constexpr (decltype(lanes)::value == V) {
                            body(lanes, wide[i], e);
                          } else {
                            body(lanes, single[i], e);
                          }
                        });
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

  std::unique_ptr<Segment[]> scratch{kOnStack ? nullptr
                                              : new Segment[kKeepsSegments ? kSegments : 1]};

  template <class S>
  KW_FN static void accumulate_segment(S stage, Segment& segment, Vec<V>& total,
                                       const typename P::Args& a, Cursor at) {
    constexpr Combine kOp = P::kCombine[S::value];
    // A copy, since the fields are written meanwhile: in the same object as these, the compiler
    // would read them again for every lane, and not vectorise.
    const Scalars scalars = segment.scalars;
    BlockwiseTotal<kOp, V> sum;
    segment.chunks(at.element, [&](auto lanes, auto& f, int64_t e) KW_INLINE {
      const auto x = P::contribution(stage, f, scalars, a, Cursor{at.row, e});
      if constexpr (decltype(lanes)::value == V) {
        sum.add(x);
      } else {
        sum.add_one(x.lanes[0]);
      }
    });
    accumulate<kOp, V>(total, sum.all());
  }

  // Stages I up to End for N segments side by side: the long chains of one (a sum across lanes, a
  // square root, a division) run while the processor works on the others.
  template <int I, int End, int N>
  KW_FN static void segment_stages(Segment* segments, const typename P::Args& a,
                                   const Cursor (&at)[N]) {
    if constexpr (I < End) {
      constexpr Combine kOp = P::kCombine[I];
      Vec<V> totals[N];
      for (int k = 0; k < N; ++k) {
        totals[k] = identities<kOp, V>();
        accumulate_segment(Stage<I>{}, segments[k], totals[k], a, at[k]);
      }
      for (int k = 0; k < N; ++k) {
        const Vec<1> total{{combine_lanes<kOp, V>(totals[k])}};
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
  template <int I, int N>
  KW_FN void walk(Segment* segments, Vec<V>& row_total, const typename P::Args& a, int64_t row,
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
    constexpr Combine kOp = P::kCombine[kEnd < P::kStages ? kEnd : 0];
    Vec<V> row_total = identities<kOp, V>();
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
      const Vec<1> total{{combine_lanes<kOp, V>(row_total)}};
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

// ---- launches.hpp -------------------------------------------------------------------------------
// Kernels in a row, from a table of numbers: Python crosses into C once for all of them.
//
// The table is {launches, bases, alignment, most operands, most sizes}, then for each launch
// {function, operands, sizes}, a base and a number of bytes for each operand, and the sizes.

namespace kw {

constexpr int64_t kUnaligned = -1;

// The error of the launch that failed, with its number in the upper half. Two numbers are handed to
// every launch behind its sizes: the device and the stream, or the number of threads and nothing.
inline int64_t run_launches(const int64_t* table, char* const* bases, int64_t first,
                            int64_t second) {
  using Launcher = int (*)(void* const*, const int64_t*);
  const int64_t launches = table[0];
  for (int64_t i = 0; i < table[1]; ++i) {
    if (reinterpret_cast<intptr_t>(bases[i]) % table[2] != 0) return kUnaligned;
  }
  std::vector<void*> tensors(static_cast<size_t>(table[3]));
  std::vector<int64_t> numbers(static_cast<size_t>(table[4]) + 2);
  const int64_t* at = table + 5;
  for (int64_t launch = 0; launch < launches; ++launch) {
    const auto function = reinterpret_cast<Launcher>(at[0]);
    const auto operands = static_cast<size_t>(at[1]);
    const auto sizes = static_cast<size_t>(at[2]);
    at += 3;
    for (size_t i = 0; i < operands; ++i, at += 2) tensors[i] = bases[at[0]] + at[1];
    for (size_t i = 0; i < sizes; ++i) numbers[i] = *at++;
    numbers[sizes] = first;
    numbers[sizes + 1] = second;
    const int code = function(tensors.data(), numbers.data());
    if (code != 0) return (launch << 32) | code;
  }
  return 0;
}

}  // namespace kw
"""


# --------------------------------------------------------------------------------------------------
# 7. At import: the programs are built, or found as built before.
# --------------------------------------------------------------------------------------------------


_KW_KERNEL_LIBRARY = _kw_Library(_kw_build(), on_gpu=False)
_KW_FUSION = _kw_together()
