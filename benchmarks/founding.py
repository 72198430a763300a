"""The founding models: eager, torch.compile and ours; tables of docs/figures.md, by one command.

    PYTHONPATH=src python3 benchmarks/founding.py

prints them as Markdown and writes them, with the hardware and the conditions named and every other
figure in the JSON, to benchmarks/results. Four parts, each a table:

- gpu: time of the GPU alone, in turns, with a flushed cache and rotated inputs, and errors against
  float64. `frozen` is ModelNew.freeze(); beside the table the JSON has `library` (ours with the
  library's product and a row kernel after it), `linear` (the bare product by the library) and what
  other `--modes` of torch.compile take.
- calls: one synchronous call with gradients enabled, as a script makes it without no_grad.
- host: what a call costs the host, from bursts of calls that nobody waits for.
- ready: seconds for optimize alone, for a first use of the emitted file and for a later one; only
  when it is asked for.

On a CPU the gpu part is the wall clock, there is no host part, and rows are few by default.
"""

from __future__ import annotations

import argparse
import copy
import functools
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from build_time import build_time
from bursts import medians
from measuring import (
    SETTINGS,
    arguments,
    build,
    by_library,
    complain_of_fallbacks,
    in_turns,
    kernel_clock,
    path_taken,
    published,
)
from model_files import perturbed
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.bench.context import matmul_precision
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import direct
from kernelwright.formats.evaluator import TIMED_TRIALS, synchronous_ms
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import load_problem, resolve_device

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MODELS = (
    "gemm_groupnorm_min_bias",
    "gemm_bias_hardtanh_mish_groupnorm",
    "matmul_groupnorm_leakyrelu_sum",
)
# bfloat16 keeps the library's product: its calls differ from those at `high` by that alone.
CALLED = ("highest", "high")
ROWS = {"cuda": 1024, "cpu": 64}
PRECISIONS = {"cuda": ["highest", "high", "bfloat16"], "cpu": ["highest"]}
DEFAULT_PARTS = {"cuda": ["gpu", "calls", "host"], "cpu": ["gpu", "calls"]}
CHECKED_ROWS = 64
BURSTS = 60
WAYS = ("eager", "torch.compile", "kernelwright", "frozen")


@dataclass
class Case:
    """One model at one precision, compiled, with as many rows of its inputs as are timed."""

    name: str
    precision: str
    compiled: Compiled
    seconds: float
    x: Tensor

    @property
    def module(self) -> nn.Module:
        return self.compiled.problem.module

    @functools.cached_property
    def ways(self) -> dict[str, Callable[..., Any]]:
        """The ways to run it that every table has."""
        found: dict[str, Callable[..., Any]] = {
            "eager": self.module,
            "torch.compile": torch.compile(self.module, dynamic=False),
            "kernelwright": self.compiled.instantiate(),
        }
        frozen: Any = self.compiled.instantiate()
        if hasattr(frozen, "freeze"):
            found["frozen"] = frozen.freeze()
        return found

    @property
    def labels(self) -> list[str]:
        return [self.name, self.precision]

    def record(self, **figures: Any) -> dict[str, Any]:
        rows = self.x.shape[0]
        return {"model": self.name, "precision": self.precision, "rows": rows, **figures}


def make_case(name: str, precision: str, device: torch.device, rows: int, folder: Path) -> Case:
    setting = SETTINGS[precision]
    path = folder / f"{name}_{precision}.py"
    original = (EXAMPLES / name / "model.py").read_text()
    path.write_text(perturbed(original, str(setting.dtype)))
    problem = load_problem(path, str(device), setting.matmul)
    started = time.perf_counter()
    compiled = compile_problem(problem)
    seconds = time.perf_counter() - started
    return Case(name, precision, compiled, seconds, problem.inputs[0][:rows].contiguous())


# ---- the parts -----------------------------------------------------------------------------------


def milliseconds(ms: dict[str, float]) -> list[str]:
    """A cell for each way; ours in bold."""
    texts = [f"{ms[way]:.3f}" if way in ms else "" for way in WAYS]
    return [*texts[:2], *(f"**{text}**" if text else "" for text in texts[2:])]


@torch.no_grad()
def on_gpu(case: Case, options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    clock = kernel_clock(case.x.device)
    sets = make_sets((case.x,), None, clock.flush_bytes)
    ours: Any = case.ways["kernelwright"]
    linear = next(m for m in case.module.modules() if isinstance(m, nn.Linear))
    calls = case.ways | {
        "library": by_library(ours),
        "linear": functools.partial(F.linear, weight=linear.weight),
    }
    calls |= {mode: torch.compile(case.module, mode=mode, dynamic=False) for mode in options.modes}
    timed = in_turns([direct(n, c, sets) for n, c in calls.items()], clock, options.rounds)
    ms = {name: t.ms for name, t in timed.items()}
    error, eager_error = errors(ours(case.x), case.module(case.x), case.module, case.x)
    figures = {"ms": ms, "error": error, "eager_error": eager_error}
    cells = [*case.labels, *milliseconds(ms), f"{error:.1e}", f"{eager_error:.1e}"]
    return cells, case.record(path=path_taken(ours, case.x), **figures)


def errors(ours: Tensor, theirs: Tensor, module: nn.Module, x: Tensor) -> tuple[float, float]:
    """Relative Frobenius errors of ours and eager's on some rows, against float64."""
    count = min(CHECKED_ROWS, x.shape[0])
    exact = copy.deepcopy(module).double()(x[:count].double())
    axis = next(i for i, size in enumerate(ours.shape) if size == x.shape[0])
    mine, other = (
        float((y.narrow(axis, 0, count).double() - exact).norm() / exact.norm())
        for y in (ours, theirs)
    )
    return mine, other


def in_calls(case: Case, options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    device = case.x.device
    ms = {
        f"{way}{'' if grad else ', no_grad'}": synchronous_ms(
            call, [case.x], device, options.trials, grad
        )
        for grad in (True, False)
        for way, call in case.ways.items()
    }
    return [*case.labels, *milliseconds(ms)], case.record(ms=ms)


def on_host(case: Case, options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    us = medians(case.ways, case.x, options.bursts)
    cells = [f"{us[way]:.0f}" if way in us else "" for way in WAYS]
    without = us["kernelwright, no_grad"]
    return [*case.labels, *cells, f"{without:.0f}"], case.record(us=us)


def until_ready(case: Case, options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{case.name}_new.py"
        path.write_text(case.compiled.source)
        ready = build_time(path, case.x.device.type)
    cells = [f"{case.seconds:.1f}", f"{ready.cold_s:.1f}", f"{ready.warm_s:.2f}"]
    return [*case.labels, *cells], case.record(optimize_s=case.seconds, **asdict(ready))


Part = Callable[[Case, argparse.Namespace], tuple[list[str], dict[str, Any]]]
ERRORS = ("error", "eager's error")
PARTS: dict[str, tuple[Part, str, tuple[str, ...]]] = {
    "gpu": (on_gpu, "Time on the device, ms", (*WAYS, *ERRORS)),
    "calls": (in_calls, "One synchronous call with gradients enabled, ms", WAYS),
    "host": (on_host, "Host time of a call, us", (*WAYS, "kernelwright, no_grad")),
    "ready": (until_ready, "Until it is ready, s", ("optimize", "first use", "later use")),
}


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "founding", list(SETTINGS))
    parser.set_defaults(precisions=None)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rows", type=int, help="default: 1024, on a CPU 64")
    parser.add_argument("--parts", nargs="+", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=15, help="of the gpu part")
    parser.add_argument("--trials", type=int, default=TIMED_TRIALS, help="of the calls part")
    parser.add_argument("--bursts", type=int, default=BURSTS, help="of the host part")
    parser.add_argument("--modes", nargs="+", default=[], help="of torch.compile: max-autotune")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    device = resolve_device(options.device)
    rows = options.rows or ROWS[device.type]
    precisions = options.precisions or PRECISIONS[device.type]
    wanted = [(p, m) for p in precisions for m in options.models]
    with tempfile.TemporaryDirectory() as folder:
        cases = [make_case(m, p, device, rows, Path(folder)) for p, m in wanted]
    build(case.compiled.source for case in cases)
    sheets = {
        part: Sheet(f"{PARTS[part][1]}, {rows} rows", ("model", "precision", *PARTS[part][2]), 2)
        for part in options.parts or DEFAULT_PARTS[device.type]
    }
    with published(options, device, "Founding models", *sheets.values()) as save:
        for case in cases:
            with matmul_precision(SETTINGS[case.precision].matmul):
                for part, sheet in sheets.items():
                    if part in ("gpu", "ready") or case.precision in CALLED:
                        sheet.add(*PARTS[part][0](case, options))
            complain_of_fallbacks(case.ways["kernelwright"], case.name)
            save()
            del case.__dict__["ways"]
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
