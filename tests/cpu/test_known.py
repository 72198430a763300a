"""A call like the last one is known by one guard, and in how many ways it may be another.

In: a module whose call is known. What is asked: that the guard sees what `outside` would.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module

WIDTH = 16


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * self.scale


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, Any]:
    module = Scaled()
    compiled = compile_problem(problem_from_module(module, (torch.randn(4, WIDTH),)), target="cpu")
    return module, compiled.instantiate()


@pytest.fixture
def known(made: tuple[nn.Module, Any]) -> tuple[nn.Module, Any, Tensor]:
    """The original, ours, and a tensor with which its calls are known."""
    module, ours = made
    x = torch.randn(4, WIDTH)
    ours(x)
    memo = vars(ours)["_kernelwright"]
    assert memo.known is not None and memo.known.holds((x, *memo.state))
    ours.fallbacks.clear()
    return module, ours, x


def agree(module: nn.Module, ours: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(ours(x), module(x), rtol=1e-5, atol=1e-6)


def test_a_known_call_gives_what_eager_does(known: tuple[nn.Module, Any, Tensor]) -> None:
    module, ours, x = known
    agree(module, ours, x)
    assert not ours.fallbacks


def test_gradients_are_recorded_as_each_call_asks(known: tuple[nn.Module, Any, Tensor]) -> None:
    module, ours, x = known
    with torch.no_grad():
        assert not ours(x).requires_grad
    assert ours(x).requires_grad
    y = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(ours(y).sum(), y)
    (expected,) = torch.autograd.grad(module(y).sum(), y)
    torch.testing.assert_close(found, expected)
    with torch.inference_mode():
        assert ours(x).is_inference()


def test_other_tensors_are_not_known(known: tuple[nn.Module, Any, Tensor]) -> None:
    module, ours, x = known
    for other in (torch.randn(6, WIDTH), torch.randn(4, 2 * WIDTH)[:, ::2]):
        agree(module, ours, x)
        agree(module, ours, other)
    assert not ours.fallbacks
    agree(module, ours, torch.randn(WIDTH, 4).t())
    assert "the result would lie in memory as x does" in ours.fallbacks
    agree(module, ours, torch.randn(WIDTH))
    assert "x is not of shape batch x 16" in ours.fallbacks


def test_a_weight_of_another_type_is_seen(known: tuple[nn.Module, Any, Tensor]) -> None:
    module, ours, x = known
    own = ours.scale.data
    ours.scale.data = own.double()
    assert ours(x).dtype == torch.float64
    ours.scale.data = own
    assert "a parameter has another type or shape" in ours.fallbacks
    agree(module, ours, x)


def test_autocast_is_seen(known: tuple[nn.Module, Any, Tensor]) -> None:
    _, ours, x = known
    with torch.autocast("cpu"):
        ours(x)
    assert "autocast is on" in ours.fallbacks


def test_transforms_are_seen(known: tuple[nn.Module, Any, Tensor]) -> None:
    module, ours, x = known
    inside = torch.func.vmap(lambda row: ours(x) * row)(x[0])  # x itself is no wrapper
    torch.testing.assert_close(inside, torch.func.vmap(lambda row: module(x) * row)(x[0]))
    assert "a transform of torch.func is active" in ours.fallbacks
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found, expected = (forward_ad.unpack_dual(f(dual)).tangent for f in (ours, module))
    torch.testing.assert_close(found, expected)


def test_what_traces_is_seen(known: tuple[nn.Module, Any, Tensor]) -> None:
    module, ours, x = known
    traced = torch.jit.trace(ours, (x,), check_trace=False)
    other = torch.randn(4, WIDTH)
    torch.testing.assert_close(traced(other), module(other), rtol=1e-5, atol=1e-6)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda y: ours(y))(x)
    torch.testing.assert_close(graph(other), module(other), rtol=1e-5, atol=1e-6)
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(ours(mode.from_tensor(x)), torch._subclasses.FakeTensor)
        assert isinstance(ours(x), torch._subclasses.FakeTensor)
