"""TF32 is eager's error by right wherever torch may round, whatever the weights happen to be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernelwright.verify.compare import measure
from kernelwright.verify.rounding import as_tf32

DROPPED = 13  # of the 23 bits behind the leading one


@pytest.fixture(autouse=True)
def allowed() -> object:
    """Products and convolutions may be rounded."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def tf32(value: Tensor) -> Tensor:
    bits = value.clone().view(torch.int32)
    return bits.add_(1 << (DROPPED - 1)).bitwise_and_(-(1 << DROPPED)).view(torch.float32)


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("half", [False, True])
def test_operands_are_off_by_what_rounding_takes(half: bool) -> None:
    """Also those that TF32 can represent."""
    torch.manual_seed(0)
    model, x = nn.Conv2d(8, 32, 3), torch.randn(4, 8, 20, 20)
    exact = functional.conv2d(*(v.double() for v in (x, model.weight, model.bias)))
    rounded = functional.conv2d(tf32(x), tf32(model.weight.detach()), model.bias)
    owed = rms(rounded - exact)
    if half:
        model, x = model.half().float(), x.half().float()
        assert torch.equal(tf32(x), x)
        exact = functional.conv2d(*(v.double() for v in (x, model.weight, model.bias)))
    before = torch.get_rng_state()
    with as_tf32(1):
        moved = run(model, x)
        assert not torch.backends.cudnn.allow_tf32
    assert rms(moved - exact) == pytest.approx(owed, rel=0.1)
    with as_tf32(2):
        assert rms(run(model, x) - moved) == pytest.approx(2**0.5 * owed, rel=0.1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("convolves", [False, True])
def test_first_of_several_runs_rounds_to_the_nearest(convolves: bool, inference: bool) -> None:
    """Also where the dispatcher has not taken a layer apart."""
    torch.manual_seed(0)
    model, x = nn.Conv1d(4, 6, 3) if convolves else nn.Linear(20, 6), torch.randn(2, 4, 20)
    apply = functional.conv1d if convolves else functional.linear
    expected = apply(tf32(x), tf32(model.weight.detach()), model.bias)
    with as_tf32(), torch.inference_mode(inference):
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("convolves", [False, True])
def test_everywhere_is_also_where_torch_may_not_round(convolves: bool) -> None:
    torch.manual_seed(0)
    model = nn.Conv1d(4, 6, 3) if convolves else nn.Linear(20, 6)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    x = torch.randn(2, 4, 20)
    plain = run(model, x)
    with as_tf32(everywhere=True):
        assert not torch.equal(plain, run(model, x))


@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize("allows", ["neither", "convolutions", "products"])
def test_what_torch_may_not_round_stays(convolves: bool, allows: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv1d(4, 6, 3) if convolves else nn.Linear(20, 6)
    x = torch.randn(2, 4, 20)
    torch.set_float32_matmul_precision("high" if allows == "products" else "highest")
    torch.backends.cudnn.allow_tf32 = allows == "convolutions"
    plain = run(model, x)
    with as_tf32():
        moved = run(model, x)
    rounds = allows == ("convolutions" if convolves else "products")
    assert torch.equal(plain, moved) is not rounds


def test_one_such_run_counts_as_much_as_any_number_of_luckier_ones() -> None:
    torch.manual_seed(0)
    x, weight = torch.rand(64, 96), torch.randn(96, 32)
    exact = x.double() @ weight.double()
    rounded, eager = tf32(x) @ tf32(weight), x @ weight
    with as_tf32():
        moved = x @ weight
    figures = measure(rounded, eager, exact, by_group=True)
    lucky = [measure(eager, eager, exact, by_group=True)] * 9
    held = figures.with_eager(lucky)
    assert held.worst.ratio > 1.0 and held.worst_group is not None and held.worst_group.ratio > 1.0
    by_right = [measure(moved, moved, exact, by_group=True)]
    fair = figures.with_eager(lucky, rounded=by_right)
    assert fair.worst.ratio <= 1.0 and fair.worst_group is not None
    assert fair.worst_group.ratio <= 1.0
    worse = measure(exact.float() + 4 * (rounded - exact.float()), eager, exact, by_group=True)
    assert worse.with_eager(lucky, rounded=by_right).worst.ratio > 1.0


def test_zeros_stay() -> None:
    x = torch.zeros(4, 6)
    with as_tf32():
        assert torch.equal(x @ torch.randn(6, 5), torch.zeros(4, 5))
