"""The fixed Python part of an emitted file, as text: build, launch, fall back.

Kept as templates because the emitted file must stand alone. KernelBench's checker reads it as
plain text, so a few harmless words must not occur in it (see tests/null/test_emit.py).
"""

from __future__ import annotations

import re

IMPORTS = """import ctypes
import fcntl
import hashlib
import os
import platform
import re
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.cpp_extension import load, load_inline
"""

BUILD = '''
def _build():
    """The kernels, and what calls them, compiled side by side; or loaded, if they were before."""
    flags = {flags}
    flags_of_calls = {calls}
    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(_built_calls, flags_of_calls)
        kernels = _built("{stem}", "{suffix}", _units(), flags)
        return ctypes.CDLL(kernels), calls.result()


def _built_calls(flags):
    """What calls the kernels; None without the headers of Python, which then does so itself."""
    headers = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(headers, "Python.h")):
        return None
    return _built("kw_calls", "cpp", [CALLS], flags)


def _built(stem, ending, units, flags):
    """A library from these texts, in a folder that is named by all that it depends on."""
    text = [*units, repr(flags), torch.__version__, sys.version, platform.platform()]
    text += [os.environ.get(name, "") for name in ("CXX", "CC", "CUDA_HOME")] + _machine()
    name = stem + "_" + hashlib.sha256("\\0".join(text).encode()).hexdigest()[:16]
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
        flags.update(name=name, build_directory=folder)
        if len(units) > 1:
            paths = [_write(folder, f"unit_{i}.{ending}", unit) for i, unit in enumerate(units)]
            return load(sources=paths, **flags)
        on_gpu = ending == "cu"
        sources = dict(cpp_sources=[], cuda_sources=units) if on_gpu else dict(cpp_sources=units)
        return load_inline(**sources, no_implicit_headers=True, **flags)


def _write(folder, name, unit):
    """A unit as a file, for the compiler; one that is there already is not built again."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        with open(path + ".new", "w") as file:
            file.write(unit)
        os.replace(path + ".new", path)
    return path
'''

CUDA_MACHINE = '''
def _machine():
    """What the compiled code depends on besides its text."""
    return [str(torch.version.cuda), *ARCHITECTURE]


ARCHITECTURE = []
if torch.cuda.is_available():
    _major, _minor = torch.cuda.get_device_capability()
    _number = f"{_major}{_minor}" + ("a" if _major == 9 else "")
    ARCHITECTURE.append(f"-gencode=arch=compute_{_number},code=sm_{_number}")
'''

CPU_MACHINE = '''
def _machine():
    """The instruction set that -march=native stands for here."""
    if not os.path.exists("/proc/cpuinfo"):
        return [platform.processor()]
    with open("/proc/cpuinfo") as info:
        return sorted({line for line in info if line.lower().startswith(("flags", "features"))})
'''

CUDA_FLAGS = """dict(
        extra_cflags=["-O1"],
        extra_cuda_cflags=["-O3", "-std=c++17", *ARCHITECTURE],
        is_python_module=False,  # plain C functions: no binding to compile
    )"""

CPU_FLAGS = """dict(
        extra_cflags=["-O3", "-fopenmp", NATIVE, *EXACT],
        extra_ldflags=["-fopenmp"],
        is_python_module=False,  # plain C functions: no binding to compile
    )"""

# What calls kernels is compiled against torch, whose headers take most of the time.
CUDA_CALLS = """dict(extra_cflags=["-O1", "-DKW_CUDA"], with_cuda=True)"""
CPU_CALLS = """dict(extra_cflags=["-O1"])"""

CPU_NATIVE = """
NATIVE = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
EXACT = ["-fno-math-errno", "-fno-trapping-math"]  # not -ffast-math: NaN and infinity must work
"""

# What a unit should cost at least: its own parsing is not free.
CUDA_TOGETHER, CPU_TOGETHER = 4, 4

UNITS = '''
def _units():
    """The kernels as texts that compile side by side: costly ones apart, cheap ones together."""
    shared, *parts = re.split(r"^// ---- A unit .* Cost: (\\d+)\\n", PROGRAMS, flags=re.MULTILINE)
    costs, texts = [int(cost) for cost in parts[::2]], parts[1::2]
    count = min(os.cpu_count() or 1, -(-sum(costs) // max(*costs, {together})))
    units, loads = [[] for _ in range(count)], [0] * count
    for i in sorted(range(len(texts)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        units[least].append(i)
        loads[least] += costs[i]
    return [HEADERS + shared + "".join(texts[i] for i in sorted(unit)) for unit in units]
'''

CUDA_KERNELS = """
KERNEL_LIBRARY = Library(*_build(), on_gpu=True) if ARCHITECTURE else None
"""

CPU_KERNELS = """
KERNEL_LIBRARY = Library(*_build(), on_gpu=False)
"""

PRECISION = '''
class _Precision:
    """Runs float32 contractions at the precision this file was compiled for."""

    def __enter__(self):
        self.matmul = torch.get_float32_matmul_precision()
        self.conv = torch.backends.cudnn.allow_tf32
        if self.matmul != MATMUL_PRECISION:
            torch.set_float32_matmul_precision(MATMUL_PRECISION)
        if self.conv != CONV_TF32:
            torch.backends.cudnn.allow_tf32 = CONV_TF32

    def __exit__(self, *error):
        if self.matmul != MATMUL_PRECISION:
            torch.set_float32_matmul_precision(self.matmul)
        if self.conv != CONV_TF32:
            torch.backends.cudnn.allow_tf32 = self.conv

    @staticmethod
    def holds():
        """Whether torch is set to it already."""
        return (
            torch._C._get_float32_matmul_precision() == MATMUL_PRECISION
            and torch._C._get_cudnn_allow_tf32() is CONV_TF32
        )
'''

CONSTANTS = '''
_PLACED = {}


def _on(constant, device):
    """A constant on this device, where it stays from the first call on."""
    key = (id(constant), device)
    if key not in _PLACED:
        _PLACED[key] = constant.to(device)
    return _PLACED[key]
'''

FALLBACKS = '''
    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return FUSION.memo(self).fallbacks
'''


def names() -> set[str]:
    """The names that these texts bind for themselves."""
    texts = (BUILD, CUDA_MACHINE, CPU_MACHINE, UNITS, PRECISION, CONSTANTS)
    return {name for text in texts for name in re.findall(r"^(?:def |class )?(_\w+)", text, re.M)}
