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
        results = None
        if not torch.compiler.is_dynamo_compiling():
            results = _KW_FUSION.again(self, x)
        if results is None:
            memo, kind = _KW_FUSION.look(self, x)
            if kind.cause is not None:
                memo.fall_back(kind.cause)
                return Model.forward(_KW_FUSION.plain(self), x)
            results = _KW_FUSION.run(memo, kind, (x,))
        batch = x.shape[0]
        (group_norm,) = results
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
        if not _kw_is_ordinary(tensor):
            return "a parameter is not a plain tensor"
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
        model=Model,
        blank=_kw_blank,
        state=_kw_state,
        baked_in=_KW_BAKED_IN,
        inputs=1,
        given=(0,),
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
# 4. The runtime: it builds and launches the programs.
# --------------------------------------------------------------------------------------------------


import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
import warnings

import torch
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import module_from_spec
from importlib.util import spec_from_file_location
from torch.utils.cpp_extension import load
from torch.utils.cpp_extension import load_inline


# GCC would take half of a register of AVX-512: 2.0 ms and not 1.4 for 2.5 M times SiLU.
_KW_NATIVE = {
    "aarch64": ["-mcpu=native"],
    "x86_64": ["-march=native", "-mprefer-vector-width=512"],
}.get(platform.machine(), ["-march=native"])
_KW_EXACT = ["-fno-math-errno", "-fno-trapping-math"]  # not -ffast-math: NaN and infinity must work

def _kw_machine():
    """The instruction set that -march=native stands for here."""
    if not os.path.exists("/proc/cpuinfo"):
        return [platform.processor()]
    with open("/proc/cpuinfo") as info:
        return sorted({line for line in info if line.lower().startswith(("flags", "features"))})


def _kw_units():
    """The kernels as texts that compile side by side: costly ones apart, cheap ones together."""
    shared, *parts = re.split(r"^// ---- A unit .* Cost: (\d+)\n", _KW_PROGRAMS, flags=re.MULTILINE)
    costs, texts = [int(cost) for cost in parts[::2]], parts[1::2]
    count = min(os.cpu_count() or 1, -(-sum(costs) // max(*costs, 4)))
    units, loads = [[] for _ in range(count)], [0] * count
    for i in sorted(range(len(texts)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        units[least].append(i)
        loads[least] += costs[i]
    return [_KW_HEADERS + shared + "".join(texts[i] for i in sorted(unit)) for unit in units]


def _kw_build():
    """The kernels, and what calls them, compiled side by side; or loaded, if they were before.

    And the node as a future, since it may still be compiled then.
    """
    flags = dict(
        extra_cflags=["-std=c++17", "-O3", "-fopenmp", *_KW_NATIVE, *_KW_EXACT],
        extra_ldflags=["-fopenmp"],
        is_python_module=False,  # plain C functions: no binding to compile
    )
    flags_of_calls = dict(extra_cflags=["-O1"])
    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(_kw_built_calls, flags_of_calls)
        kernels = ctypes.CDLL(_kw_built("kw_model", "cpp", _kw_units(), flags))
        calls = calls.result()
    return kernels, calls, _kw_add_node(calls) if calls else None


def _kw_built_calls(flags):
    """What calls the kernels; None without the headers of Python, which then does so itself."""
    headers = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(headers, "Python.h")):
        return None
    return _kw_built("kw_calls", "cpp", [_KW_CALLS], flags)


def _kw_add_node(calls):
    """What makes a call a node of autograd's graph; until it is there, a function of Python does.

    Headers of autograd take longer to compile than all kernels of a model, so nobody waits for
    them but an interpreter that ends; and the others, which are waited for, are compiled before.
    """
    flags = dict(extra_cflags=["-O1"], is_python_module=False)
    path = _kw_place("kw_node", [_KW_NODE], flags)

    def add():
        library = ctypes.CDLL(_kw_made(path, "cpp", [_KW_NODE], flags))
        calls.record(ctypes.cast(library.kw_record, ctypes.c_void_p).value)

    pool = ThreadPoolExecutor(1)
    node = pool.submit(add)
    pool.shutdown(wait=False)
    node.add_done_callback(_kw_tell)
    if _kw_is_whole(path):
        node.exception()  # is known at once: it is there from the first call on
    return node


def _kw_tell(node):
    """Say why there is no node, if there is none."""
    if node.exception():
        why = str(node.exception()).partition("\n")[0]
        warnings.warn(f"Calls with gradients are some microseconds slower than usual: {why}")


def _kw_built(stem, ending, units, flags):
    """A library from these texts: its path, or the Python module that it is."""
    return _kw_made(_kw_place(stem, units, flags), ending, units, flags)


def _kw_place(stem, units, flags):
    """The path of a library, in a folder that is named by all that it depends on."""
    text = [*units, repr(flags), torch.__version__, sys.version, platform.platform()]
    text += [os.environ.get(name, "") for name in _KW_NAMED] + _kw_machine()
    text += [_kw_identity(os.environ.get("CXX") or "c++"), _kw_identity("nvcc")]
    name = stem + "_" + hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]
    return os.path.join(os.path.abspath(_kw_cache()), name, name + ".so")


def _kw_made(path, ending, units, flags):
    """What is at this place, built if it is not there yet."""
    folder = os.path.dirname(path)
    name = os.path.basename(folder)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, "building"), "w") as guard, ExitStack() as after:
        fcntl.flock(guard, fcntl.LOCK_EX)
        after.callback(fcntl.flock, guard, fcntl.LOCK_UN)  # a forked child has this file open too
        if not _kw_is_whole(path):
            return _kw_compile(name, path, ending, units, flags)
    if not flags.get("is_python_module", True):
        return path
    found = spec_from_file_location(name, path)
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


# What changes a build without being an argument of it.
_KW_NAMED = ("CXX", "CC", "CUDA_HOME", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH")


def _kw_identity(program):
    """Which program a name stands for today: another version is another file."""
    path = shutil.which(program)
    if path is None:
        return program
    found = os.stat(path)
    return f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}"


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


def _kw_is_whole(path):
    """Whether a library is there as it was built: no half of one, as a full disk leaves it."""
    if not (os.path.exists(path) and os.path.exists(path + ".sha256")):
        return False
    with open(path, "rb") as library, open(path + ".sha256") as digest:
        return digest.read() == hashlib.sha256(library.read()).hexdigest()


def _kw_compile(name, path, ending, units, flags):
    """Build in an empty folder, since nobody knows what a killed build left in this one.

    torch writes the path of that folder into a build file, where `$` and quotes have a meaning, and
    leaves a lock behind when it is killed: so the folder is new, and has a plain name. It is no
    TemporaryDirectory, which a child that is forked meanwhile would remove when it ends.
    """
    with ExitStack() as after:
        place = tempfile.mkdtemp(prefix="kw_")
        after.callback(shutil.rmtree, place)
        flags = dict(flags, name=name, build_directory=place)
        if len(units) > 1:
            sources = [_kw_write(place, f"unit_{i}.{ending}", unit) for i, unit in enumerate(units)]
            made = load(sources=sources, **flags)
        else:
            sources = {"cuda_sources" if ending == "cu" else "cpp_sources": units}
            made = load_inline(**{"cpp_sources": []} | sources, no_implicit_headers=True, **flags)
        library = os.path.join(place, name + ".so")
        if not os.path.exists(library):
            return made
        with open(library, "rb") as file:
            content = file.read()
        _kw_put(path, content)
        _kw_put(path + ".sha256", hashlib.sha256(content).hexdigest().encode())
    return made if flags.get("is_python_module", True) else path


def _kw_put(path, content):
    """A file that appears whole or not at all."""
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.replace(path + ".new", path)


def _kw_write(folder, name, unit):
    """A unit as a file, for the compiler."""
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(unit)
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

    @staticmethod
    def holds():
        """Whether torch is set to it already."""
        return (
            torch._C._get_float32_matmul_precision() == _KW_MATMUL_PRECISION
            and torch._C._get_cudnn_allow_tf32() is _KW_CONV_TF32
        )


# --------------------------------------------------------------------------------------------------
# 5. The library, in Python: what this file uses of embedded/ of kernelwright 0.1.0
# for cpu. Identical to the package; `kernelwright check` on this file proves it.
# sha256 8a06f933d096a9642e0a0d33f8f98c5778cd68662a1a1d4e8fdcf6f32dd5736b
# --------------------------------------------------------------------------------------------------


import collections
import contextlib
import ctypes
import enum
import functools
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


class _kw_Recorded(torch.autograd.Function):
    """The kernels as one node of autograd's graph."""

    @staticmethod
    def forward(ctx, call, *tensors):
        memo, sequence, _, frozen, *_ = ctx.call = call
        fusion = memo.fusion
        if fusion.random:
            ctx.random = _kw_random_state(tensors[0].device)
        ctx.save_for_backward(*_kw_kept(tensors, fusion))
        ctx.set_materialize_grads(False)
        results = sequence(tensors, frozen)
        results = _kw_own(results, fusion.alone) if fusion.alone else results
        apart = fusion.apart(ctx.needs_input_grad)
        if apart:
            ctx.mark_non_differentiable(*[results[i] for i in apart])
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        wanted = ctx.needs_input_grad[1:]
        memo, _, constants, *_ = ctx.call
        call = (memo.fusion, memo.module, constants, getattr(ctx, "random", None))
        return None, *_kw_gradients(*call, ctx.saved_tensors, wanted, cotangents)


def _kw_recording(function):
    """apply() without its search for wrappers of torch.func, which are known not to be here."""
    return super(torch.autograd.Function, function).apply


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
_KW_END = object()


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


class _kw_Picture:
    """Whether containers hold what they held, and modules are of the classes that they were of.

    Files with kernels mostly have this in C++ (calls.cpp).
    """

    def __init__(self, held, modules):
        self.held, self.modules = held, modules
        self.seen = self.look()

    def look(self):
        """All that is held, in order, a mark behind each container, and the classes."""
        found = []
        for held in self.held:
            found += (*held, *held.values(), _KW_END) if isinstance(held, dict) else (*held, _KW_END)
        return [*found, *map(type, self.modules)]

    def __call__(self):
        now = self.look()
        return len(now) == len(self.seen) and all(map(operator.is_, now, self.seen))


def _kw_unknown(*call):
    """No call is known: there is no calls.cpp here, or some state lies outside of modules."""


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
        everywhere = vars(nn.modules.module)
        hooks = [everywhere[f"_global{name}"] for name in _KW_HOOKS]
        if any(hooks) and self.cause is None:
            self.cause = "there are global hooks"
        held, modules = (*hooks, *_kw_containers(self.module, set())), (*self.module.modules(),)
        calls = self.fusion.kernels and self.fusion.kernels.calls
        self.picture = (calls.Picture if calls else _kw_Picture)(held, modules)
        self.known = _kw_unknown
        if calls and self.fusion.given is not None and not self.fusion.globals:
            parts = (self.namespace, self.picture, self.fusion.switch, _kw_is_recomputing)
            self.known = calls.Known(*parts)

    def is_current(self, module):
        """Whether this is the record of that very module, and nothing was touched since."""
        return self.namespace is vars(module) and self.picture()

    def keep(self, frozen):
        """Halves of weights from here on: of those that are frozen, or of none."""
        self.frozen = frozen
        if self.known is not _kw_unknown:
            self.known.forget()

    def fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in self.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        self.fallbacks[cause] += 1


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
        """The results, and what buffers become: tracers want operators that change nothing."""
        rewritten = self.fusion.rewritten
        given = [t.clone() if i in rewritten else t for i, t in enumerate(tensors)]
        results = self.fusion.steps(_kw_Unfrozen, given).run(_kw_Unfrozen, given)
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


# Kernels in a row, as a table of numbers; and steps run by Python, where C++ does not run them.

_KW_ALIGNMENT = 16
_KW_LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _kw_Library:
    """The compiled kernels of a file, and `calls`: what starts them (calls.cpp), or None.

    `node` is the future that brings node.cpp, or None; only who measures waits for it. Each of
    `watchers` is told the names of kernels before they start.
    """

    def __init__(self, compiled, calls, node, on_gpu):
        self.compiled, self.calls, self.node, self.on_gpu = compiled, calls, node, on_gpu
        self.watchers = []
        self.sequence = calls.Sequence if calls else _kw_Sequence

    def launches(self, device, launches, bases):
        """Kernels one after another as a step; `bases` are the values that they work on.

        A launch is a name, its operands and its sizes; an operand is the position of a base, and
        the bytes from there on. Nothing waits for a GPU: kernels run on torch's current stream, or
        with as many threads as torch itself uses.
        """
        found = [len(launches), *(max(len(launch[i]) for launch in launches) for i in (1, 2))]
        for name, operands, numbers in launches:
            address = ctypes.cast(self.compiled[name], ctypes.c_void_p).value
            found += [address, len(operands), len(numbers)]
            found += [number for operand in operands for number in operand]
            found += numbers
        table = struct.pack(f"{len(found)}q", *found)
        place = device.index if self.on_gpu else None
        names = tuple(name for name, _, _ in launches)
        return "launches", (table, tuple(bases), place, names, self.watchers, self.failed)

    def launch(self, name, device, tensors, *sizes):
        """A single kernel at once."""
        places = range(len(tensors))
        step = self.launches(device, [(name, [(i, 0) for i in places], sizes)], places)
        self.sequence(len(tensors), (), ((*step, ()),), (), ())(tuple(tensors), ())

    def failed(self, names, code):
        """Raise the error that a launch came back with."""
        self.compiled.cuda_error_text.restype = ctypes.c_char_p
        text = self.compiled.cuda_error_text(code & 0xFFFFFFFF).decode()
        raise RuntimeError(f"The launch of {names[code >> 32]} failed: {text}.")


class _kw_Sequence:
    """Steps one after another; as in calls.cpp, which needs kernels and the headers of Python."""

    def __init__(self, count, kept, steps, results, written):
        self.count, self.kept, self.steps, self.results = count, kept, steps, results
        self.written = written

    def __call__(self, tensors, frozen):
        values = [*tensors, *[None] * (self.count - len(tensors))]
        for i, tensor in zip(self.kept, frozen, strict=True):
            values[i] = tensor
        lent = []
        for i in self.written:
            ready = _kw_as_kernels_need(values[i])
            if ready is values[i]:
                torch.autograd.graph.increment_version(ready)
            else:
                lent.append((values[i], ready))
                values[i] = ready
        for name, row, done in self.steps:
            if name == "empty":
                values[row[0]] = row[-1]()
            elif name == "call":
                function, given, rows, index = row
                pairs = [(values[i], part) for i, part in zip(given, rows, strict=True)]
                values[index] = function(*[v if part is None else v[part] for v, part in pairs])
            else:
                _kw_start(values, *row)
            for i in done:
                values[i] = None
        with torch.no_grad():
            for buffer, new in lent:
                buffer.copy_(new)
        return tuple([values[i] for i in self.results])


def _kw_as_kernels_need(tensor):
    """Dense memory, aligned on a GPU: the tensor itself, or a copy."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.is_cuda and tensor.data_ptr() % _KW_ALIGNMENT else tensor


def _kw_start(values, table, bases, device, names, watchers, failed):
    """Kernels in a row, on memory as they need it."""
    for watcher in watchers:
        watcher(names)
    tensors = [_kw_as_kernels_need(values[i]) for i in bases]
    last = (torch.get_num_threads(), 0)
    if device is not None:
        last = (device, torch._C._cuda_getCurrentRawStream(device))
    numbers, at = struct.unpack(f"{len(table) // 8}q", table), 3
    for place in range(len(names)):
        address, operands, sizes = numbers[at : at + 3]
        behind = at + 3 + 2 * operands
        pairs = zip(numbers[at + 3 : behind : 2], numbers[at + 4 : behind : 2], strict=True)
        addresses = [tensors[base].data_ptr() + offset for base, offset in pairs]
        at = behind + sizes
        given = (ctypes.c_void_p * operands)(*addresses)
        code = _KW_LAUNCHER(address)(given, (ctypes.c_int64 * (sizes + 2))(*numbers[behind:at], *last))
        if code:
            failed(names, place << 32 | code)


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
    """Memory without values, which some step writes."""

    def __init__(self, value):
        self.value, self.uses = value, (value.index,)

    def step(self, device):
        shape, strides = tuple(self.value.shape), _kw_dense(self.value.shape)
        options = {"dtype": self.value.dtype, "device": device}
        alike = torch.empty(0, **options)

        def by_torch():
            return torch.empty_strided(shape, strides, **options)

        return "empty", (self.value.index, shape, strides, alike, by_torch)


def _kw_dense(shape):
    """The strides of memory without gaps."""
    return tuple(math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape)))


class _kw_Call:
    """A function of tensors, left to torch."""

    def __init__(self, function, given, index):
        self.function, self.given, self.index = function, given, index
        self.uses = (*(v.index for v in given), index)

    def step(self, device):
        places, rows = tuple(v.index for v in self.given), tuple(v.rows for v in self.given)
        return "call", (self.function, places, rows, self.index)


def _kw_stamped(weight):
    """What tells that a weight was changed; a write through `.data` leaves it as it is."""
    return weight.data_ptr(), None if weight.is_inference() else weight._version


class _kw_Steps:
    """One kind of call. While `fused` is recorded, it is given this to say what is to be done."""

    def __init__(self, fusion, memo, tensors):
        self.library, self.precision = fusion.kernels, fusion.precision
        self.device = tensors[0].device
        self.frozen = set(memo.frozen)
        self.written = tuple(fusion.in_place)
        self.given = self.count = len(tensors)
        self.tape, self.launches = [], {}
        self.halves, self.contracts = {}, False
        values = [_kw_Value(i, t.shape, t.dtype) for i, t in enumerate(tensors)]
        self.finish(fusion.fused(self, *values))

    # ---- what fused() says -------------------------------------------------------------------

    def value(self, shape=None, dtype=None):
        self.count += 1
        return _kw_Value(self.count - 1, shape, dtype)

    def empty(self, shape, dtype):
        """Memory without values."""
        value = self.value(shape, dtype)
        self.tape.append(_kw_Empty(value))
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
        self.contracts = True
        return self.call(function, *given)

    def kept(self, target, weight, halves, scales):
        """The halves of a frozen weight, or memory for them, and whether they are frozen."""
        if target not in self.frozen:
            return self.empty(*halves), self.empty(*scales), False
        found = self.value(*halves), self.value(*scales)
        self.halves[target] = (weight.index, *(value.index for value in found))
        return *found, True

    # ---- what is made of it ------------------------------------------------------------------

    def finish(self, results):
        """Temporaries of kernels alone share a workspace; launches in a row become one step."""
        indices = tuple(v.index for v in results)
        handed = {*indices, *(i for s in self.tape if isinstance(s, _kw_Call) for i in s.uses)}
        places, room = self.placed(handed)
        workspace = self.value((room,), torch.uint8)
        steps, row = [(_kw_Empty(workspace).step(self.device), (workspace.index,))] if room else [], []
        for i, step in enumerate(self.tape):
            if i in self.launches:
                row.append(self.launches[i])
            elif not isinstance(step, _kw_Empty) or step.value.index in handed:
                if row and not isinstance(step, _kw_Empty):
                    steps.append(self.in_a_row(row, places, workspace))
                    row = []
                steps.append((step.step(self.device), step.uses))
        if row:
            steps.append(self.in_a_row(row, places, workspace))
        self.steps = self.until_done(steps, indices)
        kept = tuple(i for _, *pair in self.halves.values() for i in pair)
        made = self.library.sequence if self.library else _kw_Sequence
        self.sequence = made(self.count, kept, self.steps, indices, self.written)
        self.bytes, self.tape, self.launches = room, None, None

    def placed(self, handed):
        """Where in the workspace temporaries lie, and how large it is; what is over makes room."""
        last = {v.index: i for i, (_, vs, _) in self.launches.items() for v in vs}
        placed, found = [], {}
        for i, step in enumerate(self.tape):
            index = step.value.index if isinstance(step, _kw_Empty) else None
            if index in last and index not in handed:
                size = -(-max(1, step.value.bytes) // _KW_APART) * _KW_APART
                at = 0
                for start, stop, end in sorted(placed):
                    if end >= i and at + size <= start:
                        break
                    at = max(at, stop) if end >= i else at
                placed.append((at, at + size, last[index]))
                found[index] = at
        return found, max([stop for _, stop, _ in placed], default=0)

    def in_a_row(self, row, places, workspace):
        bases, launches = {}, []
        for name, values, numbers in row:
            operands = []
            for v in values:
                inside = v.index in places
                base, offset = (workspace.index, places[v.index]) if inside else (v.index, 0)
                operands.append((bases.setdefault(base, len(bases)), offset + v.offset))
            launches.append((name, operands, numbers))
        return self.library.launches(self.device, launches, bases), tuple(bases)

    def until_done(self, steps, results):
        """Each step with the values that nobody needs behind it."""
        needed, found = {*range(self.given), *results}, []
        for step, uses in reversed(steps):
            found.append((*step, tuple(i for i in dict.fromkeys(uses) if i not in needed)))
            needed.update(uses)
        return tuple(reversed(found))

    # ---- a call of this kind -----------------------------------------------------------------

    def run(self, memo, tensors):
        """The results, from inputs and state."""
        frozen = self.frozen_halves(memo, tensors)
        return self.precisely(self.sequence, tuple(tensors), frozen)

    def precisely(self, function, *arguments):
        """A function's result at the precision of this file, which torch mostly has."""
        if not self.contracts or self.precision.holds():
            return function(*arguments)
        with self.precision():
            return function(*arguments)

    def frozen_halves(self, memo, tensors):
        """What freeze() has kept of the weights, which must be as they were."""
        found = ()
        for target, (weight, *_) in self.halves.items():
            *halves, stamp = memo.frozen[target]
            if stamp != _kw_stamped(tensors[weight]):
                again = "call freeze() again or unfreeze()"
                raise RuntimeError(f"The weight {target} changed after freeze(); {again}.")
            found += tuple(halves)
        return found


# Which way a call takes: the kernels at once, inside an autograd function, or as an operator.

_KW_LITERALS = (int, bool, str, type(None))
_KW_MOST_KINDS = 128  # of calls that are remembered
_KW_TYPE = operator.attrgetter("dtype", "shape", "device")


class _kw_Kind:
    """What is known of a kind of call: why the kernels cannot take it, or its recorded steps."""

    def __init__(self, cause, types=None):
        self.cause, self.types, self.steps = cause, types, None


class _kw_Fusion:
    """All that the emitted functions of one model are to the code around them.

    `fused(run, *inputs, *state)` says how the results are computed; `original(module, *inputs,
    *constants)` computes the same with the user's own forward; `model` is the user's class, where
    that may matter to it; `outside(state, *arguments)` says why the kernels cannot take a call;
    `state(module)` reads parameters and buffers. Of inputs and state, `rewritten` are the places of
    the buffers that a call changes, `recalled` of those that results depend on, `in_place` of those
    that kernels write. `reaches` gives for each result the tensors that its gradient flows to,
    `blank` empty results for tracers; `flat` gives the values of a call one by one, and `given`
    says which of them the inputs are, where they are; `globals` says that some of the state lies in
    the file, where no memo watches it; `switch` reads what may be set in the file; `alone` gives
    the results that may be views of something inside and share no element with another. Where it
    depends on which tensors ask for gradients how results lie, `asking` and `laid` see to that, or
    `ways` says that every call asks outside().
    """

    alone = ()
    ways = False
    in_place = ()

    def __init__(self, stem, **parts):
        self.__dict__.update(parts)
        self.operator = _kw_Operator(self, stem)
        self.parted, self.kinds, self.recorded = {}, {}, {}
        self.record = _kw_recording(_kw_Recorded)
        self.again = _kw_unknown  # gives the results of a call like one before it, None for any other
        if self.kernels and self.kernels.calls and not self.ways:
            self.again = self.kernels.calls.again

    def register(self, module):
        """Every ModelNew comes by here when it is made."""
        self.operator.modules.add(module)
        vars(module)["_kernelwright"] = None
        return module

    @staticmethod
    def flat(*arguments):
        """Arguments with the values in `*args` and `**kwargs` one by one, for files with these."""
        return arguments

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
            memo.state = self.state(module)
        return memo

    def look(self, module, *arguments):
        """The module's record, and what is known of calls like this one."""
        memo = self.memo(module)
        if memo.cause is not None:
            return memo, _kw_Kind(memo.cause)
        values = self.flat(*arguments)
        key = None if self.ways or _kw_is_watched(self.device) else self.key(memo, values)
        if key is None:
            return memo, _kw_Kind(self.outside(memo.state, *arguments))
        types = [*map(_KW_TYPE, memo.state), *map(_kw_is_lazy, memo.state)]
        if self.random:
            types += [tensor.stride() for tensor in memo.state]
        kind = self.kinds.get(key)
        if kind is None or kind.types != types:
            kind = _kw_Kind(self.outside(memo.state, *arguments), types)
            if kind.cause is None:
                _kw_remember(self.kinds, key, kind)
        if kind.cause is None:
            self.learn(memo, kind, values)
        return memo, kind

    def learn(self, memo, kind, arguments):
        """From here on, again() knows calls like this one."""
        state = memo.state
        if memo.known is _kw_unknown or not all(map(_kw_is_dense, state)):
            return
        inputs = [arguments[i] for i in self.given]
        if kind.steps is None:
            kind.steps = self.steps(memo, (*inputs, *state))
        steps = kind.steps
        frozen = steps.frozen_halves(memo, (*inputs, *state))
        weights = tuple(weight - self.inputs for weight, *_ in steps.halves.values())
        precise = self.precision.holds if steps.contracts else None
        kept = (tuple(state), self.switch(), frozen, weights, precise)
        recorded = (self.record, (memo, steps.sequence, (), frozen))
        node = (None, (), ())
        # Others need Python around the kernels: generators, copies of buffers, aliases.
        if not (self.random or self.recalled or self.alone):
            backward = functools.partial(_kw_gradients, self, memo.module, (), None)
            node = (backward, tuple(self.reaches), tuple(self.rewritten))
        memo.known.add(arguments, self.given, *kept, steps.sequence, *recorded, *node)

    def key(self, memo, arguments):
        """All that outside() asks of the arguments; None where that cannot be told in short."""
        found = [*memo.frozen, self.switch()]
        for value in arguments:
            kind = type(value)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                if value.layout is not torch.strided or _kw_is_lazy(value):
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
                return self.traced(tensors)
            kind.steps = self.steps(memo, tensors)
        if torch.is_grad_enabled() and True in [t.requires_grad for t in tensors]:
            frozen = kind.steps.frozen_halves(memo, tensors)
            call = (memo, kind.steps.sequence, constants, frozen)
            return kind.steps.precisely(self.record, call, *tensors)
        return kind.steps.run(memo, tensors)

    def traced(self, tensors):
        """The results of a call that is traced.

        The operator hands back what buffers become, to autograd with a history as all its results.
        """
        results = self.operator.call(list(tensors))
        count = len(self.reaches)
        for i, new in zip(self.rewritten, results[count:], strict=True):
            tensors[i].copy_(new.detach())
        return results[:count]

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


def _kw_is_dense(tensor):
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _kw_is_ordinary(value):
    """Whether this is a tensor whose elements are what its memory holds, or a fake one of such."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, FakeTensor):
        return False
    if value.layout is not torch.strided or value.is_nested:
        return False
    return torch.compiler.is_compiling() or not _kw_is_lazy(value)  # an operator is given resolved ones


def _kw_is_lazy(tensor):
    """Whether torch has put off to conjugate or to negate what memory holds, or to fill it."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


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


# What calls the kernels, in C++.

_KW_CALLS = r"""
// A call like one before, without Python in between: is it one, memory, launches, results.
//
// Three types and two functions, which Python uses (memo.py, steps.py, fusion.py):
//
//   Picture    whether everything that hangs on a module is as it was
//   Sequence   the steps of a call, on tensors: memory, kernels in a row, functions of Python
//   Known      the results of a call like one before, or None
//   again      the same, asked of what a module remembers
//   record     from here on, calls are recorded by this function of node.cpp
//
// Headers of torch's Python binding take ten seconds to compile, and these take one; so where in a
// Python object its tensor stands is found out by asking some for their attribute `_cdata`, and one
// function is declared here. Headers of autograd take seven: what needs them is node.cpp, a library
// that is there some time later, or never.
#include <Python.h>
#include <structmember.h>

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#ifdef KW_CUDA
#include <ATen/cuda/EmptyTensor.h>
#endif

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace {

// ---- Python's objects ---------------------------------------------------------------------------

// A reference that is given back at the end.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  static Ref to(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

struct PythonError {};  // Python's own error is set

Ref checked(PyObject* owned) {
  if (owned == nullptr) throw PythonError();
  return Ref(owned);
}

PyObject* item(PyObject* tuple, Py_ssize_t i) {
  PyObject* found = PyTuple_GetItem(tuple, i);
  if (found == nullptr) throw PythonError();
  return found;
}

int64_t number(PyObject* object) {
  const int64_t found = PyLong_AsLongLong(object);
  if (found == -1 && PyErr_Occurred() != nullptr) throw PythonError();
  return found;
}

std::vector<int64_t> numbers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) found.push_back(number(item(tuple, i)));
  return found;
}

Ref called(PyObject* function) {
  return checked(PyObject_CallNoArgs(function));
}

bool is_true(PyObject* object) {
  const int found = PyObject_IsTrue(object);
  if (found < 0) throw PythonError();
  return found != 0;
}

// A type of Python around a C++ body. The body names what it holds to the garbage collector: a
// module holds its Picture, and a Picture the module.
template <class Body>
struct Object {
  PyObject_HEAD vectorcallfunc vectorcall;
  Body* body;

  static Body& of(PyObject* self) { return *reinterpret_cast<Object*>(self)->body; }

  // What throws may be a hook of Python's inside torch, and has said why.
  static void say(const char* why) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, why);
  }

  template <class Function>
  static PyObject* guarded(const Function& function) {
    try {
      return function();
    } catch (const PythonError&) {
    } catch (const c10::Error& error) {
      say(error.what_without_backtrace());
    } catch (const std::exception& error) {
      say(error.what());
    }
    return nullptr;
  }

  static PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&] {
      auto body = std::make_unique<Body>(args);
      Ref self = checked(type->tp_alloc(type, 0));
      auto* object = reinterpret_cast<Object*>(self.get());
      object->vectorcall = call;
      object->body = body.release();
      return self.release();
    });
  }

  static PyObject* call(PyObject* self, PyObject* const* args, size_t count, PyObject*) {
    return guarded([&] { return of(self).call(args, PyVectorcall_NARGS(count)); });
  }

  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    Body* body = reinterpret_cast<Object*>(self)->body;
    return body == nullptr ? 0 : body->visit(visit, arg);
  }

  static int clear(PyObject* self) {
    Body* body = reinterpret_cast<Object*>(self)->body;
    if (body != nullptr) body->release();
    return 0;
  }

  static void dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<Object*>(self)->body;
    type->tp_free(self);
    Py_DECREF(type);
  }

  static Ref type(const char* name, PyMethodDef* methods) {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(Object, vectorcall), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                           {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                           {Py_tp_members, members},
                           {Py_tp_methods, methods},
                           {0, nullptr}};
    PyType_Spec spec{name, sizeof(Object), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
    return checked(PyType_FromSpec(&spec));
  }
};

// ---- torch --------------------------------------------------------------------------------------

// What is asked of torch in every call, looked up once.
struct Torch {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  PyGetSetDef* address = nullptr;  // of a tensor's TensorImpl
  Py_ssize_t offset = 0;           // of that address in a Python object, if it is known
  PyObject* is_filling = nullptr;  // whether fresh memory may have to be filled
  PyObject* threads = nullptr;
  PyObject* stream = nullptr;
  PyObject* forward_mode = nullptr;  // the names of torch.autograd.forward_ad
  PyObject* level = nullptr;
  PyObject* no_level = nullptr;
  PyObject* compiler = nullptr;  // the names of torch.compiler
  PyObject* is_compiling = nullptr;
  PyObject* memo = nullptr;  // names of what a module remembers
  PyObject* known = nullptr;
} torch;

PyObject* looked_up(const char* module, const char* name) {
  const Ref found = checked(PyImport_ImportModule(module));
  return checked(PyObject_GetAttrString(found.get(), name)).release();
}

c10::TensorImpl* told_address(PyObject* tensor) {
  const Ref found = checked(torch.address->get(tensor, torch.address->closure));
  return static_cast<c10::TensorImpl*>(PyLong_AsVoidPtr(found.get()));
}

constexpr Py_ssize_t kHead = sizeof(PyObject);

template <class Word>
Word word_at(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<const Word*>(reinterpret_cast<const char*>(object) + offset);
}

// The first word behind an object's head is its tensor; in earlier releases of torch the second is,
// and the first says whether the object merely borrows it. 0 if it is neither.
Py_ssize_t offset_of_address() {
  const Ref tensor = called(reinterpret_cast<PyObject*>(torch.tensor));
  const Ref parameter = called(reinterpret_cast<PyObject*>(torch.parameter));
  for (const Py_ssize_t offset : {kHead, kHead + Py_ssize_t{sizeof(void*)}}) {
    const auto is_there = [&](PyObject* object) {
      return word_at<c10::TensorImpl*>(object, offset) == told_address(object);
    };
    if (is_there(tensor.get()) && is_there(parameter.get())) return offset;
  }
  return 0;
}

void look_up_torch() {
  torch.tensor = reinterpret_cast<PyTypeObject*>(looked_up("torch", "Tensor"));
  torch.parameter = reinterpret_cast<PyTypeObject*>(looked_up("torch.nn", "Parameter"));
  const Ref base(looked_up("torch._C", "TensorBase"));
  PyObject* address = checked(PyObject_GetAttrString(base.get(), "_cdata")).release();
  if (!Py_IS_TYPE(address, &PyGetSetDescr_Type)) {
    PyErr_SetString(PyExc_ImportError, "Tensors of this torch do not tell their address.");
    throw PythonError();
  }
  torch.address = reinterpret_cast<PyGetSetDescrObject*>(address)->d_getset;
  torch.offset = offset_of_address();
  torch.is_filling = looked_up("torch._C", "_get_deterministic_algorithms");
  torch.threads = looked_up("torch._C", "get_num_threads");
#ifdef KW_CUDA
  torch.stream = looked_up("torch._C", "_cuda_getCurrentRawStream");
#endif
  torch.forward_mode = looked_up("torch.autograd.forward_ad", "__dict__");
  torch.level = checked(PyUnicode_InternFromString("_current_level")).release();
  torch.no_level = checked(PyLong_FromLong(-1)).release();
  torch.compiler = looked_up("torch.compiler", "__dict__");
  torch.is_compiling = checked(PyUnicode_InternFromString("_is_compiling_flag")).release();
  torch.memo = checked(PyUnicode_InternFromString("_kernelwright")).release();
  torch.known = checked(PyUnicode_InternFromString("known")).release();
}

bool is_tensor(PyObject* object) {
  return Py_IS_TYPE(object, torch.tensor) || Py_IS_TYPE(object, torch.parameter);
}

c10::TensorImpl& tensor_of(PyObject* object) {
  if (is_tensor(object) && torch.offset != 0) {
    const bool borrows = torch.offset != kHead && word_at<bool>(object, kHead);
    if (!borrows) return *word_at<c10::TensorImpl*>(object, torch.offset);
  }
  if (!PyObject_TypeCheck(object, torch.tensor)) {
    PyErr_SetString(PyExc_TypeError, "A kernel was given something that is no tensor.");
    throw PythonError();
  }
  return *told_address(object);
}

// What a tensor is, but for its values, its place in memory and its gradient.
class Likeness {
 public:
  explicit Likeness(const c10::TensorImpl& tensor)
      : keys_(tensor.key_set()),
        dtype_(tensor.dtype()),
        device_(tensor.device()),
        sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()) {}

  bool fits(const c10::TensorImpl& tensor) const {
    return tensor.key_set() == keys_ && tensor.dtype() == dtype_ && tensor.device() == device_ &&
           tensor.sizes() == sizes_ && tensor.strides() == strides_;
  }

 private:
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
};

// ---- a picture of a module ----------------------------------------------------------------------

// A number that is another one after every change of a dict; 0 where there is none.
uint64_t version_of(PyObject* container) {
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  if (PyDict_Check(container)) return reinterpret_cast<PyDictObject*>(container)->ma_version_tag;
#pragma GCC diagnostic pop
#endif
  return 0;
}

// Picture(containers, modules)() is true as long as the containers hold the very same objects in
// the same order, under the same keys, and the modules are of the same classes. A dict that was not
// changed at all since it was last looked at is not looked at again.
class Picture {
 public:
  explicit Picture(PyObject* args) {
    PyObject* containers = item(args, 0);
    PyObject* modules = item(args, 1);
    for (Py_ssize_t i = 0; i < PyTuple_Size(containers); ++i) {
      PyObject* container = item(containers, i);
      const size_t begin = seen_.size();
      each(container, [&](PyObject* object) {
        seen_.push_back(Ref::to(object));
        return true;
      });
      containers_.push_back({Ref::to(container), begin, seen_.size(), version_of(container)});
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(modules); ++i) {
      PyObject* module = item(modules, i);
      modules_.push_back(Ref::to(module));
      classes_.push_back(Ref::to(reinterpret_cast<PyObject*>(Py_TYPE(module))));
    }
  }

  bool holds() {
    for (Container& container : containers_) {
      const uint64_t version = version_of(container.object.get());
      if (version != 0 && version == container.version) continue;
      if (!is_same(container)) return false;
      container.version = version;
    }
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(modules_[i].get())) != classes_[i].get())
        return false;
    }
    return true;
  }

  PyObject* call(PyObject* const*, Py_ssize_t) { return PyBool_FromLong(holds()); }

  int visit(visitproc visit, void* arg) const {
    for (const Container& container : containers_) Py_VISIT(container.object.get());
    for (const Ref& object : seen_) Py_VISIT(object.get());
    for (const Ref& object : modules_) Py_VISIT(object.get());
    for (const Ref& object : classes_) Py_VISIT(object.get());
    return 0;
  }

  void release() {
    const auto dropped = std::make_tuple(std::move(containers_), std::move(seen_),
                                         std::move(modules_), std::move(classes_));
  }

 private:
  struct Container {
    Ref object;
    size_t begin;  // of what it held, in seen_
    size_t end;
    uint64_t version;  // when it was last found the same
  };

  bool is_same(const Container& container) const {
    size_t next = container.begin;
    const bool same = each(container.object.get(), [&](PyObject* object) {
      return next != container.end && seen_[next++].get() == object;
    });
    return same && next == container.end;
  }

  // Whether the function says yes to all that a container holds.
  template <class Function>
  static bool each(PyObject* container, const Function& function) {
    if (PyDict_Check(container)) {
      PyObject *key, *value;
      for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value) != 0;) {
        if (!function(key) || !function(value)) return false;
      }
      return true;
    }
    const Ref iterator = checked(PyObject_GetIter(container));
    while (const Ref object{PyIter_Next(iterator.get())}) {
      if (!function(object.get())) return false;
    }
    if (PyErr_Occurred() != nullptr) throw PythonError();
    return true;
  }

  std::vector<Container> containers_;
  std::vector<Ref> seen_;
  std::vector<Ref> modules_;
  std::vector<Ref> classes_;
};

// ---- the steps of a call ------------------------------------------------------------------------

constexpr int64_t kAlignment = 16;

// Runs the launches of a table: their number, the most operands and the most sizes, then for each
// launch its function, how many operands and sizes, a base and a number of bytes for each operand,
// and the sizes. Two numbers are handed to each behind its sizes: the device and the stream, or the
// number of threads and nothing. The error of a launch comes back with its place in the upper half.
int64_t run_launches(const int64_t* table, char* const* bases, int64_t first, int64_t second) {
  using Launcher = int (*)(void* const*, const int64_t*);
  const int64_t launches = table[0];
  c10::SmallVector<void*, 16> tensors(static_cast<size_t>(table[1]));
  c10::SmallVector<int64_t, 16> sizes(static_cast<size_t>(table[2]) + 2);
  const int64_t* at = table + 3;
  for (int64_t launch = 0; launch < launches; ++launch) {
    const auto function = reinterpret_cast<Launcher>(at[0]);
    const auto operands = static_cast<size_t>(at[1]);
    const auto count = static_cast<size_t>(at[2]);
    at += 3;
    for (size_t i = 0; i < operands; ++i, at += 2) tensors[i] = bases[at[0]] + at[1];
    for (size_t i = 0; i < count; ++i) sizes[i] = *at++;
    sizes[count] = first;
    sizes[count + 1] = second;
    const int code = function(tensors.data(), sizes.data());
    if (code != 0) return (launch << 32) | code;
  }
  return 0;
}

// A tensor of a call. What only kernels touch never becomes an object of Python.
class Value {
 public:
  Value() = default;
  explicit Value(Ref object) : object_(std::move(object)) {}
  explicit Value(at::TensorBase tensor) : tensor_(std::move(tensor)) {}

  PyObject* object() {
    if (!object_) object_ = checked(THPVariable_Wrap(tensor_));
    return object_.get();
  }

  c10::TensorImpl& tensor() const {
    return tensor_.defined() ? *tensor_.unsafeGetTensorImpl() : tensor_of(object_.get());
  }

 private:
  Ref object_;
  at::TensorBase tensor_;
};

using Values = c10::SmallVector<Value, 16>;

// Kernels work on dense memory, aligned on a GPU. A copy that is, or nothing where the tensor is.
Ref copy_for_kernels(Value& value) {
  const auto is_aligned = [](const c10::TensorImpl& tensor) {
    return !tensor.device().is_cuda() ||
           reinterpret_cast<intptr_t>(tensor.data()) % kAlignment == 0;
  };
  Ref copy;
  if (!value.tensor().is_contiguous()) {
    copy = checked(PyObject_CallMethod(value.object(), "contiguous", nullptr));
  }
  if (!is_aligned(copy ? tensor_of(copy.get()) : value.tensor())) {
    PyObject* from = copy ? copy.get() : value.object();
    copy = checked(PyObject_CallMethod(from, "clone", nullptr));
  }
  return copy;
}

class Step {
 public:
  explicit Step(PyObject* done) : done_(numbers(done)) {}
  virtual ~Step() = default;
  virtual void run(Values& values) const = 0;
  virtual int visit(visitproc visit, void* arg) const = 0;

  // What nobody needs behind this step is given back.
  void finish(Values& values) const {
    for (const int64_t i : done_) values[static_cast<size_t>(i)] = Value();
  }

 private:
  std::vector<int64_t> done_;
};

// Memory without values: (index, sizes, strides, a tensor like it, the same by torch).
class Empty : public Step {
 public:
  Empty(PyObject* row, PyObject* done)
      : Step(done),
        index_(static_cast<size_t>(number(item(row, 0)))),
        sizes_(numbers(item(row, 1))),
        strides_(numbers(item(row, 2))),
        dtype_(tensor_of(item(row, 3)).dtype().toScalarType()),
        device_(tensor_of(item(row, 3)).device()),
        by_torch_(Ref::to(item(row, 4))) {}

  void run(Values& values) const override { values[index_] = made(); }

  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(by_torch_.get());
    return 0;
  }

 private:
  Value made() const {
    if (!is_true(called(torch.is_filling).get())) {
      try {
        return Value(allocated());
      } catch (const std::exception&) {  // torch says below what was wrong
      }
    }
    return Value(called(by_torch_.get()));
  }

  at::TensorBase allocated() const {
#ifdef KW_CUDA
    if (device_.is_cuda()) return at::detail::empty_strided_cuda(sizes_, strides_, dtype_, device_);
#endif
    return at::detail::empty_strided_cpu(sizes_, strides_, dtype_);
  }

  size_t index_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  c10::ScalarType dtype_;
  c10::Device device_;
  Ref by_torch_;
};

// Kernels in a row: (table, the values that they work on, device or None, names, what is told the
// names before they start, what tells an error).
class Launches : public Step {
 public:
  Launches(PyObject* row, PyObject* done)
      : Step(done),
        table_(Ref::to(item(row, 0))),
        bases_(numbers(item(row, 1))),
        device_(Ref::to(item(row, 2))),
        names_(Ref::to(item(row, 3))),
        watchers_(Ref::to(item(row, 4))),
        failed_(Ref::to(item(row, 5))) {}

  void run(Values& values) const override {
    for (Py_ssize_t i = 0; i < PyList_Size(watchers_.get()); ++i) {
      checked(PyObject_CallOneArg(PyList_GetItem(watchers_.get(), i), names_.get()));
    }
    c10::SmallVector<char*, 32> bases;
    std::vector<Ref> copies;
    for (const int64_t i : bases_) {
      bases.push_back(address(values[static_cast<size_t>(i)], copies));
    }
    const bool on_gpu = device_.get() != Py_None;
    const Ref second =
        checked(on_gpu ? PyObject_CallOneArg(torch.stream, device_.get()) : PyLong_FromLong(0));
    const int64_t first = on_gpu ? number(device_.get()) : number(called(torch.threads).get());
    const auto* table = reinterpret_cast<const int64_t*>(PyBytes_AsString(table_.get()));
    const int64_t on = number(second.get());
    int64_t code = 0;
    Py_BEGIN_ALLOW_THREADS;
    code = run_launches(table, bases.data(), first, on);
    Py_END_ALLOW_THREADS;
    if (code != 0) checked(PyObject_CallFunction(failed_.get(), "OL", names_.get(), code));
  }

  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(watchers_.get());
    Py_VISIT(failed_.get());
    return 0;
  }

 private:
  static char* address(Value& value, std::vector<Ref>& copies) {
    Ref copy = copy_for_kernels(value);
    const c10::TensorImpl& tensor = copy ? tensor_of(copy.get()) : value.tensor();
    if (copy) copies.push_back(std::move(copy));
    return static_cast<char*>(const_cast<void*>(tensor.data()));
  }

  Ref table_;
  std::vector<int64_t> bases_;
  Ref device_;
  Ref names_;
  Ref watchers_;
  Ref failed_;
};

// A function of Python: (function, the values that it is given, rows of them or None, index).
class Call : public Step {
 public:
  Call(PyObject* row, PyObject* done)
      : Step(done),
        function_(Ref::to(item(row, 0))),
        given_(numbers(item(row, 1))),
        rows_(Ref::to(item(row, 2))),
        index_(static_cast<size_t>(number(item(row, 3)))) {}

  void run(Values& values) const override {
    c10::SmallVector<PyObject*, 8> given;
    std::vector<Ref> parts;
    for (size_t i = 0; i < given_.size(); ++i) {
      given.push_back(values[static_cast<size_t>(given_[i])].object());
      PyObject* rows = item(rows_.get(), static_cast<Py_ssize_t>(i));
      if (rows != Py_None) {
        parts.push_back(checked(PyObject_GetItem(given.back(), rows)));
        given.back() = parts.back().get();
      }
    }
    values[index_] =
        Value(checked(PyObject_Vectorcall(function_.get(), given.data(), given.size(), nullptr)));
  }

  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(function_.get());
    Py_VISIT(rows_.get());
    return 0;
  }

 private:
  Ref function_;
  std::vector<int64_t> given_;
  Ref rows_;
  size_t index_;
};

// Sequence(count, kept, steps, results, written)(tensors, frozen) gives a tuple of the results.
// There are `count` values; the tensors are the first of them, and frozen ones have the places
// `kept`. A step is a name, what that kind of step needs, and the values that nobody needs behind
// it. Kernels change the tensors `written`.
class Sequence {
 public:
  explicit Sequence(PyObject* args)
      : count_(static_cast<size_t>(number(item(args, 0)))),
        kept_(numbers(item(args, 1))),
        results_(numbers(item(args, 3))),
        written_(numbers(item(args, 4))) {
    PyObject* steps = item(args, 2);
    for (Py_ssize_t i = 0; i < PyTuple_Size(steps); ++i) {
      PyObject* step = item(steps, i);
      steps_.push_back(read(item(step, 0), item(step, 1), item(step, 2)));
    }
  }

  PyObject* call(PyObject* const* args, Py_ssize_t) const {
    PyObject* tensors = args[0];
    return run(reinterpret_cast<PyTupleObject*>(tensors)->ob_item,
               static_cast<size_t>(PyTuple_Size(tensors)), args[1]);
  }

  PyObject* run(PyObject* const* tensors, size_t given, PyObject* frozen) const {
    Values values;
    values.resize(count_);
    for (size_t i = 0; i < given; ++i) values[i] = Value(Ref::to(tensors[i]));
    for (size_t i = 0; i < kept_.size(); ++i) {
      PyObject* half = item(frozen, static_cast<Py_ssize_t>(i));
      values[static_cast<size_t>(kept_[i])] = Value(Ref::to(half));
    }
    const Lent lent = lend(values);
    for (const auto& step : steps_) {
      step->run(values);
      step->finish(values);
    }
    take_back(lent);
    Ref results = checked(PyTuple_New(static_cast<Py_ssize_t>(results_.size())));
    for (size_t i = 0; i < results_.size(); ++i) {
      PyObject* result = values[static_cast<size_t>(results_[i])].object();
      PyTuple_SetItem(results.get(), static_cast<Py_ssize_t>(i), Py_NewRef(result));
    }
    return results.release();
  }

  int visit(visitproc visit, void* arg) const {
    for (const auto& step : steps_) {
      if (const int found = step->visit(visit, arg)) return found;
    }
    return 0;
  }

  void release() { const auto dropped = std::move(steps_); }

 private:
  // Buffers with the dense copies that stand in their places.
  using Lent = std::vector<std::pair<Ref, Ref>>;

  // To autograd, each of these is about to be changed. For a copy, copy_ will say so.
  Lent lend(Values& values) const {
    Lent lent;
    for (const int64_t i : written_) {
      Value& value = values[static_cast<size_t>(i)];
      Ref copy = copy_for_kernels(value);
      if (!copy) {
        value.tensor().bump_version();
        continue;
      }
      lent.emplace_back(Ref::to(value.object()), Ref::to(copy.get()));
      value = Value(std::move(copy));
    }
    return lent;
  }

  static void take_back(const Lent& lent) {
    const c10::AutoGradMode without(false);
    for (const auto& [buffer, copy] : lent) {
      checked(PyObject_CallMethod(buffer.get(), "copy_", "O", copy.get()));
    }
  }

  static std::unique_ptr<Step> read(PyObject* name, PyObject* row, PyObject* done) {
    if (PyUnicode_CompareWithASCIIString(name, "empty") == 0) {
      return std::make_unique<Empty>(row, done);
    }
    if (PyUnicode_CompareWithASCIIString(name, "launches") == 0) {
      return std::make_unique<Launches>(row, done);
    }
    return std::make_unique<Call>(row, done);
  }

  size_t count_;
  std::vector<int64_t> kept_;
  std::vector<std::unique_ptr<Step>> steps_;
  std::vector<int64_t> results_;
  std::vector<int64_t> written_;
};

// ---- a call that autograd sees ------------------------------------------------------------------

// kw_record of node.cpp, once it is compiled; until then autograd's function of Python records.
using Recorder = void (*)(PyObject* backward, c10::TensorImpl* const* tensors,
                          c10::TensorImpl* const* saved, size_t count,
                          c10::TensorImpl* const* results, const bool* flows, size_t result_count);
Recorder recorder = nullptr;

// How a call becomes a node of autograd's graph: the function of Python that gives its gradients,
// the tensors that each result's gradient flows to, and those that the call itself rewrites, which
// backward does without.
class History {
 public:
  History(PyObject* backward, PyObject* reaches, PyObject* rewritten)
      : backward_(Ref::to(backward)), rewritten_(numbers(rewritten)) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(reaches); ++i) {
      reaches_.push_back(numbers(item(reaches, i)));
    }
  }

  // The results of a call whose steps ran without gradients.
  Ref added(Ref results, PyObject* const* given, size_t count) const {
    Tensors tensors, saved, made;
    for (size_t i = 0; i < count; ++i) tensors.push_back(&tensor_of(given[i]));
    saved = tensors;
    for (const int64_t i : rewritten_) saved[static_cast<size_t>(i)] = nullptr;
    c10::SmallVector<bool, 8> flows;
    for (size_t i = 0; i < reaches_.size(); ++i) {
      const auto place = static_cast<Py_ssize_t>(i);
      PyObject* result = item(results.get(), place);
      flows.push_back(flows_to(reaches_[i], tensors, tensor_of(result)));
      if (std::find(tensors.begin(), tensors.end(), &tensor_of(result)) != tensors.end()) {
        Ref other = another(result, flows.back());
        result = other.get();
        PyTuple_SetItem(results.get(), place, other.release());
      }
      made.push_back(&tensor_of(result));
    }
    if (std::find(flows.begin(), flows.end(), true) != flows.end()) {
      recorder(backward_.get(), tensors.data(), saved.data(), count, made.data(), flows.data(),
               made.size());
    }
    return results;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(backward_.get());
    return 0;
  }

 private:
  using Tensors = c10::SmallVector<c10::TensorImpl*, 32>;

  static bool flows_to(const std::vector<int64_t>& reached, const Tensors& tensors,
                       const c10::TensorImpl& result) {
    const auto type = result.dtype().toScalarType();
    return (c10::isFloatingType(type) || c10::isComplexType(type)) &&
           std::any_of(reached.begin(), reached.end(),
                       [&](int64_t i) { return tensors[static_cast<size_t>(i)]->requires_grad(); });
  }

  // A tensor of the call that comes out as it went in: what it was stays the caller's.
  static Ref another(PyObject* tensor, bool flows) {
    if (!flows && tensor_of(tensor).requires_grad()) {
      return checked(PyObject_CallMethod(tensor, "detach", nullptr));
    }
    const c10::AutoGradMode without(false);
    return checked(PyObject_CallMethod(tensor, "view_as", "O", tensor));
  }

  Ref backward_;
  std::vector<std::vector<int64_t>> reaches_;
  std::vector<int64_t> rewritten_;
};

// ---- calls that are known -----------------------------------------------------------------------

// A weight whose halves are frozen, and what would tell that it was changed.
struct Stamp {
  size_t place;
  const void* address;
  int64_t version;

  bool holds(c10::TensorImpl& weight) const {
    return weight.data() == address && version_of(weight) == version;
  }

  static int64_t version_of(c10::TensorImpl& weight) {
    return weight.is_inference() ? -1 : weight.version_counter().current_version();
  }
};

// One kind of call: everything that a later one must share with it, and how its results are made.
class Record {
 public:
  // (arguments, which of them are inputs, state, what the file's switch said, frozen halves, places
  // of their weights, whether the library is as precise as it must be, sequence; then autograd's
  // function and what is handed to it, and what History is told, or None)
  explicit Record(PyObject* row)
      : keys_(c10::impl::tls_local_dispatch_key_set()),
        inputs_(numbers(item(row, 1))),
        state_(Ref::to(item(row, 2))),
        switched_(Ref::to(item(row, 3))),
        frozen_(Ref::to(item(row, 4))),
        is_precise_(Ref::to(item(row, 6))),
        sequence_(Ref::to(item(row, 7))),
        record_(Ref::to(item(row, 8))),
        handed_(Ref::to(item(row, 9))) {
    if (item(row, 10) != Py_None) {
      history_ = std::make_unique<History>(item(row, 10), item(row, 11), item(row, 12));
    }
    PyObject* arguments = item(row, 0);
    for (Py_ssize_t i = 0; i < PyTuple_Size(arguments); ++i) {
      arguments_.push_back(argument(item(arguments, i)));
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(state_.get()); ++i) {
      likenesses_.emplace_back(tensor_of(item(state_.get(), i)));
    }
    for (const int64_t place : numbers(item(row, 5))) {
      c10::TensorImpl& weight = tensor_of(item(state_.get(), place));
      stamps_.push_back({static_cast<size_t>(place), weight.data(), Stamp::version_of(weight)});
    }
  }

  // Whether a call is of this kind; and if so, whether gradients flow to any of its tensors.
  bool fits(PyObject* const* arguments, size_t count, PyObject* switched,
            bool& differentiable) const {
    return count == arguments_.size() && switched == switched_.get() && same_keys() &&
           arguments_fit(arguments, differentiable) && state_fits(differentiable);
  }

  // The results, or None: this is another kind of call, or something was touched since.
  Ref results(PyObject* const* arguments, size_t count, PyObject* switched) const {
    bool differentiable = false;
    if (!fits(arguments, count, switched, differentiable) || !is_precise()) {
      return Ref::to(Py_None);
    }
    c10::SmallVector<PyObject*, 32> tensors;
    tensors.push_back(handed_.get());
    for (const int64_t i : inputs_) tensors.push_back(arguments[i]);
    for (size_t i = 0; i < likenesses_.size(); ++i) tensors.push_back(state(i));
    return made(tensors, differentiable && c10::GradMode::is_enabled());
  }

  int visit(visitproc visit, void* arg) const {
    for (const Argument& argument : arguments_) Py_VISIT(argument.literal.get());
    for (const Ref* object :
         {&state_, &switched_, &frozen_, &is_precise_, &sequence_, &record_, &handed_}) {
      Py_VISIT(object->get());
    }
    return history_ == nullptr ? 0 : history_->visit(visit, arg);
  }

 private:
  Ref made(const c10::SmallVectorImpl<PyObject*>& tensors, bool recorded) const {
    if (recorded && (history_ == nullptr || recorder == nullptr)) {
      return checked(PyObject_Vectorcall(record_.get(), tensors.data(), tensors.size(), nullptr));
    }
    PyObject* const* given = tensors.data() + 1;
    const size_t count = tensors.size() - 1;
    Ref results;
    {
      const c10::AutoGradMode mode(c10::GradMode::is_enabled() && !recorded);
      const Sequence& sequence = Object<Sequence>::of(sequence_.get());
      results = checked(sequence.run(given, count, frozen_.get()));
    }
    return recorded ? history_->added(std::move(results), given, count) : std::move(results);
  }

  struct Argument {
    std::unique_ptr<Likeness> tensor;
    Ref literal;
  };

  static Argument argument(PyObject* given) {
    if (!is_tensor(given)) return {nullptr, Ref::to(given)};
    return {std::make_unique<Likeness>(tensor_of(given)), Ref()};
  }

  PyObject* state(size_t i) const {
    return PyTuple_GET_ITEM(state_.get(), static_cast<Py_ssize_t>(i));
  }

  // Modes, tracers, transforms, autocast and inference mode all are keys of the dispatcher.
  bool same_keys() const {
    const auto now = c10::impl::tls_local_dispatch_key_set();
    return now.included_ == keys_.included_ && now.excluded_ == keys_.excluded_;
  }

  bool arguments_fit(PyObject* const* arguments, bool& differentiable) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto& [likeness, literal] = arguments_[i];
      if (likeness == nullptr) {
        if (!same_literal(literal.get(), arguments[i])) return false;
        continue;
      }
      if (!is_tensor(arguments[i])) return false;
      const c10::TensorImpl& tensor = tensor_of(arguments[i]);
      if (!likeness->fits(tensor)) return false;
      differentiable = differentiable || tensor.requires_grad();
    }
    return true;
  }

  bool state_fits(bool& differentiable) const {
    for (size_t i = 0; i < likenesses_.size(); ++i) {
      const c10::TensorImpl& tensor = tensor_of(state(i));
      if (!likenesses_[i].fits(tensor)) return false;
      differentiable = differentiable || tensor.requires_grad();
    }
    return std::all_of(stamps_.begin(), stamps_.end(), [&](const Stamp& stamp) {
      return stamp.holds(tensor_of(state(stamp.place)));
    });
  }

  bool is_precise() const {
    return is_precise_.get() == Py_None || is_true(called(is_precise_.get()).get());
  }

  // Of one type and equal; floats bit by bit, since zeros of both signs are equal.
  static bool same_literal(PyObject* before, PyObject* now) {
    if (before == now) return true;
    if (Py_TYPE(before) != Py_TYPE(now) || PyFloat_CheckExact(now)) return false;
    const int found = PyObject_RichCompareBool(before, now, Py_EQ);
    if (found < 0) throw PythonError();
    return found != 0;
  }

  c10::impl::LocalDispatchKeySet keys_;
  std::vector<Argument> arguments_;
  std::vector<int64_t> inputs_;
  Ref state_;
  std::vector<Likeness> likenesses_;
  Ref switched_;
  Ref frozen_;
  std::vector<Stamp> stamps_;
  Ref is_precise_;
  Ref sequence_;
  Ref record_;
  Ref handed_;
  std::unique_ptr<History> history_;
};

// Known(names of the module, its Picture, the file's switch)(names, *arguments) gives the results
// of a call like one that was added, or None.
class Known {
 public:
  static constexpr size_t kMost = 16;

  explicit Known(PyObject* args)
      : names_(Ref::to(item(args, 0))),
        picture_(Ref::to(item(args, 1))),
        switch_(Ref::to(item(args, 2))),
        is_recomputing_(Ref::to(item(args, 3))) {}

  PyObject* call(PyObject* const* args, Py_ssize_t count) {
    if (records_.empty() || args[0] != names_.get() || is_watched()) Py_RETURN_NONE;
    if (!Object<Picture>::of(picture_.get()).holds()) Py_RETURN_NONE;
    const Ref switched = called(switch_.get());
    for (size_t i = 0; i < records_.size(); ++i) {
      const std::shared_ptr<Record> record = records_[i];  // others may clear the table meanwhile
      Ref results = record->results(args + 1, static_cast<size_t>(count - 1), switched.get());
      if (results.get() != Py_None) return results.release();
    }
    Py_RETURN_NONE;
  }

  // Unless it is known already. The last ones are looked at first, and the first ones forgotten.
  static PyObject* add(PyObject* self, PyObject* args) {
    return Object<Known>::guarded([&]() -> PyObject* {
      auto& records = Object<Known>::of(self).records_;
      PyObject* arguments = item(args, 0);
      PyObject* const* given = reinterpret_cast<PyTupleObject*>(arguments)->ob_item;
      const auto count = static_cast<size_t>(PyTuple_Size(arguments));
      bool differentiable = false;
      for (const auto& record : records) {
        if (record->fits(given, count, item(args, 3), differentiable)) Py_RETURN_NONE;
      }
      records.insert(records.begin(), std::make_shared<Record>(args));
      if (records.size() > kMost) records.pop_back();
      Py_RETURN_NONE;
    });
  }

  static PyObject* forget(PyObject* self, PyObject*) {
    const auto dropped = std::move(Object<Known>::of(self).records_);
    Py_RETURN_NONE;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(names_.get());
    Py_VISIT(picture_.get());
    Py_VISIT(switch_.get());
    Py_VISIT(is_recomputing_.get());
    for (const auto& record : records_) {
      if (const int found = record->visit(visit, arg)) return found;
    }
    return 0;
  }

  void release() { const auto dropped = std::move(records_); }

 private:
  // Most modes of functions, such as a default device, are nothing to a call.
  bool is_watched() const {
    const bool in_modes = at::impl::PythonTorchFunctionTLS::stack_len() != 0;
    return (in_modes && is_true(called(is_recomputing_.get()).get())) ||
           PyDict_GetItem(torch.forward_mode, torch.level) != torch.no_level;
  }

  Ref names_;
  Ref picture_;
  Ref switch_;
  Ref is_recomputing_;
  std::vector<std::shared_ptr<Record>> records_;
};

// again(module, *arguments) asks the module's Known, if it has one.
PyObject* again(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return Object<Known>::guarded([&]() -> PyObject* {
    const Ref names = checked(PyObject_GenericGetDict(args[0], nullptr));
    PyObject* memo = PyDict_GetItem(names.get(), torch.memo);
    const bool is_traced = PyDict_GetItem(torch.compiler, torch.is_compiling) == Py_True;
    if (memo == nullptr || memo == Py_None || is_traced) Py_RETURN_NONE;
    const Ref known = checked(PyObject_GetAttr(memo, torch.known));
    c10::SmallVector<PyObject*, 8> handed(args, args + count);
    handed[0] = names.get();
    return PyObject_Vectorcall(known.get(), handed.data(), handed.size(), nullptr);
  });
}

PyObject* record(PyObject*, PyObject* address) {
  void* found = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred() != nullptr) return nullptr;
  recorder = reinterpret_cast<Recorder>(found);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"again", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(again)),
                            METH_FASTCALL, nullptr},
                           {"record", record, METH_O, nullptr},
                           {nullptr, nullptr, 0, nullptr}};
PyMethodDef none[] = {{nullptr, nullptr, 0, nullptr}};
PyMethodDef known[] = {{"add", Known::add, METH_VARARGS, nullptr},
                       {"forget", Known::forget, METH_NOARGS, nullptr},
                       {nullptr, nullptr, 0, nullptr}};

void add_type(PyObject* module, const char* name, Ref type) {
  if (PyModule_AddObjectRef(module, name, type.get()) != 0) throw PythonError();
}

}  // namespace

#define KW_JOINED(first, second) first##second
#define KW_NAMED(first, second) KW_JOINED(first, second)

PyMODINIT_FUNC KW_NAMED(PyInit_, TORCH_EXTENSION_NAME)() {
  static PyModuleDef definition{
      PyModuleDef_HEAD_INIT, "calls", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};
  return Object<Known>::guarded([] {
    look_up_torch();
    Ref module = checked(PyModule_Create(&definition));
    add_type(module.get(), "Picture", Object<Picture>::type("kernelwright.Picture", none));
    add_type(module.get(), "Sequence", Object<Sequence>::type("kernelwright.Sequence", none));
    add_type(module.get(), "Known", Object<Known>::type("kernelwright.Known", known));
    return module.release();
  });
}
"""


# A call of the kernels in autograd's graph, in C++.

_KW_NODE = r"""
// The node that a call of the kernels is in autograd's graph.
//
// torch.autograd.Function would do, and costs a call three times as much as the kernels of a small
// model: an object of Python for each node, tuples of what is saved and needed, sets of what is
// dirty. This node keeps the tensors of the call as torch's own nodes do, so what is written
// meanwhile, hooks of saved tensors and a second backward are torch's to see, and calls Python in
// backward alone.
//
// A library of its own, which calls.cpp is told of when it is there: headers of autograd take
// longer to compile than all kernels of a model, so nobody waits for them, and all works without.
#define AT_PER_OPERATOR_HEADERS  // or they would bring every operator with them: three seconds more
#include <Python.h>
#include <pybind11/cast.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace {

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace

// An error of Python, as torch's engine hands it from thread to thread. The header that defines
// these two functions takes four seconds more to compile.
void pybind11::error_already_set::m_fetched_error_deleter(
    detail::error_fetch_and_normalize* error) {
  const Gil gil;
  const error_scope scope;
  delete error;
}

const char* pybind11::error_already_set::what() const noexcept {
  const Gil gil;
  const error_scope scope;
  return m_fetched_error->error_string().c_str();
}

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor shared(c10::TensorImpl* tensor) {
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return at::Tensor(Pointer::reclaim_copy(tensor));
}

pybind11::object checked(PyObject* owned) {
  if (owned == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(owned);
}

at::Tensor unwrapped(PyObject* tensor) {
  const auto address = checked(PyObject_GetAttrString(tensor, "_cdata"));
  void* found = PyLong_AsVoidPtr(address.ptr());
  if (found == nullptr) throw pybind11::error_already_set();
  return shared(static_cast<c10::TensorImpl*>(found));
}

// A tuple of what the function gives for 0, 1, ...
template <class Function>
pybind11::object tuple(size_t count, const Function& function) {
  pybind11::object found = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), checked(function(i)).release().ptr());
  }
  return found;
}

// backward(tensors, wanted, cotangents) of Python gives a list of gradients, or None for some.
class Recorded : public Node {
 public:
  Recorded(PyObject* backward, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), backward_(Py_NewRef(backward)) {}

  // Of the graph's last nodes some are left when Python is not.
  ~Recorded() override {
    if (Py_IsInitialized() == 0) return;
    const Gil gil;
    Py_DECREF(backward_);
  }

  void save(c10::ArrayRef<c10::TensorImpl*> tensors) {
    auto saved = std::make_shared<std::vector<SavedVariable>>();
    saved->reserve(tensors.size());
    for (c10::TensorImpl* tensor : tensors) {
      if (tensor == nullptr) {
        saved->emplace_back();
      } else {
        saved->emplace_back(shared(tensor), /*is_output=*/false);
      }
    }
    saved_ = std::move(saved);
  }

  std::string name() const override { return "RecordedBackward"; }

  void release_variables() override {
    std::shared_ptr<const std::vector<SavedVariable>> dropped;  // behind the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(saved_);
  }

 protected:
  variable_list apply(variable_list&& cotangents) override {
    const auto saved = kept();
    TORCH_CHECK(saved != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
    variable_list gradients(num_outputs());
    const Gil gil;
    const auto tensors =
        tuple(saved->size(), [&](size_t i) { return THPVariable_Wrap((*saved)[i].unpack()); });
    const auto wanted = tuple(
        num_outputs(), [&](size_t i) { return PyBool_FromLong(task_should_compute_output(i)); });
    const auto given =
        tuple(cotangents.size(), [&](size_t i) { return THPVariable_Wrap(cotangents[i]); });
    const auto found = checked(
        PyObject_CallFunctionObjArgs(backward_, tensors.ptr(), wanted.ptr(), given.ptr(), nullptr));
    for (size_t i = 0; i < gradients.size(); ++i) {
      PyObject* gradient = PyList_GetItem(found.ptr(), static_cast<Py_ssize_t>(i));
      if (gradient == nullptr) throw pybind11::error_already_set();
      if (gradient != Py_None) gradients[i] = unwrapped(gradient);
    }
    return gradients;
  }

 private:
  // One thread may drop what is saved while another, of a backward that retains it, reads it. The
  // lock is not held any longer: hooks of saved tensors are Python's, and wait for its lock.
  std::shared_ptr<const std::vector<SavedVariable>> kept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return saved_;
  }

  PyObject* backward_;
  std::shared_ptr<const std::vector<SavedVariable>> saved_;
};

// A node as edges hold it: by a pointer of torch's own, and in releases before that by one of C++,
// whose deleter takes long chains of nodes apart without a call for each.
template <class Held>
Held held(Recorded* node) {
  if constexpr (std::is_same_v<Held, std::shared_ptr<Node>>) {
    return Held(node, [](auto* last) { deleteNode(last); });
  } else {
    return Held::unsafe_steal_from_new(node);
  }
}

}  // namespace

// Makes a node behind the tensors of a call, and its results the outputs of that node where
// gradients flow from them. Where `saved` has no tensor, backward needs none. Errors are thrown.
extern "C" void kw_record(PyObject* backward, c10::TensorImpl* const* tensors,
                          c10::TensorImpl* const* saved, size_t count,
                          c10::TensorImpl* const* results, const bool* flows, size_t result_count) {
  using torch::autograd::CreationMeta;
  namespace impl = torch::autograd::impl;
  torch::autograd::edge_list edges;
  edges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const bool flows_here = tensors[i]->requires_grad();
    edges.push_back(flows_here ? impl::gradient_edge(shared(tensors[i])) : Edge());
  }
  auto* made = new Recorded(backward, std::move(edges));
  const auto node = held<decltype(Edge::function)>(made);
  const bool several = std::count(flows, flows + result_count, true) > 1;
  for (size_t i = 0; i < result_count; ++i) {
    const at::Tensor result = shared(results[i]);
    if (flows[i]) {
      impl::set_gradient_edge(result, {node, made->add_input_metadata(result)});
    } else {
      made->add_input_metadata(Node::undefined_input());
    }
    // As with any function of autograd, a view that comes out of it must not be written.
    if (auto* view = impl::get_view_autograd_meta(result)) {
      view->set_creation_meta(several ? CreationMeta::MULTI_OUTPUT_NODE
                                      : CreationMeta::IN_CUSTOM_FUNCTION);
    }
  }
  made->save({saved, count});
}
"""


# --------------------------------------------------------------------------------------------------
# 6. The library, in C++: what this file uses of kernels/ of kernelwright 0.1.0
# for cpu. Identical to the package; `kernelwright check` on this file proves it.
# sha256 94b75a84a7ef2d9c0d0386ca2fcaff2fdf2d203b157977525809d7ae78f06760
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
// Each follows the torch function of its name, special values included: NaN in, NaN out (except
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
# 7. At import: the programs are built, or found as built before.
# --------------------------------------------------------------------------------------------------


_KW_KERNEL_LIBRARY = _kw_Library(*_kw_build(), on_gpu=False)
_KW_FUSION = _kw_together()
