"""Products of two operands as they lie: batches, broadcasts, strides, either axis along memory.

The kernel alone (handmade.py), against float64, at sizes that no tile divides; results and scratch
memory are full of NaN before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from handmade import Built, Kernel, build
from torch import Tensor

from kernelwright.verify.compare import same_bits

DEVICE = "cuda"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="generated products need compute capability 9.0")

INF, NAN = math.inf, math.nan
EPS = torch.finfo(torch.float32).eps
# Of the sum of the terms' magnitudes. Float16 products are exact, and their sums nearly.
BOUNDS = {"SplitFloat": 8 * EPS, "RoundedFloat": 1.5e-3, "Float16": 3e-5, "Bfloat16": 3e-5}
NARROW = {"width": 64, "cluster": 1}
KERNELS = {
    "split": Kernel("SplitFloat", 197),
    "split_right_across": Kernel("SplitFloat", 64, right="row", **NARROW),
    "split_both_across": Kernel("SplitFloat", 1000, "row", "row"),
    "split_left_across": Kernel("SplitFloat", 1000, "row", "depth"),
    "split_narrow": Kernel("SplitFloat", 7, right="row", **NARROW),
    "split_alone": Kernel("SplitFloat", 1000, right="row", batched=False),
    "rounded": Kernel("RoundedFloat", 197, right="row", width=256),
    "rounded_left_across": Kernel("RoundedFloat", 64, "row", "depth", **NARROW),
    "bfloat16": Kernel("Bfloat16", 192, width=192, cluster=1),
    "bfloat16_left_across": Kernel("Bfloat16", 200, "row", "depth"),
    "float16_right_across": Kernel("Float16", 64, right="row", **NARROW),
    "float16_both_across": Kernel("Float16", 200, "row", "row", width=256),
}
SPLITS = [name for name, k in KERNELS.items() if k.loop == "SplitFloat" and k.batched]
ROWS = (1, 7, 63, 65, 197, 300)
DEPTHS = (1, 7, 64, 65, 197, 1000)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    built = build(KERNELS.values(), tmp_path_factory.mktemp("products"))
    return {name: built[kernel] for name, kernel in KERNELS.items()}


def laid(kernel: Kernel, side: str, *shape: int, padding: int = 0) -> Tensor:
    """Normal values, [..., rows, depth], with the kernel's axis along memory."""
    *batch, rows, depth = shape
    along = getattr(kernel, side) == "depth"
    inner, other = (depth, rows) if along else (rows, depth)
    x = torch.randn(*batch, other, inner + padding, device=DEVICE).to(kernel.dtype)[..., :inner]
    return x if along else x.mT


def check(product: Built, left: Tensor, right: Tensor) -> Tensor:
    ours = product(left, right)
    exact = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()
    error = (ours.double() - exact).abs() / magnitude
    assert error.max() <= BOUNDS[product.kernel.loop], f"{error.max():.2e}, {error.argmax()}"
    return ours


def sizes(kernel: Kernel) -> list[tuple[int, int]]:
    """Rows and depths; the copy engine moves 16 bytes at least."""
    if kernel.planes:
        return [(rows, depth) for rows in ROWS for depth in DEPTHS]
    up: Callable[[int], int] = lambda n: -(-n // 8) * 8  # noqa: E731
    rows = [up(n) if kernel.left == "row" else n for n in ROWS]
    return [(n, up(depth)) for n in rows for depth in DEPTHS]


@pytest.mark.parametrize("name", KERNELS)
def test_odd_sizes_and_strides(products: dict[str, Built], name: str) -> None:
    product = products[name]
    kernel = product.kernel
    for rows, depth in sizes(kernel):
        for batch in ((), (3, 2)) if kernel.batched else ((),):
            for padding in (0, 3 if kernel.planes else 8):
                left = laid(kernel, "left", *batch, rows, depth, padding=padding)
                right = laid(kernel, "right", *batch, kernel.columns, depth, padding=padding)
                check(product, left, right.mT)


@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if k.batched])
@pytest.mark.parametrize(
    "batches",
    [((1, 1), (3, 2)), ((3, 2), (1, 1)), ((1, 2), (3, 1)), ((3, 1), (3, 2))],
    ids=str,
)
def test_broadcast_batches(
    products: dict[str, Built], name: str, batches: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """A matrix that many are multiplied with is one, and split once."""
    product = products[name]
    kernel = product.kernel
    left = laid(kernel, "left", *batches[0], 200, 136)
    right = laid(kernel, "right", *batches[1], kernel.columns, 136)
    ours = check(product, left, right.mT)
    one = product(left[-1:, -1:], right[-1:, -1:].mT)
    assert same_bits(ours[-1:, -1:], one)


def test_heads_of_attention(products: dict[str, Built]) -> None:
    """(batch, token, head, feature), as a projection leaves them."""
    q, k, v = (torch.randn(4, 197, 3, 64, device=DEVICE).transpose(1, 2) for _ in range(3))
    check(products["split"], q, k.mT)
    check(products["split_right_across"], torch.rand(4, 3, 197, 197, device=DEVICE), v)


@pytest.mark.parametrize("name", SPLITS)
def test_special_values(products: dict[str, Built], name: str) -> None:
    """NaN, infinities, zeros and large ranges in some of the matrices: as eager has them."""
    product = products[name]
    kernel = product.kernel
    left = laid(kernel, "left", 2, 2, 197, 300)
    right = laid(kernel, "right", 2, 2, kernel.columns, 300).mT
    clean = product(left, right)
    wide = torch.exp2(40 * torch.rand(300, device=DEVICE) - 20)
    left[1, 0, 3, 5], left[0, 1, 64], left[0, 0, 7], left[0, 0, 8, 0] = INF, NAN, 0.0, 1e30
    left[1, 1, 100] *= wide
    right[1, 0, 5, 2], right[0, 1, 9, 3], right[0, 0, 0, ::2] = 0.0, -INF, 0.0
    right[1, 1, :, 1] *= wide
    ours, theirs = product(left, right), left @ right
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(ours), kind(theirs)), kind.__name__
    exact, magnitude = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    fine = theirs.isfinite() & (magnitude > 0)
    mine, other = (((y.double() - exact).abs() / magnitude)[fine].max() for y in (ours, theirs))
    assert mine <= max(2 * other, 4 * EPS)
    assert not ours[0, 0, 7].any()
    assert same_bits(ours[1, 0, :3, 3:], clean[1, 0, :3, 3:])


def test_repeats_give_equal_bits(products: dict[str, Built]) -> None:
    product = products["split_both_across"]
    left = laid(product.kernel, "left", 5, 197, 1000)
    right = laid(product.kernel, "right", 5, 1000, 1000).mT
    left[2, 5] *= torch.exp2(40 * torch.rand(1000, device=DEVICE) - 20)
    first = product(left, right)
    for at_once in (1, 2) * 10:
        assert same_bits(product(left, right, at_once=at_once), first)


def test_a_matrix_has_the_bits_that_it_has_alone(products: dict[str, Built]) -> None:
    """Whether a right operand lies along its depth or across it, its halves are the same."""
    left = torch.randn(3, 2, 300, 1000, device=DEVICE)
    right = torch.randn(3, 2, 1000, 1000, device=DEVICE)
    across = products["split_both_across"](left.mT.contiguous().mT, right)
    alone = products["split_alone"](left[2, 1], right[2, 1])
    assert same_bits(across[2, 1], alone)
