"""Buffers that a call changes, after some calls: as eager leaves them, in the same memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import kernelwright
from kernelwright.plan import ALWAYS

BATCH = 6


class Twice(nn.Module):
    """One norm for two values: the second call goes on with what the first has left."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.sigmoid(self.norm(x)))


class Unread(nn.Module):
    """Nothing that is returned depends on what is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.rand(32))

    def forward(self, x: Tensor) -> Tensor:
        self.kept.mul_(0.5).add_(x.sum((0, 2, 3)))
        return torch.sigmoid(x) * 2


class Cumulative(nn.Module):
    """The average of all batches, as a norm without momentum has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(32))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        mean = x.mean((0, 2, 3))
        self.average.add_((mean - self.average) / self.calls)
        return x - mean.reshape(1, 32, 1, 1)


class Recalled(nn.Module):
    """What is returned depends on what was kept before."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(32))
        self.register_buffer("kept", torch.rand(32))

    def forward(self, x: Tensor) -> Tensor:
        y = (x * self.scale.reshape(32, 1, 1)).sum((0, 2, 3)) * self.kept.clone()
        self.kept.copy_(self.kept * 0.5 + x.mean((0, 2, 3)))
        return y


def norm(**options: Any) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(32, **options), nn.Sigmoid())


def linear(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32 * 25, width), nn.BatchNorm1d(width))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "norm": norm,
    "slow": lambda: norm(momentum=0.01),
    "no affine": lambda: norm(affine=False),
    "no statistics": lambda: norm(track_running_stats=False),
    "columns": lambda: linear(48),
    "uneven columns": lambda: linear(24),
    "convolution": lambda: nn.Sequential(nn.Conv2d(32, 24, 3), nn.BatchNorm2d(24), nn.ReLU()),
    "twice": Twice,
    "unread": Unread,
    "cumulative": Cumulative,
    "recalled": Recalled,
}


def pair(module: nn.Module) -> tuple[Any, nn.Module]:
    """Ours, and eager with tensors of its own."""
    example = (torch.randn(BATCH, 32, 5, 5),)
    eager = copy.deepcopy(module)
    return kernelwright.optimize(module, example, policy=ALWAYS, kinds="given"), eager


def same(ours: nn.Module, eager: nn.Module) -> None:
    theirs = dict(eager.named_buffers())
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, theirs[name], rtol=2e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", MODULES)
def test_after_some_calls(name: str) -> None:
    torch.manual_seed(0)
    ours, eager = pair(MODULES[name]())
    places = {k: b.data_ptr() for k, b in ours.named_buffers()}
    for turn in range(5):
        x = torch.randn(BATCH, 32, 5, 5) + turn
        before, theirs = (
            {k: b._version for k, b in module.named_buffers()} for module in (ours, eager)
        )
        with torch.set_grad_enabled(turn % 2 == 0):  # the way of autograd, and the one without
            torch.testing.assert_close(ours(x), eager(x), rtol=1e-4, atol=1e-4)
        same(ours, eager)
        counted = {k for k, b in eager.named_buffers() if b._version > theirs[k]}
        assert counted <= {k for k, b in ours.named_buffers() if b._version > before[k]}
    assert places == {k: b.data_ptr() for k, b in ours.named_buffers()}
    assert not ours.fallbacks


@pytest.mark.parametrize("name", ["norm", "convolution", "recalled"])
def test_gradients_are_those_of_the_call(name: str) -> None:
    """Two calls before their backward: the second has changed what the first one read."""
    torch.manual_seed(1)
    ours, eager = pair(MODULES[name]())
    inputs = [torch.randn(BATCH, 32, 5, 5) for _ in range(2)]
    for module in (ours, eager):
        module.zero_grad()
        results = [module(x) for x in inputs]
        sum(r.square().sum() for r in results).backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    same(ours, eager)


def test_a_saved_buffer_is_known_to_have_changed() -> None:
    ours, _ = pair(norm())
    factor = torch.ones(32, requires_grad=True)
    product = factor * ours[0].running_mean
    ours(torch.randn(BATCH, 32, 5, 5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_buffers_with_gaps() -> None:
    """Kernels write dense memory; these are given their values afterwards."""
    torch.manual_seed(2)
    ours, eager = pair(norm())
    for module in (ours, eager):
        module[0].running_mean = torch.zeros(32, 3)[:, 1]
        module[0].running_var = torch.ones(40)[3:35]
    for _ in range(3):
        x = torch.randn(BATCH, 32, 5, 5)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-4, atol=1e-4)
        same(ours, eager)
    assert ours[0].running_mean.stride() == (3,) and not ours.fallbacks


def test_an_inference_tensor_is_refused_as_by_torch() -> None:
    with torch.inference_mode():
        frozen = torch.zeros(32)
    ours, _ = pair(norm())
    ours[0].running_mean = frozen
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        ours(torch.randn(BATCH, 32, 5, 5))


class Seen(TorchDispatchMode):
    """Hears of every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["norm", "unread", "uneven columns"])
def test_an_operator_changes_nothing_itself(name: str) -> None:
    torch.manual_seed(3)
    ours, eager = pair(MODULES[name]())
    x = torch.randn(BATCH, 32, 5, 5)
    for _ in range(2):
        with Seen() as seen, torch.no_grad():
            found = ours(x)
        torch.testing.assert_close(found, eager(x), rtol=1e-4, atol=1e-4)
        same(ours, eager)
    changed = len(list(ours.named_buffers()))
    assert seen.names.count("aten.copy_.default") == changed
    assert any(n.startswith("kernelwright") for n in seen.names)


def test_compiled_calls_and_their_backward() -> None:
    """The second call finds buffers that have no part in autograd's graph."""
    torch.manual_seed(4)
    ours, eager = pair(norm())
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    for turn in range(2):
        x = torch.randn(BATCH, 32, 5, 5) + turn
        compiled(x).square().sum().backward()
        eager(x).square().sum().backward()
    same(ours, eager)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


def test_nothing_is_called_beside_the_kernels() -> None:
    """The steps of a call are memory and launches."""
    ours, _ = pair(norm())
    fused = type(ours).forward.__globals__["_KW_FUSION"].fused
    assert {*fused.__code__.co_names} == {"shape", "_kw_empty", "torch", "float32", "_kw_launch"}
