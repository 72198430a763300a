"""Tensors of gigabytes: pointwise chains, softmax, row reductions and losses.

Each case is a model of a few lines whose largest input has the size asked for, in float32. Eager,
torch.compile (one compilation with a dynamic first dimension) and ours take turns in one run; times
are of the GPU alone, and GB/s counts every input and output once. `--sizes 0.01` is for a CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from measuring import arguments, build, complain_of_fallbacks, in_turns, kernel_clock, published
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.bench.variants import direct
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module, resolve_device
from kernelwright.verify.inputs import Inputs

GB = 1_000_000_000
COLUMNS = ("case", "GB", "eager", "compile", "ours", "GB/s", "over eager", "over compile")
TRACED_ROWS = 64
TOLERANCE = 1e-4


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x * 2.0 + 1.0) * x


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)


class RowSum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=-1)


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


class CrossEntropy(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target)


class Huber(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(x, target)


class Triplet(nn.Module):
    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(anchor, positive, negative, margin=1.0)


Make = Callable[[int, int, torch.device], tuple[Tensor, ...]]


def _values(count: int) -> Make:
    """So many tensors of random numbers."""

    def make(rows: int, columns: int, device: torch.device) -> tuple[Tensor, ...]:
        return tuple(torch.randn(rows, columns, device=device) for _ in range(count))

    return make


def _scores(rows: int, columns: int, device: torch.device) -> tuple[Tensor, ...]:
    """Scores and the numbers of the right classes."""
    target = torch.randint(0, columns, (rows,), device=device)
    return torch.randn(rows, columns, device=device), target


ONE = _values(1)


@dataclass(frozen=True)
class Case:
    model: type[nn.Module]
    columns: int
    inputs: Make = ONE


CASES = {
    "relu": Case(Relu, 4096),
    "sigmoid(2x + 1) x": Case(Chain, 4096),
    "softmax of 1024": Case(Softmax, 1024),
    "softmax of 4096": Case(Softmax, 4096),
    "softmax of 32768": Case(Softmax, 32768),
    "sums of 1024": Case(RowSum, 1024),
    "sums of 4096": Case(RowSum, 4096),
    "sums of 32768": Case(RowSum, 32768),
    "sum of everything": Case(Sum, 4096),
    "cross entropy, 1000 classes": Case(CrossEntropy, 1000, _scores),
    "cross entropy, 32000 classes": Case(CrossEntropy, 32000, _scores),
    "huber loss": Case(Huber, 4096, _values(2)),
    "triplet loss": Case(Triplet, 1024, _values(3)),
}


def compiled_case(case: Case, device: torch.device) -> tuple[nn.Module, Compiled]:
    module = case.model()
    inputs = case.inputs(TRACED_ROWS, case.columns, device)
    return module, compile_problem(problem_from_module(module, inputs))


def by_inductor(module: nn.Module) -> Callable[..., Any]:
    """torch.compile for any number of rows, so that one compilation serves all sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(module)

    def call(*inputs: Tensor) -> Any:
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 0)
        return compiled(*inputs)

    return call


def check(name: str, ours: Tensor, theirs: Tensor) -> None:
    error = float((ours - theirs).norm() / theirs.norm())
    if not error < TOLERANCE:
        sys.exit(f"{name}: the results differ by {error:.1e} of their size.")


def moved(inputs: tuple[Tensor, ...], result: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in (*inputs, result))


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "large", ["highest"])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 2, 4, 8], metavar="GB")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    options = _arguments()
    device = resolve_device(options.device)
    clock = kernel_clock(device)
    cases = {name: compiled_case(CASES[name], device) for name in options.cases}
    build(compiled.source for _, compiled in cases.values())
    sheet = Sheet("Large tensors, ms", COLUMNS)
    with published(options, device, "Large tensors", sheet) as save:
        for name, (module, compiled) in cases.items():
            ours, inductor = compiled.instantiate(), by_inductor(module)
            for size in options.sizes:
                columns = CASES[name].columns
                inputs = CASES[name].inputs(int(size * GB / 4 / columns), columns, device)
                if size == options.sizes[0]:
                    check(name, ours(*inputs), module(*inputs))
                sets = [Inputs(inputs, {})] * 2  # no cache holds anything of them
                ways = {"eager": module, "compile": inductor, "ours": ours}
                variants = [direct(way, call, sets) for way, call in ways.items()]
                ms = {way: t.ms for way, t in in_turns(variants, clock, options.rounds).items()}
                rate = moved(inputs, ours(*inputs)) / ms["ours"] / 1e6
                cells = [name, f"{size:g}", *(f"{ms[way]:.3f}" for way in ways), f"{rate:.0f}"]
                cells += [f"{ms[way] / ms['ours']:.2f}x" for way in ("eager", "compile")]
                sheet.add(cells, {"case": name, "gb": size, "ms": ms, "gb_per_s": rate})
                complain_of_fallbacks(ours, name)
                del inputs, sets, variants
            save()


if __name__ == "__main__":
    main()
