"""doctor: what is installed here, and what of kernelwright works on it, by trying it.

In: the machine. Out: a Diagnosis of Facts (versions and places) and Abilities (what works, else
what to do). The one idea: an ability is claimed only after a trial. Each trial takes a tiny model
through the real thing in a process of its own, with a time limit and a cache folder that goes away.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelwright import cache, toolchain
from kernelwright.errors import BuildError, KernelwrightError, where_from
from kernelwright.runtime import build
from kernelwright.targets.processor import this_processor
from kernelwright.version import __version__

Progress = Callable[[str, str], None]
TIME_LIMIT = 180.0
MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2 + 1


def get_inputs():
    return [torch.randn(256, 256)]
"""


@dataclass(frozen=True)
class Fact:
    """Something that is installed here, or None."""

    name: str
    value: str | None


@dataclass(frozen=True)
class Ability:
    """What one can do here; `works` is None where it does not apply, and `advice` helps if not."""

    name: str
    works: bool | None
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    facts: tuple[Fact, ...]
    abilities: tuple[Ability, ...]
    backend: str

    @property
    def healthy(self) -> bool:
        """Whether the default backend works."""
        wanted = KERNELS[self.backend]
        return any(a.name == wanted and a.works for a in self.abilities)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "healthy": self.healthy}


KERNELS = {"cpu": "CPU kernels", "cuda": "CUDA kernels"}


def diagnose(progress: Progress | None = None, time_limit: float = TIME_LIMIT) -> Diagnosis:
    """Look, then try; `progress` hears of each trial as it ends."""
    import torch

    backend = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="kernelwright-doctor-") as folder:
        patient = _Patient(Path(folder), backend, time_limit, progress or (lambda *words: None))
        return Diagnosis(facts(), tuple(patient.abilities()), backend)


def facts() -> tuple[Fact, ...]:
    """Versions and places, without trying anything."""
    import torch

    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU alone"
    return (
        Fact("kernelwright", __version__),
        Fact("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Fact("torch", f"{torch.__version__}, {cuda}"),
        Fact("C++ compiler", _version(toolchain.compiler())),
        Fact("OpenMP", _openmp()),
        Fact("processor", str(this_processor())),
        Fact("nvcc", _version(toolchain.nvcc(), "release")),
        Fact("ninja", _version(shutil.which("ninja"))),
        *_gpus(),
        Fact("cache folder", _cache()),
    )


def _gpus() -> list[Fact]:
    import torch

    if not torch.cuda.is_available():
        return [Fact("GPU", None)]
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        size = f"{properties.total_memory / 2**30:.0f} GiB"
        capability = f"compute capability {properties.major}.{properties.minor}"
        found.append(Fact(f"GPU {index}", f"{properties.name}, {capability}, {size}"))
    return found


def _version(program: str | None, mark: str = "") -> str | None:
    """The line of `--version` that says it, and where the program lies."""
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not run: {error}"
    lines = [line.strip() for line in done.stdout.splitlines() if mark in line and line.strip()]
    return f"{lines[0] if lines else 'of an unknown version'} ({program})"


def _openmp() -> str | None:
    """Whether kernels of the CPU have threads."""
    if toolchain.compiler() is None:
        return None
    if build.has_threads():
        return "the compiler has it"
    return "the compiler has none: kernels run with one thread (install libomp, or g++ and set CXX)"


def _cache() -> str:
    from kernelwright.units import scaled

    found = cache.entries()
    size = scaled(sum(entry.bytes for entry in found), "B")
    fault = _cannot_write()
    state = f"cannot be written: {fault}" if fault else "writable"
    return f"{cache.root()}: {size} in {len(found)} entries, {state}"


def _cannot_write() -> str | None:
    """Try it; a folder that does not exist yet is made, as the first build would."""
    try:
        cache.root().mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache.root()):
            return None
    except OSError as error:
        return error.strerror or str(error)


@dataclass(frozen=True)
class _Patient:
    """One examination: trials in their order, those of what cannot be left out."""

    folder: Path
    backend: str
    time_limit: float
    progress: Progress

    def abilities(self) -> list[Ability]:
        import torch

        (self.folder / "model.py").write_text(MODEL)
        found = [self.kernels("cpu")]
        if torch.cuda.is_available():
            found += [self.kernels("cuda"), self.products()]
        else:
            reason = "torch sees no GPU here"
            advice = "use a machine with an NVIDIA GPU and a torch that is built for CUDA"
            found.append(Ability(KERNELS["cuda"], None, reason, advice))
            found.append(Ability(PRODUCTS, None, reason, "they need a GPU that they are made for"))
        works = any(a.works for a in found if a.name == KERNELS[self.backend])
        for name, trial in (("verify", "verify"), ("bench", "bench")):
            without = Ability(name, False, "the kernels do not work", "see above")
            found.append(self.trial(name, trial, self.backend) if works else without)
        found.append(self.compiled())
        return found

    def kernels(self, backend: str) -> Ability:
        name = KERNELS[backend]
        fault = _cannot_write()
        if fault:
            advice = "set XDG_CACHE_HOME to a folder that can be written"
            return Ability(name, False, f"the cache folder cannot be written: {fault}", advice)
        try:
            toolchain.check_toolchain(backend)
        except BuildError as error:
            wrong, _, advice = str(error).rstrip(".").partition("; ")
            return Ability(name, False, wrong, advice)
        return self.trial(name, "kernels", backend)

    def products(self) -> Ability:
        import torch

        from kernelwright.targets import target_of_capability

        capability = torch.cuda.get_device_capability()
        loops = target_of_capability(*capability).loops
        if capability not in {loop.tiling.capability for loop in loops}:
            reason = "there are none for compute capability {}.{}".format(*capability)
            return Ability(PRODUCTS, None, reason, "products are left to the library here")
        return self.trial(PRODUCTS, "products", "cuda")

    def compiled(self) -> Ability:
        ability = self.trial("torch.compile baseline", "compile", self.backend)
        if ability.works:
            return ability
        advice = "bench leaves it out and says so; `pip install triton` may help on a GPU"
        return Ability(ability.name, False, ability.detail, advice)

    def trial(self, name: str, trial: str, backend: str) -> Ability:
        """Run one of TRIALS in a process of its own."""
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "TORCH_EXTENSIONS_DIR": str(self.folder / "builds"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
        }
        command = [sys.executable, "-m", "kernelwright.doctor", trial, backend, str(self.folder)]
        status, out, err = _bounded(command, environment, self.time_limit)
        if os.environ.get("KERNELWRIGHT_DEBUG"):
            sys.stderr.write(err)
        works = status == 0
        said = _last(out if works else err)
        if status is None:
            said = f"it did not end within {self.time_limit:g} s"
        self.progress(name, said)
        advice = "" if works else "set KERNELWRIGHT_DEBUG=1 and run doctor again for the traceback"
        return Ability(name, works, said, advice)


PRODUCTS = "generated products"


def _bounded(
    command: list[str], environment: dict[str, str], limit: float
) -> tuple[int | None, str, str]:
    """Status, output and errors of a process; None for one that had to be ended, compilers too."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, *process.communicate()


def _last(text: str) -> str:
    """The last line, without the escape sequences of a compiler's colours."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]) if lines else "the process said nothing"


# ---- the trials, each in its own process ---------------------------------------------------------


def _try_kernels(backend: str, folder: Path, products: bool = False) -> str:
    """Compile, build, run and compare with eager."""
    import torch

    from kernelwright.lower.kernel import GemmKernel
    from kernelwright.pipeline import compile_problem
    from kernelwright.plan.policy import ALWAYS, WHERE_IT_PAYS
    from kernelwright.problem import load_problem
    from kernelwright.verify.candidate import fallbacks_of

    problem = load_problem(folder / "model.py", backend)
    compiled = compile_problem(problem, policy=ALWAYS if products else WHERE_IT_PAYS)
    if products and not any(isinstance(k, GemmKernel) for k in compiled.kernels):
        raise BuildError("no product was generated")
    candidate = compiled.instantiate()
    with torch.no_grad():
        ours, eager = candidate(*problem.inputs), problem.module(*problem.inputs)
    if not torch.allclose(ours, eager, rtol=1e-4, atol=1e-5):
        raise BuildError(f"the kernel's result is off by {(ours - eager).abs().max().item():.2g}")
    if fell := fallbacks_of(candidate):
        raise BuildError(f"the kernels did not run: {next(iter(fell))}")
    (folder / f"candidate_{backend}.py").write_text(compiled.source)
    return "built, run and compared with eager"


def _try_products(backend: str, folder: Path) -> str:
    return _try_kernels(backend, folder, products=True)


def _try_verify(backend: str, folder: Path) -> str:
    from kernelwright.verify.session import verify

    files = folder / "model.py", folder / f"candidate_{backend}.py"
    certificate = verify(*files, backend, quick=True, time_limit=TIME_LIMIT, level="drop-in")
    if not certificate.passed:
        raise BuildError(certificate.verdict)
    return f"a certificate: {certificate.verdict}"


def _try_bench(backend: str, folder: Path) -> str:
    from kernelwright.bench.runner import bench

    files = folder / "model.py", folder / f"candidate_{backend}.py"
    timings = bench(*files, backend, baselines=("eager",), seconds=0.1)
    if timings.problems:
        raise BuildError(timings.problems[0])
    return f"timed against eager on {timings.device}"


def _try_compile(backend: str, folder: Path) -> str:
    import torch

    from kernelwright.problem import load_problem

    problem = load_problem(folder / "model.py", backend)
    with torch.no_grad():
        torch.compile(problem.module)(*problem.inputs)
    return "compiled and run by torch's default backend"


TRIALS = {
    "kernels": _try_kernels,
    "products": _try_products,
    "verify": _try_verify,
    "bench": _try_bench,
    "compile": _try_compile,
}


def _main(trial: str, backend: str, folder: str) -> int:
    try:
        print(TRIALS[trial](backend, Path(folder)))
    except Exception as error:
        if os.environ.get("KERNELWRIGHT_DEBUG"):
            raise
        text = " ".join(str(error).split())[:300]
        known = isinstance(error, KernelwrightError)
        told = text if known else f"{type(error).__name__} at {where_from(error)}: {text}"
        print(told, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
