"""The generated backward as people use it: gradients are eager's, and kernels compute them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import kernelwright

pytestmark = pytest.mark.usefixtures("extensions")


class Net(nn.Module):
    """A norm in training, a dropout, two results, a layer that can be frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Linear(12, 24), nn.LayerNorm(24)
        self.bn, self.b = nn.BatchNorm1d(24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.n(self.a(x)))
        return self.b(F.silu(self.bn(h))), torch.softmax(h, -1)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.mish(self.a(x)) * 2)


@pytest.fixture(scope="module")
def nets() -> Iterator[dict[str, tuple[nn.Module, nn.Module]]]:
    torch.manual_seed(0)
    found = {}
    for kind in (Net, Plain):
        module = kind()
        found[kind.__name__] = kernelwright.optimize(module, (torch.randn(8, 12),)), module
    yield found


@pytest.fixture
def plain(nets: dict[str, tuple[nn.Module, nn.Module]]) -> tuple[nn.Module, nn.Module]:
    ours, eager = copy.deepcopy(nets["Plain"][1]), copy.deepcopy(nets["Plain"][1])
    return like(nets["Plain"][0], ours), eager


def like(compiled: nn.Module, module: nn.Module) -> nn.Module:
    new = copy.deepcopy(compiled)
    new.load_state_dict(module.state_dict())
    return new


def leaf(n: int = 8) -> Tensor:
    return torch.randn(n, 12, generator=torch.Generator().manual_seed(n)).requires_grad_()


def agree(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.stride() == other.stride()
            torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-6)


def compared(
    pair: tuple[nn.Module, nn.Module], action: Callable[[nn.Module, Tensor], Any], n: int = 8
) -> None:
    found = []
    for module in pair:
        module.zero_grad(set_to_none=True)
        x = leaf(n)
        result = action(module, x)
        grads = [x.grad, *(p.grad for p in module.parameters())]
        found.append([*(result if isinstance(result, tuple | list) else []), *grads])
    agree(*found)


def kernels(module: nn.Module) -> int:
    return int(module.backwards["kernels"])  # type: ignore[index]


def test_both_results_of_a_step_with_a_batch_norm(nets: Any) -> None:
    ours, eager = (copy.deepcopy(m) for m in nets["Net"])

    def step(module: nn.Module, x: Tensor) -> None:
        y, s = module(x)
        (y.square().sum() + (s * torch.arange(24.0)).sum()).backward()

    for n in (8, 5):
        compared((ours, eager), step, n)
    assert kernels(ours) == 2 and not ours.fallbacks
    agree([*ours.buffers()], [*eager.buffers()])


def test_one_result_alone_is_left_to_the_original(nets: Any) -> None:
    """Zeros in the place of what eager has not would be NaN times infinity's."""
    ours, eager = (copy.deepcopy(m) for m in nets["Net"])
    compared((ours, eager), lambda m, x: m(x)[0].sum().backward())
    assert kernels(ours) == 0 and ours.backwards["a result has no gradient"] == 1


def test_cotangents_of_all_kinds(plain: Any) -> None:
    def expanded(module: nn.Module, x: Tensor) -> None:
        module(x).sum().backward()

    def transposed(module: nn.Module, x: Tensor) -> None:
        y = module(x)
        y.backward(torch.linspace(-1, 1, y.numel()).reshape(6, -1).t())

    def zeros(module: nn.Module, x: Tensor) -> None:
        y = module(x)
        y.backward(torch.zeros_like(y))

    for action in (expanded, transposed, zeros):
        for n in (8, 1):
            compared(plain, action, n)
    assert kernels(plain[0]) == 6


def test_gradients_that_nobody_wants_are_not_computed(plain: Any) -> None:
    def partly(module: nn.Module, x: Tensor) -> Any:
        return torch.autograd.grad(module(x).square().sum(), [module.a.weight, module.b.bias])

    def frozen(module: nn.Module, x: Tensor) -> None:
        module.a.requires_grad_(False)
        module(x.detach()).square().sum().backward()
        module.a.requires_grad_(True)

    compared(plain, partly)
    compared(plain, frozen)
    assert kernels(plain[0]) == 2


def test_accumulated_retained_and_scaled(plain: Any) -> None:
    def action(module: nn.Module, x: Tensor) -> None:
        loss = module(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(module(x).square().mean()).backward()

    compared(plain, action)
    assert kernels(plain[0]) == 3


def test_freed_graphs_and_changed_weights_are_eagers_errors(plain: Any) -> None:
    for module in plain:
        loss = module(leaf()).square().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        loss = module(leaf()).square().sum()
        with torch.no_grad():
            module.b.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        loss = module(leaf()).square().sum()
        with torch.no_grad():
            module.b.bias.mul_(2)  # no rule reads it
        loss.backward()


def test_second_derivatives_are_the_originals(plain: Any) -> None:
    def twice(module: nn.Module, x: Tensor) -> Any:
        (first,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, module.a.weight, module.b.weight])

    compared(plain, twice)
    assert kernels(plain[0]) == 1  # the second call goes through the first's function once more
    assert plain[0].backwards["the gradients are to be differentiated"] == 1


def test_a_changed_bias_is_seen_by_second_derivatives(plain: Any) -> None:
    ours, _ = plain
    y = ours(leaf()).square().sum()
    with torch.no_grad():
        ours.b.bias.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, [*ours.parameters()], create_graph=True)


def test_checkpointing_hooks_and_copies(plain: Any) -> None:
    def recomputed(module: nn.Module, x: Tensor) -> None:
        checkpoint(module, x, use_reentrant=False).square().sum().backward()

    def hooked(module: nn.Module, x: Tensor) -> Any:
        seen: list[Tensor] = []
        handle = module.a.weight.register_hook(lambda g: (seen.append(g.clone()), g * 2)[1])
        module(x).square().sum().backward()
        handle.remove()
        return seen

    def averaged(module: nn.Module, x: Tensor) -> Any:
        other = copy.deepcopy(module)
        other(x).sum().backward()
        return [p.grad for p in other.parameters()]

    for action in (recomputed, hooked, averaged):
        compared(plain, action)
    assert kernels(plain[0]) == 2


def test_twenty_steps_of_adamw(plain: Any) -> None:
    losses = []
    for module in plain:
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
        x = leaf().detach()
        for _ in range(20):
            optimizer.zero_grad(set_to_none=True)
            loss = (module(x) - x[:, :6]).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    ours, theirs = losses[:20], losses[20:]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert kernels(plain[0]) == 20


def test_the_same_bits_twice(plain: Any) -> None:
    ours, _ = plain
    found = []
    for _ in range(2):
        ours.zero_grad(set_to_none=True)
        ours(leaf(64)).square().sum().backward()
        found.append([p.grad for p in ours.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(12, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.dropout(self.a(x), 0.4, self.training)) * 2


def test_dropout_has_the_mask_of_its_forward() -> None:
    eager = Dropped()
    ours = kernelwright.optimize(eager, (torch.randn(8, 12),))
    found = []
    for module in (ours, eager):
        module.zero_grad(set_to_none=True)
        torch.manual_seed(3)
        y = module(leaf())
        torch.manual_seed(4)
        y.square().sum().backward()
        found.append([y, *(p.grad.clone() for p in module.parameters())])
    agree(*found)
    assert kernels(ours) == 1


def test_a_module_in_eval_mode_has_no_backward_of_its_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explained = kernelwright.explain(Plain().eval(), (torch.randn(8, 12),))
    assert explained.trained is None and "Training(" not in explained.source
    asked = kernelwright.explain(Plain().eval(), (torch.randn(8, 12),), train=True)
    assert asked.trained is not None
    assert any("backward" in row.op for row in asked.trained.rows)
