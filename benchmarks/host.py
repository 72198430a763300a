"""What a call costs the host: small models of two operators and more, eager and ours.

    PYTHONPATH=src python3 benchmarks/host.py

The tensors are so small that the GPU is done before the host, so a burst of calls that nobody waits
for takes the host's own time. Both ways take turns, with gradients enabled and without; what is
printed are medians of bursts, in microseconds. On a CPU the kernels' own time is in the figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from bursts import medians
from measuring import arguments, build, complain_of_fallbacks, published
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module, resolve_device

WIDTH, ROWS, HEADS, LAYERS = 256, 64, 4, 6
BURSTS = 60
COLUMNS = ("model", "eager", "ours", "eager, no_grad", "ours, no_grad")


class Pointwise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * 2.0


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) * self.scale


class Scores(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x * 0.125, dim=-1)


class Loss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, dim=-1).pow(2).mean()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split(WIDTH, dim=2)
        q, k, v = (p.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.second = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.outer(F.gelu(self.inner(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, WIDTH), nn.Embedding(ROWS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _layers(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*modules)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "sigmoid, times 2": (Pointwise, (ROWS, WIDTH)),
    "gated by itself": (Gated, (ROWS, WIDTH)),
    "scaled softmax": (Scores, (ROWS, WIDTH)),
    "mean of squares": (Loss, (ROWS, WIDTH)),
    "LayerNorm, GELU": (_layers(nn.LayerNorm(WIDTH), nn.GELU()), (ROWS, WIDTH)),
    "Linear, ReLU": (_layers(nn.Linear(WIDTH, WIDTH), nn.ReLU()), (ROWS, WIDTH)),
    "Linear, BatchNorm, train": (
        _layers(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)),
        (ROWS, WIDTH),
    ),
    "Conv2d, ReLU": (_layers(nn.Conv2d(8, 8, 3), nn.ReLU()), (4, 8, 16, 16)),
    "three layers": (
        _layers(*(m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))),
        (ROWS, WIDTH),
    ),
    "residual block": (Residual, (ROWS, WIDTH)),
    "GPT of 6 layers": (Gpt, (4, ROWS)),
    "GPT, 16 samples": (Gpt, (16, ROWS)),
}


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "host", ["highest"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--bursts", type=int, default=BURSTS)
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    device = resolve_device(options.device)
    cases = {}
    for name in options.cases:
        make, shape = CASES[name]
        module, x = make().to(device), torch.randn(shape, device=device)
        x = x.abs().long() if make is Gpt else x
        cases[name] = compile_problem(problem_from_module(module, (x,))), module, x
    build(compiled.source for compiled, _, _ in cases.values())
    sheet = Sheet("Host time of a call, us", COLUMNS)
    with published(options, device, "Host", sheet) as save:
        for name, (compiled, module, x) in cases.items():
            ours = compiled.instantiate()
            us = medians({"eager": module, "ours": ours}, x, options.bursts)
            complain_of_fallbacks(ours, name)
            sheet.add([name, *(f"{us[way]:.1f}" for way in COLUMNS[1:])], {"model": name, "us": us})
            save()


if __name__ == "__main__":
    main()
