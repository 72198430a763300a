"""What threads of a GPU do with boxes of windows, run on the CPU: emitted programs as host code.

What they see is read as it lies in memory, so that an access out of its bounds or a place that is
taken for another shows in the results. Boxes are those of a full GPU, however small the input.
"""

from __future__ import annotations

import copy
import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import windows_host
from conv_host import CXX
from torch import Tensor, nn
from written import Written

from kernelwright.graph import Graph
from kernelwright.lower import boxes, config
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, Program
from kernelwright.plan.windows import sight
from kernelwright.problem import problem_from_module

pytestmark = pytest.mark.skipif(
    shutil.which(CXX) is None, reason=f"the C++ compiler {CXX} is not here"
)


@pytest.fixture(autouse=True)
def _large_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "ENOUGH", 0)


def compiled_for(
    forward: Callable[..., Any], x: Tensor, boxed: tuple[int, ...] = (), **parts: nn.Module
) -> Compiled:
    """With a box of these windows, or the one that is chosen."""

    def box_of(graph: Graph, program: Program) -> boxes.Box:
        found = sight(program)
        assert found is not None
        return next(b for b in boxes._boxes(graph, program, found) if b.windows == boxed)

    module = Written(forward, **parts).eval()
    with pytest.MonkeyPatch.context() as patch:
        if boxed:
            patch.setattr(config, "box_of", box_of)
        return compile_problem(problem_from_module(module, (x,)), target="cuda", policy=ALWAYS)


def check(compiled: Compiled, x: Tensor, folder: Path) -> None:
    """Both give the same."""
    assert any(k.template.symbol == "windows" for k in compiled.kernels)
    module = copy.deepcopy(compiled.problem.module).double()
    found = windows_host.outputs_of(compiled, (x,), folder)
    rtol = 1e-5 if x.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), module(x.double()), rtol=rtol, atol=rtol / 2)


def depthwise(spatial: int, channels: int, kernel: Any, **how: Any) -> nn.Module:
    made = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[spatial - 1]
    return made(channels, channels * how.pop("filters", 1), kernel, groups=channels, **how)


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...], tuple[int, ...]]] = {
    "vectors": (depthwise(2, 3, 3, padding=1), (2, 3, 12, 16), (4, 4)),
    "last box begins early": (depthwise(2, 3, 3, padding=1), (2, 3, 11, 8), (4, 4)),
    "seven": (depthwise(2, 3, 3, padding=1), (2, 3, 7, 7), (7, 1)),
    "odd rows": (depthwise(2, 3, 3, padding=1), (2, 3, 9, 11), ()),
    "pairs": (depthwise(2, 3, 3, padding=1), (2, 3, 9, 14), ()),
    "no padding": (depthwise(2, 3, 3), (2, 3, 13, 18), ()),
    "wide": (depthwise(2, 2, 7, padding=3), (2, 2, 12, 12), (8, 4)),
    "stepped": (depthwise(2, 3, 3, padding=1, stride=2), (2, 3, 15, 32), ()),
    "dilated": (depthwise(2, 3, 3, padding=2, dilation=2), (2, 3, 13, 16), ()),
    "steps of dilation": (depthwise(2, 3, 3, padding=2, dilation=2, stride=2), (1, 3, 17, 16), ()),
    "two filters": (depthwise(2, 3, 3, padding=1, filters=2), (2, 3, 10, 12), ()),
    "flat": (depthwise(2, 3, (1, 5), padding=(0, 2)), (2, 3, 5, 16), ()),
    "tall": (depthwise(2, 3, (5, 1), padding=(2, 0)), (2, 3, 9, 16), ()),
    "line": (depthwise(1, 3, 7, padding=3), (2, 3, 40), ()),
    "volume": (depthwise(3, 2, 3, padding=1), (1, 2, 5, 6, 8), ()),
    "uneven volume": (depthwise(3, 2, (2, 3, 4), padding=(1, 0, 2), stride=(1, 2, 1)),
                      (1, 2, 5, 9, 7), ()),
    "transposed": (nn.ConvTranspose2d(3, 3, 3, dilation=2, groups=3), (2, 3, 9, 12), (4, 4)),
    "transposed, cropped": (
        nn.ConvTranspose2d(4, 6, (4, 3), padding=(3, 1), groups=2), (2, 4, 7, 12), ()),
    "two channels a group": (nn.Conv2d(6, 9, 3, padding=1, groups=3), (2, 6, 9, 12), ()),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_depthwise_convolutions(kind: str, tmp_path: Path) -> None:
    conv, shape, boxed = CONVOLUTIONS[kind]
    x = torch.randn(*shape)
    compiled = compiled_for(lambda m, x: F.hardswish(m.conv(x)), x, boxed, conv=conv)
    check(compiled, x, tmp_path)


def without_padding(conv: Any, x: Tensor) -> Tensor:
    """The convolution, step 1, as a sum over the taps that lie in the input, and no others."""
    sides = [p for pad in reversed(conv.padding) for p in (pad, pad)]
    padded, there = F.pad(x, sides), F.pad(torch.ones_like(x), sides)
    total = 0.0
    for tap in itertools.product(*map(range, conv.kernel_size)):
        places: list[Any] = [slice(None), slice(None)]
        for t, k, d, n in zip(tap, conv.kernel_size, conv.dilation, padded.shape[2:], strict=True):
            places.append(slice(t * d, n - (k - 1 - t) * d))
        weight = conv.weight[(slice(None), 0, *tap)].reshape(-1, *(1 for _ in tap))
        at = tuple(places)
        total = total + torch.where(there[at] > 0, padded[at] * weight, 0.0)
    return total + conv.bias.reshape(-1, *(1 for _ in conv.kernel_size))


@pytest.mark.parametrize("kind", ["vectors", "odd rows", "wide", "volume", "dilated"])
def test_what_is_not_finite_stays_where_it_is(kind: str, tmp_path: Path) -> None:
    """Padding is no factor of a weight, and no place sees what lies beside its window."""
    conv, shape, _ = CONVOLUTIONS[kind]
    conv, x = copy.deepcopy(conv), torch.randn(*shape)
    with torch.no_grad():
        weight = conv.weight.flatten(1)
        weight[0, 0], weight[1, -1] = float("inf"), float("nan")
    x[0, 0].flatten()[-1], x[0, -1].flatten()[shape[-1] // 2] = 3e38, float("-inf")
    compiled = compiled_for(lambda m, x: m.conv(x), x, conv=conv)
    wanted = without_padding(conv.double(), x.double())
    found = windows_host.outputs_of(compiled, (x,), tmp_path)
    assert wanted.isnan().any() and wanted.isinf().any() and wanted.isfinite().any()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=5e-6, equal_nan=True)


POOLS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "padded": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 16, 16)),
    "odd": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 11, 13)),
    "dilated": (lambda x: F.max_pool2d(x, 3, 1, 1, 2), (2, 3, 12, 12)),
    "average": (lambda x: F.avg_pool2d(x.sin(), 3, 1, 1), (2, 3, 9, 12)),
    "of what is there": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (2, 3, 9, 8)),
    "normalised": (lambda x: F.max_pool2d(F.group_norm(x, 2), 3, 1, 1), (2, 4, 8, 8)),
    "normalised, side by side": (lambda x: F.max_pool2d(F.group_norm(x, 2), 2), (2, 4, 8, 12)),
    "side by side": (lambda x: F.avg_pool2d(x.sin(), 2), (2, 3, 9, 14)),
    "side by side, odd": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), (2, 3, 9, 11)),
    "volume, side by side": (lambda x: F.max_pool3d(x.square(), 2), (1, 2, 6, 8, 10)),
    "added to each channel": (
        lambda x: F.avg_pool2d(F.relu(x + x.mean((2, 3), keepdim=True)), 2, 1, 1), (2, 3, 8, 8)),
    "volume": (lambda x: F.max_pool3d(x.square(), 3, 1, 1), (1, 2, 5, 6, 8)),
    "line": (lambda x: F.avg_pool1d(x, 5, 1, 2), (2, 3, 24)),
    "two at once": (
        lambda x: F.max_pool2d(x, 3, 1, 1) - F.avg_pool2d(x, 3, 1, 1) * x, (2, 3, 9, 12)),
    "channels last": (
        lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 3, 1, 1).square(), (2, 9, 10, 8)),
    "channels last, stored first": (
        lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 3, 1).square().contiguous(), (2, 9, 10, 8)),
    "turned": (lambda x: F.max_pool2d(x.permute(0, 1, 3, 2), 3, 1, 1), (2, 3, 9, 12)),
    "cat": (lambda x: F.avg_pool2d(torch.cat([x, x.exp()], 1), 3, 1, 1), (2, 2, 9, 8)),
}  # fmt: skip


@pytest.mark.parametrize("kind", POOLS)
def test_pools(kind: str, tmp_path: Path) -> None:
    pool, shape = POOLS[kind]
    x = torch.randn(*shape)
    check(compiled_for(lambda m, x: pool(x), x), x, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype: torch.dtype, tmp_path: Path) -> None:
    conv = depthwise(2, 3, 3, padding=1).to(dtype)
    x = torch.randn(2, 3, 9, 16).to(dtype)
    compiled = compiled_for(lambda m, x: torch.relu(m.conv(x)), x, (4, 8), conv=conv)
    check(compiled, x, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_windows_of_any_kind(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    spatial = draw.choice([1, 2, 2, 3])
    kernel = [draw.randint(2, 4) for _ in range(spatial)]
    how: dict[str, Any] = {
        "stride": [draw.randint(1, 2) for _ in kernel],
        "dilation": [draw.choice([1, 1, 2]) for _ in kernel],
        "padding": [draw.randint(0, 2) for _ in kernel],
    }
    shape = [draw.randint(7, 20) for _ in kernel]
    conv, x = depthwise(spatial, 2, kernel, **how), torch.randn(2, 2, *shape)
    compiled = compiled_for(lambda m, x: torch.tanh(m.conv(x)), x, conv=conv)
    if any(k.template.symbol == "windows" for k in compiled.kernels):
        check(compiled, x, tmp_path)
