"""What a call costs the host, in microseconds: with gradients enabled and without, eager and ours.

The GPU runs behind the host, so a burst of calls that nobody waits for takes the host's own time.
It is that of a founding model with few rows: the host does the same work for any number of them.

`python benchmarks/call_cost.py` prints the median of bursts; the last column is what enabled
gradients add to a call of ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from evaluator import EXAMPLES, MODELS, SEED, Contest, contest, wait
from measuring import arguments, published
from sheet import Sheet

import kernelwright
from kernelwright.problem import resolve_device

COLUMNS = ("model", "rows", "eager", "eager, grad", "ours", "ours, grad", "grad adds")
BURST, BURSTS = 20, 150


def burst_us(call: Callable[..., Any], inputs: list[Any], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    results = [call(*inputs) for _ in range(BURST)]
    taken = (time.perf_counter() - start) / BURST * 1e6
    del results
    return taken


def costs(c: Contest, rows: int) -> dict[str, float]:
    """Medians; the variants take turns, so that a busy moment of the machine hits all of them."""
    inputs = [x[:rows] for x in c.inputs(SEED)]
    modules = {"eager": c.model, "ours": c.candidate}
    readings: dict[str, list[float]] = {}
    for burst in range(-5, BURSTS):
        for name, module in modules.items():
            for grad in (False, True):
                with torch.set_grad_enabled(grad):
                    taken = burst_us(module, inputs, c.device)
                if burst >= 0:
                    readings.setdefault(f"{name}, grad" if grad else name, []).append(taken)
    return {name: statistics.median(values) for name, values in readings.items()}


def main() -> None:
    parser = arguments(__doc__, "call-cost", ["highest"])
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 1024])
    options = parser.parse_args()
    device = resolve_device(options.device)
    sheet = Sheet("Host time of a call, us", COLUMNS)
    with published(options, device, "What a call costs the host", sheet) as save:
        for name in MODELS:
            path = EXAMPLES / name / "model.py"
            source = kernelwright.explain(path, device=str(device)).source
            c = contest(path.read_text(), source, device)
            for rows in options.rows:
                found = costs(c, rows)
                adds = found["ours, grad"] - found["ours"]
                cells = [name, str(rows), *(f"{v:.1f}" for v in found.values()), f"{adds:+.1f}"]
                sheet.add(cells, {"model": name, "rows": rows, "us": found})
            save()
            del c


if __name__ == "__main__":
    main()
