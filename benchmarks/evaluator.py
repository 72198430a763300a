"""The founding models as KernelBench's evaluator sees them: synchronous calls, gradients enabled.

An evaluator of our own, after the published description of KernelBench's. In: the texts of a file
with Model and of one with ModelNew. Both texts are run, both models are built under one seed and
moved to the device, outputs are compared on several random inputs, and then plain calls are timed,
each followed by a synchronisation. Parameters require gradients and nothing says no_grad, so a
candidate that is fast under no_grad alone shows no gain here.

`python benchmarks/evaluator.py` prints a table of such times beside the GPU's own time, as bench
takes it: what is between the two is the cost of a synchronous call.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MODELS = sorted(p.parent.name for p in EXAMPLES.glob("*/model.py"))
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
CORRECTNESS_TRIALS, WARMUPS, TIMED_TRIALS = 5, 3, 100
SEED = 42


@dataclass
class Evaluation:
    """What the evaluator found; times are medians of synchronous calls in milliseconds."""

    correct: bool = True
    largest_error: float = 0.0
    ms: dict[str, float] = field(default_factory=dict)
    fallbacks: Counter[str] = field(default_factory=Counter)
    why: str = ""


def run_text(text: str) -> dict[str, Any]:
    """Run a file's text in an empty namespace: it has no name and no file of its own."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "<string>", "exec"), namespace)
    return namespace


def set_seed(seed: int) -> None:
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def on_device(values: list[Any], device: torch.device) -> list[Any]:
    return [v.to(device) if isinstance(v, Tensor) else v for v in values]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Contest:
    """A model and a candidate with the same weights on a device, and a maker of inputs."""

    model: nn.Module
    candidate: nn.Module
    get_inputs: Callable[[], list[Any]]
    device: torch.device

    def inputs(self, seed: int) -> list[Any]:
        set_seed(seed)
        return on_device(self.get_inputs(), self.device)


def contest(original: str, candidate: str, device: torch.device, seed: int = SEED) -> Contest:
    """Both texts are run; both models are built from the same arguments under the same seed."""
    reference, new = run_text(original), run_text(candidate)
    set_seed(seed)
    arguments = on_device(reference["get_init_inputs"](), device)
    built = []
    for made in (reference["Model"], new["ModelNew"]):
        set_seed(seed)
        with torch.no_grad():
            built.append(made(*arguments).to(device))
    return Contest(built[0], built[1], reference["get_inputs"], device)


def compare(c: Contest, trials: int = CORRECTNESS_TRIALS, grad: bool = False) -> Evaluation:
    """Random inputs, equal shapes, and elements within the tolerance of their type."""
    found = Evaluation()
    for trial in range(trials):
        inputs = c.inputs(SEED + trial)
        with torch.set_grad_enabled(grad):
            outputs = []
            for module in (c.model, c.candidate):
                set_seed(SEED + trial)
                outputs.append(module(*inputs).detach())
                wait(c.device)
        expected, ours = outputs
        if expected.shape != ours.shape:
            found.correct, found.why = False, f"{tuple(ours.shape)}, not {tuple(expected.shape)}"
            break
        found.largest_error = max(found.largest_error, float((expected - ours).abs().max()))
        bound = TOLERANCES[expected.dtype]
        if not torch.allclose(expected, ours, atol=bound, rtol=bound):
            found.correct, found.why = False, f"an error of {found.largest_error:.2e}"
            break
    return found


def synchronous_ms(
    call: Callable[..., Any], inputs: list[Any], device: torch.device, trials: int, grad: bool
) -> float:
    """The median of plain calls, each timed from a quiet device to a quiet device."""
    readings = []
    with contextlib.nullcontext() if grad else torch.no_grad():
        for trial in range(-WARMUPS, trials):
            wait(device)
            start = time.perf_counter()
            result = call(*inputs)
            wait(device)
            if trial >= 0:
                readings.append((time.perf_counter() - start) * 1e3)
            del result
    return statistics.median(readings)


def evaluate(
    original: str, candidate: str, device: torch.device, trials: int = TIMED_TRIALS
) -> Evaluation:
    """Correctness first; then the times of both, with gradients enabled as in a plain script."""
    c = contest(original, candidate, device)
    found = compare(c)
    if not found.correct:
        return found
    before = fallbacks(c.candidate)
    inputs = c.inputs(SEED)
    for name, module in (("eager", c.model), ("ours", c.candidate)):
        found.ms[name] = synchronous_ms(module, inputs, device, trials, grad=True)
    found.fallbacks = fallbacks(c.candidate) - before
    return found


def fallbacks(module: nn.Module) -> Counter[str]:
    return Counter(getattr(module, "fallbacks", {}))


# ---- the table -----------------------------------------------------------------------------------

COLUMNS = (
    "model", "precision", "calls", "eager", "compile", "ours", "frozen", "best / ours",
    "GPU eager", "GPU compile", "GPU ours", "ours over GPU",
)  # fmt: skip


def figures(c: Contest, trials: int, rounds: int) -> dict[str, dict[str, float]]:
    """Synchronous times with and without gradients, and the GPU's own by the clock of bench."""
    from measuring import in_turns, kernel_clock

    from kernelwright.bench.inputs import make_sets
    from kernelwright.bench.variants import direct

    inputs = c.inputs(SEED)
    calls: dict[str, Callable[..., Any]] = {
        "eager": c.model,
        "compile": torch.compile(c.model),
        "ours": c.candidate,
    }
    found = {"device": {}, "grad": {}, "no_grad": {}}
    clock = kernel_clock(c.device)
    sets = make_sets(tuple(inputs), None, clock.flush_bytes)
    with torch.no_grad():
        timed = in_turns([direct(n, call, sets) for n, call in calls.items()], clock, rounds)
    found["device"] = {name: t.ms for name, t in timed.items()}
    for mode in ("grad", "no_grad"):
        for name, call in calls.items():
            found[mode][name] = synchronous_ms(call, inputs, c.device, trials, mode == "grad")
    if hasattr(c.candidate, "freeze"):
        c.candidate.freeze()
        for mode in ("grad", "no_grad"):
            found[mode]["frozen"] = synchronous_ms(
                c.candidate, inputs, c.device, trials, mode == "grad"
            )
    return found


def cells(name: str, precision: str, mode: str, found: dict[str, dict[str, float]]) -> list[str]:
    ms, gpu = found[mode], found["device"]
    best = min(ms["eager"], ms["compile"])
    frozen = f"{ms['frozen']:.3f}" if "frozen" in ms else "-"
    row = [name, precision, mode, f"{ms['eager']:.3f}", f"{ms['compile']:.3f}"]
    row += [f"{ms['ours']:.3f}", frozen, f"{best / ms['ours']:.2f}x"]
    row += [f"{gpu[n]:.3f}" for n in ("eager", "compile", "ours")]
    return [*row, f"{(ms['ours'] - gpu['ours']) * 1e3:+.0f} us"]


def main() -> None:
    from measuring import SETTINGS, arguments, published
    from sheet import Sheet

    import kernelwright
    from kernelwright.bench.context import matmul_precision
    from kernelwright.problem import resolve_device

    parser = arguments(__doc__, "evaluator", ["highest", "high"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--trials", type=int, default=TIMED_TRIALS)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    device = resolve_device(options.device)
    sheet = Sheet("Synchronous calls, ms", COLUMNS)
    with published(options, device, "The evaluator's view", sheet) as save:
        for precision in options.precisions:
            for name in options.models:
                setting = SETTINGS[precision].matmul
                path = EXAMPLES / name / "model.py"
                source = kernelwright.explain(path, device=str(device), precision=setting).source
                with matmul_precision(setting):
                    c = contest(path.read_text(), source, device)
                    judged = compare(c)
                    found = figures(c, options.trials, options.rounds)
                fell = dict(fallbacks(c.candidate))
                record = {"model": name, "precision": precision, "correct": judged.correct}
                record |= {"error": judged.largest_error, "ms": found, "fallbacks": fell}
                for mode in ("grad", "no_grad"):
                    sheet.add(cells(name, precision, mode, found), record)
                if fell or not judged.correct:
                    print(f"{name} at {precision}: {judged.why or f'fell back: {fell}'}")
                save()
                del c
                torch._dynamo.reset()


if __name__ == "__main__":
    main()
