"""What the choice of a convolution counts: partial results, scattered numbers, what it saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from corpus_tiles import EAGER, Everywhere
from torch import nn
from written import Written

from kernelwright.accuracy import Accuracies, Accuracy
from kernelwright.lower import ConvKernel
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module

ROUNDED = Everywhere(EAGER["rounded"])


class OfThree(Everywhere):
    """As on an H200: where there are three channels, eager takes no TF32."""

    def __getitem__(self, name: str) -> Accuracy:
        return super().__getitem__(name) if "first" not in name else Accuracy(1e-7, 1e-7)


def planned(
    forward: Callable[..., Any], *shape: int, accuracies: Accuracies = ROUNDED, **parts: Any
) -> Compiled:
    module = Written(forward, **parts).eval()
    problem = problem_from_module(module, (torch.randn(*shape),), "highest")
    return compile_problem(problem, target="sm_90", accuracies=accuracies)


@pytest.fixture(scope="module")
def mean_over_depth() -> Compiled:
    up = nn.ConvTranspose3d(32, 64, 3, stride=2, padding=1, output_padding=1)
    return planned(lambda m, x: m.up(x).mean(2), 4, 32, 16, 32, 32, up=up)


def test_few_partial_results_are_left(mean_over_depth: Compiled) -> None:
    """A tile of one place in depth would leave one for each result."""
    kernel = next(k for k in mean_over_depth.kernels if isinstance(k, ConvKernel))
    constants = dict(kernel.tile.constants)
    assert constants["kTileD"] >= 4
    (partials,) = kernel.partials
    assert partials.shape[1:] == (64, 32 // constants["kTileD"], 64, 64)  # rows as in the tile


def test_partial_results_of_places_are_finished_side_by_side(mean_over_depth: Compiled) -> None:
    (finish,) = (k for k in mean_over_depth.kernels if k.name.endswith("_finish"))
    assert finish.program.strided and finish.config.shape == "strided"


def test_statistics_of_channels_lie_with_those_of_their_row() -> None:
    made = planned(
        lambda m, x: m.c(x).mean((2, 3)), 4, 16, 64, 64, c=nn.Conv2d(16, 64, 5, groups=2)
    )
    kernel = next(k for k in made.kernels if isinstance(k, ConvKernel))
    (finish,) = (k for k in made.kernels if k.name.endswith("_finish"))
    assert not finish.program.strided
    assert kernel.partials[0].shape[1] == 64


def block(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.second(F.relu(m.first(x))).sigmoid()


def test_an_epilogue_that_would_scatter_keeps_the_channels_first() -> None:
    first, second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
    made = planned(block, 10, 3, 224, 224, accuracies=OfThree(3e-4), first=first, second=second)
    convs = [r for r in made.planned.regions if r.kind in ("conv", "contract")]
    assert convs[0].kind == "conv", "the first is generated"
    library = [r for r in convs if r.kind == "contract"]
    assert all("before it" in str(r.why) for r in library)
    for kernel in made.kernels:
        if isinstance(kernel, ConvKernel):
            own = kernel.region.program.loads[0]  # type: ignore[union-attr]
            near = min(a for a in own.atoms if own.stride(a) == 1)
            stores = [s.access for s in kernel.region.program.stores]  # type: ignore[union-attr]
            assert all(s.stride(near) == 1 for s in stores)


def test_a_cat_that_would_gather_keeps_the_channels_first() -> None:
    def joined(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.c(torch.cat([x.tanh(), x.exp()], 1)).sigmoid()

    made = planned(joined, 8, 64, 64, 512, c=nn.Conv2d(128, 64, 3, padding=1))
    (conv,) = (r for r in made.planned.regions if r.kind == "contract")
    assert "before it" in str(conv.why)


def alone(conv: nn.Module, *shape: int, accuracies: Accuracies = ROUNDED) -> str:
    made = planned(lambda m, x: m.c(x.tanh()), *shape, accuracies=accuracies, c=conv)
    (kind,) = (r.kind for r in made.planned.regions if r.kind in ("conv", "contract"))
    return kind


def test_a_convolution_that_saves_nothing_is_the_librarys_where_that_is_faster() -> None:
    """Where a result is large, to turn it takes longer than the library saves."""
    few = nn.Conv2d(64, 4, 1, bias=False)
    assert alone(few, 8, 64, 64, 512, accuracies=Everywhere(EAGER["exact"])) == "contract"
    many = nn.ConvTranspose2d(128, 64, 2, stride=2, bias=False)
    assert alone(many, 8, 128, 32, 256) == "conv"
