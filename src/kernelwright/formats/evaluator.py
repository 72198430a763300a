"""An evaluator after the published description of KernelBench's: synchronous calls with gradients.

In: the texts of a file
with Model and of one with ModelNew. Both texts are run, both models are built under one seed and
moved to the device, outputs are compared on several random inputs, and then plain calls are timed,
each followed by a synchronisation. Parameters require gradients and nothing says no_grad, so a
candidate that is fast under no_grad alone shows no gain here.

Called as a program, it writes what its results file has of one sample. benchmarks/founding.py
prints a table of such times; tests/cpu/test_kernelbench.py runs it on small models.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
    return statistics.median(synchronous_readings(call, inputs, device, trials, grad))


def synchronous_readings(
    call: Callable[..., Any], inputs: list[Any], device: torch.device, trials: int, grad: bool
) -> list[float]:
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
    return readings


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


def sample(original: str, candidate: str, device: torch.device, trials: int) -> dict[str, Any]:
    """One entry of eval_results.json: was it built, is it right, and the means of its times."""
    found: dict[str, Any] = {"compiled": False, "correctness": False, "metadata": {}}
    found |= {"runtime": -1.0, "runtime_stats": {}}
    try:
        c = contest(original, candidate, device)
    except Exception as error:
        return found | {"metadata": {"compilation_error": f"{type(error).__name__}: {error}"}}
    found["compiled"] = True
    try:
        compared = compare(c)
    except Exception as error:
        return found | {"metadata": {"runtime_error": f"{type(error).__name__}: {error}"}}
    if not compared.correct:
        return found | {"metadata": {"correctness_issue": compared.why}}
    inputs = c.inputs(SEED)
    stats = {
        name: _stats(synchronous_readings(module, inputs, device, trials, grad=True), device)
        for name, module in (("ref_runtime", c.model), ("runtime", c.candidate))
    }
    found["correctness"] = True
    for name, figures in stats.items():
        found |= {name: figures["mean"], f"{name}_stats": figures}
    return found


def _stats(readings: list[float], device: torch.device) -> dict[str, Any]:
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "mean": statistics.mean(readings),
        "std": statistics.stdev(readings) if len(readings) > 1 else 0.0,
        "min": min(readings),
        "max": max(readings),
        "num_trials": len(readings),
        "hardware": hardware,
        "device": str(device),
    }


def main() -> None:
    """ORIGINAL CANDIDATE DEVICE OUT: the texts of two files, judged and timed."""
    original, candidate, device, out = sys.argv[1:]
    first, second = (Path(path).read_text(encoding="utf-8") for path in (original, candidate))
    found = sample(first, second, torch.device(device), TIMED_TRIALS)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
