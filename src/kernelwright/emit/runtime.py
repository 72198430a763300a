"""The fixed Python part of an emitted file for a GPU, as text: build, launch, fall back.

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
import shutil
import sys
import sysconfig
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location

import torch
from torch.utils.cpp_extension import load, load_inline
"""

BUILD = '''
def _build():
    """The kernels, and what calls them, compiled side by side; or loaded, if they were before.

    And the node as a future, since it may still be compiled then.
    """
    flags = {flags}
    flags_of_calls = {calls}
    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(_built_calls, flags_of_calls)
        kernels = ctypes.CDLL(_built("{stem}", "{suffix}", _units(), flags))
        calls = calls.result()
    return kernels, calls, _add_node(calls) if calls else None


def _built_calls(flags):
    """What calls the kernels; None without the headers of Python, which then does so itself."""
    headers = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(headers, "Python.h")):
        return None
    return _built("kw_calls", "cpp", [CALLS], flags)


def _add_node(calls):
    """What makes a call a node of autograd's graph; until it is there, a function of Python does.

    Headers of autograd take longer to compile than all kernels of a model, so nobody waits for
    them but an interpreter that ends; and the others, which are waited for, are compiled before.
    """
    flags = dict(extra_cflags=["-O1"], is_python_module=False)
    path = _place("kw_node", [NODE], flags)

    def add():
        library = ctypes.CDLL(_made(path, "cpp", [NODE], flags))
        calls.record(ctypes.cast(library.kw_record, ctypes.c_void_p).value)

    pool = ThreadPoolExecutor(1)
    node = pool.submit(add)
    pool.shutdown(wait=False)
    node.add_done_callback(_tell)
    if _is_whole(path):
        node.exception()  # is known at once: it is there from the first call on
    return node


def _tell(node):
    """Say why there is no node, if there is none."""
    if node.exception():
        why = str(node.exception()).partition("\\n")[0]
        warnings.warn(f"Calls with gradients are some microseconds slower than usual: {why}")


def _built(stem, ending, units, flags):
    """A library from these texts: its path, or the Python module that it is."""
    return _made(_place(stem, units, flags), ending, units, flags)


def _place(stem, units, flags):
    """The path of a library, in a folder that is named by all that it depends on."""
    text = [*units, repr(flags), torch.__version__, sys.version, platform.platform()]
    text += [os.environ.get(name, "") for name in NAMED] + _machine()
    text += [_identity(os.environ.get("CXX") or "c++"), _identity("nvcc")]
    name = stem + "_" + hashlib.sha256("\\0".join(text).encode()).hexdigest()[:16]
    return os.path.join(os.path.abspath(_cache()), name, name + ".so")


def _made(path, ending, units, flags):
    """What is at this place, built if it is not there yet."""
    folder = os.path.dirname(path)
    name = os.path.basename(folder)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, "building"), "w") as guard, ExitStack() as after:
        fcntl.flock(guard, fcntl.LOCK_EX)
        after.callback(fcntl.flock, guard, fcntl.LOCK_UN)  # a forked child has this file open too
        if not _is_whole(path):
            return _compile(name, path, ending, units, flags)
    if not flags.get("is_python_module", True):
        return path
    found = spec_from_file_location(name, path)
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


# What changes a build without being an argument of it.
NAMED = ("CXX", "CC", "CUDA_HOME", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH")


def _identity(program):
    """Which program a name stands for today: another version is another file."""
    path = shutil.which(program)
    if path is None:
        return program
    found = os.stat(path)
    return f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}"


def _cache():
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


def _is_whole(path):
    """Whether a library is there as it was built: no half of one, as a full disk leaves it."""
    if not (os.path.exists(path) and os.path.exists(path + ".sha256")):
        return False
    with open(path, "rb") as library, open(path + ".sha256") as digest:
        return digest.read() == hashlib.sha256(library.read()).hexdigest()


def _compile(name, path, ending, units, flags):
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
            sources = [_write(place, f"unit_{i}.{ending}", unit) for i, unit in enumerate(units)]
            made = load(sources=sources, **flags)
        else:
            sources = {"cuda_sources" if ending == "cu" else "cpp_sources": units}
            made = load_inline(**{"cpp_sources": []} | sources, no_implicit_headers=True, **flags)
        library = os.path.join(place, name + ".so")
        if not os.path.exists(library):
            return made
        with open(library, "rb") as file:
            content = file.read()
        _put(path, content)
        _put(path + ".sha256", hashlib.sha256(content).hexdigest().encode())
    return made if flags.get("is_python_module", True) else path


def _put(path, content):
    """A file that appears whole or not at all."""
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.replace(path + ".new", path)


def _write(folder, name, unit):
    """A unit as a file, for the compiler."""
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(unit)
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

CUDA_FLAGS = """dict(
        extra_cflags=["-O1"],
        extra_cuda_cflags=["-O3", "-std=c++17", *ARCHITECTURE],
        is_python_module=False,  # plain C functions: no binding to compile
    )"""

# What calls kernels is compiled against torch, whose headers take most of the time.
CUDA_CALLS = """dict(extra_cflags=["-O1", "-DKW_CUDA"], with_cuda=True)"""

# What a unit should cost at least: its own parsing is not free.
TOGETHER = 4

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

BACKWARDS = '''
    @property
    def backwards(self):
        """How often the backward ran: as "kernels", or else by the cause of the original's."""
        return FUSION.memo(self).backwards
'''


def names() -> set[str]:
    """The names that these texts bind for themselves."""
    texts = (BUILD, CUDA_MACHINE, UNITS, PRECISION, CONSTANTS)
    return {name for text in texts for name in re.findall(r"^(?:def |class )?(_\w+)", text, re.M)}
