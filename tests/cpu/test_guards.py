"""Whatever touches a module, or stands around a call, is seen by the next call."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import kernelwright
from kernelwright.plan import ALWAYS
from kernelwright.runtime.memo import Picture


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 24), nn.GroupNorm(4, 24)
        self.scale = nn.Parameter(torch.rand(24))
        self.power = 2.0
        self.settings = {"shift": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        shifted = torch.sigmoid(self.norm(self.linear(x))) + self.settings["shift"]
        return shifted**self.power * self.scale


@pytest.fixture(scope="module")
def example() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def pair(example: Model) -> tuple[Any, Model]:
    """Ours, which was called before, and eager with parameters of its own."""
    fused = kernelwright.optimize(
        copy.deepcopy(example), (torch.randn(5, 24),), policy=ALWAYS, kinds="given"
    )
    fused(torch.randn(5, 24))
    return fused, copy.deepcopy(example)


def check(fused: nn.Module, eager: nn.Module, x: Tensor, fused_too: bool = True) -> None:
    """The same as eager's, by the kernels or by the original."""
    before = sum(fused.fallbacks.values())
    ours = fused(x)
    torch.testing.assert_close(ours, eager(x), rtol=1e-5, atol=1e-5)
    assert ours.requires_grad == eager(x).requires_grad
    assert (sum(fused.fallbacks.values()) == before) == fused_too


def test_calls_of_all_kinds(pair: tuple[Any, Model]) -> None:
    x = torch.randn(5, 24)
    with torch.no_grad():
        check(*pair, x + 1)
    check(*pair, x.clone().requires_grad_())
    check(*pair, nn.Parameter(x))
    for rows in (1, 9, 5, 30):
        check(*pair, torch.randn(rows, 24))
    check(*pair, torch.randn(5, 48)[:, ::2])
    check(*pair, torch.randn(5 * 24 + 1)[1:].view(5, 24))


def train(module: Any) -> None:
    torch.manual_seed(1)
    step = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.randn(5, 24)).sum().backward()
    step.step()


def no_gradients(module: Any) -> None:
    module.requires_grad_(False)


def other_data(module: Any) -> None:
    module.scale.data = torch.full((24,), 3.0)


def other_strides(module: Any) -> None:
    module.linear.weight.data = torch.arange(576.0).div(300).view(24, 24).t()


def there_and_back(module: Any) -> None:
    module.double().float()


@pytest.mark.parametrize("change", [train, no_gradients, other_data, there_and_back])
def test_values_of_parameters_are_no_matter(
    pair: tuple[Any, Model], change: Callable[[Any], None]
) -> None:
    for module in pair:
        change(module)
    check(*pair, torch.randn(5, 24))


def test_a_swapped_parameter_is_seen(pair: tuple[Any, Model]) -> None:
    """The same object of Python is another tensor then; no record may stand in its way."""
    for module in pair:
        module.scale = nn.Parameter(torch.ones(24))
        module(torch.randn(5, 24))
        torch.utils.swap_tensors(module.scale, nn.Parameter(torch.full((24,), 4.0)))
    check(*pair, torch.randn(5, 24))


def _hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output + 1


@pytest.mark.parametrize(
    ("change", "fused_too"),
    [
        (other_strides, True),
        (lambda m: setattr(m, "scale", nn.Parameter(torch.full((24,), 2.0))), True),
        (lambda m: setattr(m.norm, "eps", 0.5), False),
        (lambda m: setattr(m, "power", 3.0), False),
        (lambda m: m.settings.update(shift=-1.0), False),
        (lambda m: setattr(m, "norm", nn.Identity()), False),
        (lambda m: setattr(m.norm, "forward", lambda x: x * 2), False),
        (lambda m: m.norm.register_forward_hook(_hook), False),
    ],
)
def test_changes_of_a_module_are_seen(
    pair: tuple[Any, Model], change: Callable[[Any], Any], fused_too: bool
) -> None:
    for module in pair:
        change(module)
    check(*pair, torch.randn(5, 24), fused_too)


def test_what_is_put_back_is_as_before_and_a_change_after_it_is_seen(
    pair: tuple[Any, Model],
) -> None:
    before = pair[0].power
    pair[0].power = 3.0
    pair[0].power = before
    check(*pair, torch.randn(5, 24))
    for module in pair:
        module.power = 3.0
    check(*pair, torch.randn(5, 24), False)


def _write(held: tuple[Any, ...], values: list[object], random: Random) -> None:
    """Something that changes one of the containers, or nothing: what was there is written again."""
    table, ordered, row, bag = held
    value = random.choice(values)
    match random.randrange(6):
        case 0:
            table[random.choice("abc")] = value
        case 1:
            ordered["a"] = value
        case 2:
            row[random.randrange(2)] = value
        case 3:
            bag.add(value)
        case 4:
            table["b"] = table.pop("b")
        case 5:
            table.pop("c", None)


def _snapshot(held: tuple[Any, ...]) -> list[Any]:
    table, ordered, row, bag = held
    return [[*table.items()], [*ordered.items()], [*row], {*bag}]


def test_a_picture_sees_every_change() -> None:
    values, random, seen = [object() for _ in range(2)], Random(0), set()
    for _ in range(300):
        held = ({"a": values[0], "b": values[1]}, OrderedDict(a=values[0]), [*values], {values[0]})
        picture, before = Picture(held, ()), _snapshot(held)
        for _ in range(4):
            _write(held, values, random)
            assert picture() == (_snapshot(held) == before)
            seen.add(picture())
    assert seen == {True, False}


def test_a_global_hook_is_seen(pair: tuple[Any, Model]) -> None:
    with nn.modules.module.register_module_forward_hook(_hook):
        check(*pair, torch.randn(5, 24), False)
    pair[0](torch.randn(5, 24))
    check(*pair, torch.randn(5, 24))


class Seeing(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        return function(*args, **(named or {}))


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16, enabled=True),
        torch.inference_mode,
        forward_ad.dual_level,
        Seeing,
    ],
)
def test_what_stands_around_a_call_is_seen(
    pair: tuple[Any, Model], context: Callable[[], Any]
) -> None:
    x = torch.randn(5, 24)
    with context():
        ours, theirs = (module(x) for module in pair)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    check(*pair, torch.randn(5, 24))


def test_a_transform_is_seen(pair: tuple[Any, Model]) -> None:
    x = torch.randn(3, 5, 24)
    pair[0](x[0])
    ours, theirs = (torch.func.vmap(module)(x) for module in pair)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_inference_mode_has_its_own_results(pair: tuple[Any, Model]) -> None:
    for _ in range(2):
        with torch.inference_mode():
            assert pair[0](torch.randn(5, 24)).is_inference()
        assert not pair[0](torch.randn(5, 24)).is_inference()


def test_a_default_device_is_no_matter(pair: tuple[Any, Model]) -> None:
    with torch.device("cpu"):
        check(*pair, torch.randn(5, 24))


def test_memory_is_filled_where_that_is_asked_for(
    pair: tuple[Any, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, filled = torch.empty, []

    def noted(*args: Any, **named: Any) -> Tensor:
        filled.append(args)
        return original(*args, **named)

    monkeypatch.setattr(torch, "empty", noted)
    torch.use_deterministic_algorithms(True)
    try:
        check(*pair, torch.randn(5, 24))
    finally:
        torch.use_deterministic_algorithms(False)
    assert filled


def test_other_arguments_are_seen() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, factor: float = 0.0, name: str = "a") -> Tensor:
            return torch.sigmoid(x) * 2 + (x if str(factor) == "0.0" else -x)

    eager = Scaled()
    fused = kernelwright.optimize(eager, (torch.randn(5, 24),), policy=ALWAYS, kinds="given")
    x = torch.randn(5, 24)
    for _ in range(3):
        for given in ((), (0.0,), (-0.0,), (1,), (0.0, "a"), (0.0, "b")):
            torch.testing.assert_close(fused(x, *given), eager(x, *given))


def test_threads_that_call_and_one_that_changes(pair: tuple[Any, Model]) -> None:
    fused, eager = pair
    inputs = [torch.randn(1 + i % 5, 24) for i in range(16)]
    with torch.no_grad():
        expected = [eager(x) for x in inputs]

    def calls(i: int) -> bool:
        with torch.no_grad():
            found = [fused(inputs[i]) for _ in range(60)]
        return all(torch.allclose(y, expected[i], atol=1e-5) for y in found)

    def changes() -> bool:
        for i in range(200):
            fused.unrelated = [i]
        return True

    with ThreadPoolExecutor(5) as pool:
        changing = pool.submit(changes)
        assert all(pool.map(calls, range(16))) and changing.result()


def test_nothing_keeps_a_module_alive(pair: tuple[Any, Model]) -> None:
    fused = copy.deepcopy(pair[0])
    fused(torch.randn(5, 24))
    fused(torch.randn(5, 24)).sum().backward()
    gone = weakref.ref(fused)
    del fused
    gc.collect()
    assert gone() is None


def test_a_step_that_fails_says_so() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.cholesky(torch.sigmoid(x) * 2) * 3

    eager = Failing()
    fused = kernelwright.optimize(
        eager, (torch.eye(6).expand(2, 6, 6).clone() * 9,), policy=ALWAYS, kinds="given"
    )
    good, bad = torch.eye(6).repeat(2, 1, 1) * 9, -torch.ones(2, 6, 6)
    for _ in range(3):
        torch.testing.assert_close(fused(good), eager(good))
        with pytest.raises(torch.linalg.LinAlgError):
            fused(bad)
