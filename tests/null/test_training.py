"""The two graphs of a training step, run by torch in float64: gradients are autograd's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checking import MODELS
from differentiated import both, training, worst
from torch import Tensor, nn

from kernelwright import spec
from kernelwright.errors import UnsupportedError
from kernelwright.problem import Problem, load_problem, problem_from_module

# What a training step is refused for, by the model of tests/models.
REFUSED = {
    "halves_of_the_batch": "no polynomial of the batch",
    **{
        p.stem: "half precision"
        for p in MODELS
        if any(w in p.read_text() for w in ("float16", "half()"))
    },
    "scaled_by_an_item": "known only at a call",
    "scaled_by_sizes": "known only at a call",
}
# The epsilon that eager takes if none is given is another one in float64.
OTHERWISE_IN_FLOAT64 = ("rms_norm_gate",)
DRAWN = sorted(path for path in MODELS if path.stem not in OTHERWISE_IN_FLOAT64)


@pytest.mark.parametrize("path", DRAWN[::5], ids=lambda path: path.stem)
def test_gradients_of_models(path: Path) -> None:
    check(load_problem(path, "cpu"), REFUSED.get(path.stem))


def check(problem: Problem, refused: str | None = None) -> Any:
    if refused is not None:
        with pytest.raises(UnsupportedError, match=refused):
            training(problem)
        return None
    found = training(problem)
    spec.check_graph(found.forward, "capture")
    spec.check_graph(found.backward, "capture")
    assert worst(both(problem, found)) == {}
    return found


def live(module: nn.Module, *inputs: Tensor) -> Problem:
    return problem_from_module(module, inputs)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Linear(12, 24), nn.GroupNorm(4, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.mish(F.hardtanh(F.silu(self.n(self.a(x))))))


def test_pointwise_chains_and_statistics_are_computed_again() -> None:
    """A product is kept, and what the next product reads; of the norm's bias, a copy."""
    found = check(live(Chain(), torch.randn(5, 12)))
    kept = {saved.value: saved for saved in found.saved}
    assert kept.keys() == {"a", "mish", "a_weight", "b_weight", "n_weight", "n_bias", "x"} | (
        {"silu"} & kept.keys()
    )
    assert kept["n_bias"].copied and not kept["n_weight"].copied
    assert "not computed twice" in str(kept["a"])


class Heads(nn.Module):
    """Results that are views, detached, or nobody's; an input that no gradient flows to."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.unused = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(x * self.w)
        return h.view(-1, 2, 3), h.sum(1).detach(), h * y.detach()


def test_a_gradient_that_eager_does_not_give_is_none() -> None:
    problem = live(Heads(), torch.randn(4, 6), torch.randn(4, 6))
    found = training(problem)
    pairs = both(problem, found)
    assert worst(pairs) == {}
    assert pairs["y"] == (None, None)
    assert "unused" not in found.gradients


class Stopped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = torch.sigmoid(x)
        return x * scale + x.exp().detach()


class Custom(nn.Module):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.Doubled.apply(x)) * 3


def test_what_autograd_does_otherwise_is_refused() -> None:
    """A trace does not show where gradients stop, nor what a function of the user's own does."""
    for module in (Stopped(), Custom()):
        with pytest.raises(UnsupportedError, match=r"autograd records|trace"):
            training(live(module, torch.randn(4, 6)))


def test_the_graphs_hold_for_other_batches() -> None:
    found = training(live(Chain(), torch.randn(5, 12)))
    for batch in (1, 3):
        assert worst(both(live(found_module := Chain(), torch.randn(batch, 12)), found)) == {}
        assert isinstance(found_module, nn.Module)
