"""Blocks around convolutions in which one choice may cost more than all others gain.

A mean over one axis of the space, two convolutions between which values change their order in
memory, a residual from another convolution, joined channels. Each is timed in train and in eval
mode beside eager and torch.compile in turns, on the GPU alone, at torch's own precisions (TF32 is
allowed in convolutions, not in products).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from measuring import (
    SETTINGS,
    arguments,
    build,
    complain_of_fallbacks,
    in_turns,
    kernel_clock,
    published,
)
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.bench.context import quiet_warnings
from kernelwright.bench.variants import direct
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module, resolve_device
from kernelwright.verify.inputs import Inputs

COLUMNS = (
    "block",
    "input",
    "mode",
    "type",
    "eager",
    "compile",
    "ours",
    "over eager",
    "over compile",
)
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 2e-2}


class DepthMean(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose3d(cin, cout, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.up(x).mean(2, keepdim=True), 1)


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(cout)
        self.second = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(cout)
        self.beside = nn.Identity()
        if stride != 1 or cin != cout:
            self.beside = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.beside(x))


class Hourglass(nn.Module):
    """Down twice and up again, each way back joined with what was there before."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = [channels, 2 * channels, 4 * channels]
        self.down = nn.ModuleList([Residual(3, sizes[0])])
        self.down.extend(Residual(a, b) for a, b in itertools.pairwise(sizes))
        pairs = list(itertools.pairwise(sizes[::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.joined = nn.ModuleList(Residual(a, b) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, block, before in zip(self.up, self.joined, kept[-2::-1], strict=True):
            x = block(torch.cat([up(x), before], 1))
        return x


@dataclass(frozen=True)
class Case:
    module: nn.Module
    shape: tuple[int, ...]


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {
        "mean over depth, 32 to 64": Case(DepthMean(32, 64), (16, 32, 16, 32, 32)),
        "mean over depth, 64 to 128": Case(DepthMean(64, 128), (8, 64, 8, 16, 16)),
        "residual, 3 to 64": Case(Residual(3, 64), (10, 3, 224, 224)),
        "residual, 64": Case(Residual(64, 64), (32, 64, 56, 56)),
        "residual, 64 to 128 by steps": Case(Residual(64, 128, 2), (32, 64, 56, 56)),
        "residual, 256": Case(Residual(256, 256), (32, 256, 14, 14)),
        "hourglass of 32": Case(Hourglass(32), (4, 3, 256, 256)),
        "hourglass of 64": Case(Hourglass(64), (8, 3, 128, 128)),
    }


@dataclass
class Job:
    name: str
    mode: str
    precision: str
    module: nn.Module
    inputs: list[Inputs]
    compiled: Compiled


def jobs(options: argparse.Namespace, device: torch.device) -> Iterator[Job]:
    for name, case in cases().items():
        for precision in options.precisions:
            for mode in options.modes:
                dtype = SETTINGS[precision].dtype
                module = copy.deepcopy(case.module).to(device, dtype).train(mode == "train")
                draws = [torch.randn(case.shape, device=device).to(dtype) for _ in range(2)]
                problem = problem_from_module(module, (draws[0],), SETTINGS[precision].matmul)
                inputs = [Inputs((x,), {}) for x in draws]
                yield Job(name, mode, precision, module, inputs, compile_problem(problem))


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "blocks", ["highest", "bfloat16"])
    parser.add_argument("--modes", nargs="+", choices=("eval", "train"), default=["eval", "train"])
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def check(job: Job, ours: nn.Module) -> None:
    """Copies, so that no running statistic sees it."""
    (x,) = job.inputs[0].args
    exact = copy.deepcopy(job.module).double()(x.double())
    found = copy.deepcopy(ours)(x).double()
    error = float((found - exact).norm() / exact.norm())
    if not error < TOLERANCE[x.dtype]:
        sys.exit(f"{job.name}, {job.mode}: off by {error:.1e} of the result's size.")


@torch.no_grad()
def main() -> None:
    options = _arguments()
    device = resolve_device(options.device)
    clock = kernel_clock(device)
    made = list(jobs(options, device))
    build(job.compiled.source for job in made)
    sheet = Sheet("Blocks around convolutions, ms", COLUMNS)
    with quiet_warnings(), published(options, device, "Blocks", sheet) as save:
        for job in made:
            ours = job.compiled.instantiate()
            check(job, ours)
            torch._dynamo.reset()
            ways = {"eager": job.module, "compile": torch.compile(job.module), "ours": ours}
            variants = [direct(way, call, job.inputs) for way, call in ways.items()]
            ms = {way: t.ms for way, t in in_turns(variants, clock, options.rounds).items()}
            (x,) = job.inputs[0].args
            over = {way: ms[way] / ms["ours"] for way in ("eager", "compile")}
            shape = " x ".join(map(str, x.shape))
            cells = [job.name, shape, job.mode, str(x.dtype)[6:]]
            cells += [*(f"{ms[way]:.3f}" for way in ways), *(f"{n:.2f}x" for n in over.values())]
            sheet.add(cells, {"block": job.name, "mode": job.mode, "ms": ms})
            complain_of_fallbacks(ours, job.name)
            save()


if __name__ == "__main__":
    main()
