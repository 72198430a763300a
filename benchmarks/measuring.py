"""What the GEMM's measuring scripts share: emitted models, times in turns, tables with a name.

The scripts know of an emitted file only that its switch _KW_GENERATED_GEMM, where it has one, turns
the generated product off, and that kernels start through _KW_KERNEL_LIBRARY. So what ran is found
by running it: a kernel that is launched with the switch on and not with it off is a generated
product.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sheet import Sheet, file_stem, write_results
from torch import Tensor, nn

from kernelwright.bench.clock import Clock, CudaClock, Reading, device_name, make_clock
from kernelwright.bench.runner import one_round
from kernelwright.bench.variants import Variant, warm
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import WHERE_IT_PAYS, Policy
from kernelwright.problem import problem_from_module

HERE = Path(__file__).resolve().parent
IMPORT = (
    "import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), {'__name__': 'm'})"
)
ROUNDS, WARMUPS = 20, 3
LEAD_CYCLES = 2_000_000


@dataclass(frozen=True)
class Setting:
    """A precision as a user asks for it: a type, and what float32 products may use."""

    dtype: torch.dtype
    matmul: str


SETTINGS = {
    "highest": Setting(torch.float32, "highest"),
    "high": Setting(torch.float32, "high"),
    "bfloat16": Setting(torch.bfloat16, "highest"),
    "float16": Setting(torch.float16, "highest"),
}


# ---- emitted models ----------------------------------------------------------------------------


def compiled_for(
    module: nn.Module,
    rows: int,
    depth: int,
    precision: str,
    policy: Policy = WHERE_IT_PAYS,
) -> Compiled:
    """The module compiled for inputs of `rows` x `depth`; a batch of one would stay one."""
    parameter = next(module.parameters())
    x = torch.zeros(max(rows, 16), depth, dtype=parameter.dtype, device=parameter.device)
    problem = problem_from_module(module, (x,), SETTINGS[precision].matmul)
    return compile_problem(problem, policy=policy)


def build(sources: Iterable[str]) -> None:
    """Import each emitted text in a process of its own, all at once: later loads find the build."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        paths = []
        for i, text in enumerate(dict.fromkeys(sources)):
            paths.append(Path(folder) / f"emitted_{i}.py")
            paths[-1].write_text(text)
        for said in pool.map(_import, paths):
            if said:
                sys.exit(f"An emitted file could not be built:\n{said[-3000:]}")


def _import(path: Path) -> str:
    command = [sys.executable, "-c", IMPORT, str(path)]
    # The model may be a class of a script here.
    places = [str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in places if p)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stderr or "it ended without a word" if done.returncode else ""


def emitted_file(model: nn.Module) -> Any:
    """The module that an emitted class lives in."""
    return sys.modules[type(model).__module__]


@contextlib.contextmanager
def library_only(model: nn.Module) -> Iterator[None]:
    """Leave products to the library while this holds."""
    emitted = emitted_file(model)
    if not hasattr(emitted, "_KW_GENERATED_GEMM"):
        yield
        return
    before, emitted._KW_GENERATED_GEMM = emitted._KW_GENERATED_GEMM, False
    try:
        yield
    finally:
        emitted._KW_GENERATED_GEMM = before


def by_library(model: nn.Module) -> Callable[[Tensor], object]:
    """The model as it runs with the generated product switched off."""

    def call(x: Tensor) -> object:
        with library_only(model):
            return model(x)

    return call


def path_taken(model: nn.Module, x: Tensor) -> str:
    """`generated`, `few rows` or `thin` where the file makes the product on x, else `library`."""
    with_it = launches(model, x)
    with library_only(model):
        without = launches(model, x)
    own = with_it - without
    for ending, path in (("_few_rows", "few rows"), ("_thin", "thin")):
        if any(name.endswith(ending) for name in own):
            return path
    return "generated" if own else "library"


def launches(model: nn.Module, x: Tensor) -> set[str]:
    """The names of the kernels that one call launches."""
    emitted = emitted_file(model)
    kernels = getattr(emitted, "_KW_KERNEL_LIBRARY", None)
    if kernels is None:  # a file without kernels
        return set()
    names: list[str] = []
    kernels.watchers.append(names.extend)
    try:
        model(x)
    finally:
        kernels.watchers.clear()
    return {name.removeprefix("launch_") for name in names}


def complain_of_fallbacks(model: nn.Module, what: str) -> None:
    causes = dict(getattr(model, "fallbacks", {}))
    if causes:
        sys.exit(f"{what}: the emitted model ran the original forward: {causes}.")


# ---- time --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Medians in milliseconds: on the device, and until the Python call returns."""

    ms: float
    host_ms: float


class KernelClock(CudaClock):
    """Time on the GPU alone: it is kept busy until the host has queued the whole call."""

    def time(self, call: Callable[[], object]) -> Reading:
        torch.cuda._sleep(LEAD_CYCLES)  # type: ignore[no-untyped-call]
        return super().time(call)


def kernel_clock(device: torch.device) -> Clock:
    return KernelClock(device) if device.type == "cuda" else make_clock(device)


def in_turns(variants: Sequence[Variant], clock: Clock, rounds: int = ROUNDS) -> dict[str, Times]:
    """Medians over rounds in which every variant is called once, on rotated inputs."""
    for variant in variants:
        warm(variant, WARMUPS)
    readings = [one_round(list(variants), k, clock) for k in range(rounds)]
    return {
        v.name: Times(*(statistics.median(r[i][which] for r in readings) for which in (0, 1)))
        for i, v in enumerate(variants)
    }


# ---- arguments and results ---------------------------------------------------------------------


def shapes_of(count: int) -> Callable[[str], list[tuple[int, ...]]]:
    """Reads `1024x8192x8192,128x64x64` as tuples of `count` numbers each."""

    def shapes(text: str) -> list[tuple[int, ...]]:
        read = [tuple(int(n) for n in item.split("x")) for item in text.split(",")]
        if any(len(shape) != count for shape in read):
            raise ValueError
        return read

    return shapes


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape)


def arguments(doc: str | None, name: str, precisions: Sequence[str]) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0] if doc else None)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precisions", nargs="+", choices=precisions, default=list(precisions))
    parser.add_argument("--results", metavar="DIR", default=str(HERE / "results"))
    parser.add_argument("--name", default=name, help="of the files: HARDWARE-NAME.md and .json")
    return parser


@contextlib.contextmanager
def published(
    options: argparse.Namespace, device: torch.device, title: str, *sheets: Sheet
) -> Iterator[Callable[[], None]]:
    """Print and write the tables in the end, even after a failure.

    What it gives writes them as they stand: a script that is killed for its time then leaves most
    of what it measured.
    """

    def save() -> None:
        write(options, device, title, [sheet for sheet in sheets if sheet.rows])

    try:
        yield save
    finally:
        for sheet in sheets:
            print(sheet.markdown())
        save()


def write(
    options: argparse.Namespace, device: torch.device, title: str, sheets: Sequence[Sheet]
) -> None:
    """Markdown and JSON, with the hardware and the command named."""
    hardware = device_name(device)
    header = {
        "device": hardware,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "date": datetime.date.today().isoformat(),
        "command": _command(options.results),
    }
    stem = f"{file_stem(hardware)}-{options.name}"
    write_results(Path(options.results), stem, title, header, sheets)


def _command(folder: str) -> str:
    """What was typed, but for the folder of the results: that is where they are read."""
    words = ["benchmarks/" + Path(sys.argv[0]).name, *sys.argv[1:]]
    return " ".join(w for w in words if w not in ("--results", folder, f"--results={folder}"))
