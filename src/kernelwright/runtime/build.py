"""The programs of a file become a library: compiled once for each machine, and kept.

In: the texts in C++. Out: a library that ctypes has opened. A build is kept in a folder that is
named by all that it depends on (texts, flags, compiler, torch, instruction set), so that it is
never taken for another; it is there whole or not at all, whoever builds beside us or is killed.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import torch
from torch.utils.cpp_extension import load, load_inline

# GCC would take half of a register of AVX-512: 2.0 ms and not 1.4 for 2.5 M times SiLU.
NATIVE = {
    "aarch64": ["-mcpu=native"],
    "arm64": ["-mcpu=native"],
    "x86_64": ["-march=native", "-mprefer-vector-width=512"],
}.get(platform.machine(), ["-march=native"])
EXACT = ["-fno-math-errno", "-fno-trapping-math"]  # not -ffast-math: NaN and infinity must work
TOGETHER = 4  # what a unit should cost at least: its own parsing is not free
# What changes a build without being an argument of it.
NAMED = ("CXX", "CC", "CUDA_HOME", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH")


def library(stem, programs, headers):
    """The compiled programs, from where they are kept or from the compiler; None without one."""
    if shutil.which(compiler_name()) is None:
        return None
    threads = ["-fopenmp"] if has_threads() else []
    # torch would ask for C++20, whose headers take the compiler longer than a small kernel.
    flags = dict(
        extra_cflags=["-std=c++17", "-O3", *(threads or ["-fopenmp-simd"]), *NATIVE, *EXACT],
        extra_ldflags=threads,
        is_python_module=False,  # plain C functions: no binding to compile
    )
    return built(stem, "cpp", separate(programs, headers), flags, instructions())


def built(stem, ending, units, flags, machine):
    """The library that these units are, opened."""
    path = place(stem, units, flags, machine)
    return ctypes.CDLL(made(path, ending, units, flags))


def separate(programs, headers):
    """The kernels as texts that compile side by side: costly ones apart, cheap ones together."""
    shared, *parts = re.split(r"^// ---- A unit .* Cost: (\d+)\n", programs, flags=re.MULTILINE)
    costs, texts = [int(cost) for cost in parts[::2]], parts[1::2]
    count = min(os.cpu_count() or 1, -(-sum(costs) // max(*costs, TOGETHER)))
    units, loads = [[] for _ in range(count)], [0] * count
    for i in sorted(range(len(texts)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        units[least].append(i)
        loads[least] += costs[i]
    return [headers + shared + "".join(texts[i] for i in sorted(unit)) for unit in units]


def place(stem, units, flags, machine):
    """The path of a library, in a folder that is named by all that it depends on."""
    text = [*units, repr(flags), torch.__version__, sys.version, platform.platform(), *machine]
    text += [os.environ.get(name, "") for name in NAMED]
    text.append(identity(compiler_name()))
    name = stem + "_" + hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]
    return os.path.join(os.path.abspath(cache()), name, name + ".so")


def identity(program):
    """Which program a name stands for today: another version is another file."""
    path = shutil.which(program)
    if path is None:
        return program
    found = os.stat(path)
    return f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}"


def compiler_name():
    return os.environ.get("CXX") or "c++"


@functools.cache
def has_threads():
    """Whether the compiler has OpenMP; clang often comes without its library, and is tried."""
    compiler = os.path.realpath(shutil.which(compiler_name()))
    if "clang" not in compiler and platform.system() != "Darwin":
        return True
    with ExitStack() as after:
        folder = tempfile.mkdtemp(prefix="kw_")
        after.callback(shutil.rmtree, folder)
        command = [compiler, "-fopenmp", "-x", "c++", "-", "-o", os.path.join(folder, "trial")]
        return not subprocess.run(command, input=b"int main() {}", capture_output=True).returncode


def instructions():
    """The instruction set that -march=native stands for here; where nobody tells, the machine."""
    if not os.path.exists("/proc/cpuinfo"):
        return [platform.processor(), platform.node()]
    with open("/proc/cpuinfo") as info:
        return sorted({line for line in info if line.lower().startswith(("flags", "features"))})


@functools.cache
def features():
    """The names of the instruction sets, as the system tells them."""
    return frozenset("".join(instructions()).split())


def has_own(rows, *ways):
    """Whether a product of so many rows has a kernel: for a way's instructions, from and up to."""
    return any(few <= rows <= many and name in features() for name, few, many in ways)


def cache():
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


def made(path, ending, units, flags):
    """The library at this place, built if it is not there yet."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(os.path.join(os.path.dirname(path), "building"), "w") as guard, ExitStack() as after:
        fcntl.flock(guard, fcntl.LOCK_EX)
        after.callback(fcntl.flock, guard, fcntl.LOCK_UN)  # a forked child has this file open too
        if not is_whole(path):
            compiled(path, ending, units, flags)
    return path


def is_whole(path):
    """Whether a library is there as it was built: no half of one, as a full disk leaves it."""
    if not (os.path.exists(path) and os.path.exists(path + ".sha256")):
        return False
    with open(path, "rb") as file, open(path + ".sha256") as digest:
        return digest.read() == hashlib.sha256(file.read()).hexdigest()


def compiled(path, ending, units, flags):
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
                put(source, unit.encode())
            load(sources=sources, **flags)
        else:
            sources = {"cpp_sources": units} if ending == "cpp" else {"cuda_sources": units}
            load_inline(**{"cpp_sources": []} | sources, no_implicit_headers=True, **flags)
        with open(os.path.join(folder, name + ".so"), "rb") as file:
            content = file.read()
    put(path, content)
    put(path + ".sha256", hashlib.sha256(content).hexdigest().encode())


def put(path, content):
    """A file that appears whole or not at all."""
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.replace(path + ".new", path)
