"""Sliding windows: what pools and depthwise convolutions become, and where their kernels run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn
from written import Written, planned, refusal_codes

from kernelwright.graph import Slide
from kernelwright.lower.config import certain
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS
from kernelwright.plan.domain import Atoms
from kernelwright.plan.reasons import Code
from kernelwright.plan.windows import sight
from kernelwright.problem import problem_from_module

TARGETS = ("cpu", "cuda")
Forward = Callable[[Any, Tensor], Any]


def check(forward: Forward, *shape: int, target: str, **parts: Any) -> Compiled:
    """The plan computes in float64 what torch does."""
    module = Written(forward, **parts).eval()
    x = torch.randn(*shape)
    compiled = compile_problem(problem_from_module(module, (x,)), target=target, policy=ALWAYS)
    module = module.double()
    torch.testing.assert_close(
        run_plan(compiled.planned, module, (x.double(),)), module(x.double())
    )
    return compiled


def aten(compiled: Compiled) -> list[str]:
    return [row.op for row in compiled.ledger if row.fate == "aten"]


# ---- pools -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(12))
def test_pools_of_any_kind_are_one_kernel(seed: int, target: str) -> None:
    draw = random.Random(seed)
    spatial = draw.choice([1, 2, 2, 3])
    shape = [draw.randint(5, 14) for _ in range(spatial)]
    kernel = [draw.randint(1, 4) for _ in range(spatial)]
    stride = [draw.randint(1, 3) for _ in range(spatial)]
    padding = [draw.randint(0, k // 2) for k in kernel]
    ceil = draw.random() < 0.5
    if draw.random() < 0.5:
        pool = getattr(F, f"max_pool{spatial}d")
        dilation = [draw.randint(1, 2) for _ in range(spatial)]
        spread = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        if all(s <= n for s, n in zip(spread, shape, strict=True)):
            pool = lambda x, *args, pool=pool: pool(x, *args[:3], dilation, args[3])  # noqa: E731
        else:
            pool = lambda x, *args, pool=pool: pool(x, *args[:3], 1, args[3])  # noqa: E731
    else:
        counts = draw.random() < 0.5
        plain = getattr(F, f"avg_pool{spatial}d")
        pool = lambda x, *args: plain(x, *args, counts)  # noqa: E731
    compiled = check(
        lambda m, x: pool(torch.sin(x), kernel, stride, padding, ceil) * 2,
        2,
        3,
        *shape,
        target=target,
    )
    assert len(compiled.kernels) == 1 and not aten(compiled)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, (3, 2), (6, 4), (2, None)])
def test_adaptive_pools_whose_windows_are_alike(size: Any, target: str) -> None:
    def both(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.adaptive_avg_pool2d(x, size).exp(), F.adaptive_max_pool2d(x, size)

    assert not aten(check(both, 2, 3, 6, 8, target=target))


def test_adaptive_windows_of_several_sizes_stay_with_aten() -> None:
    compiled = planned(lambda m, x: F.adaptive_avg_pool2d(x, 4).exp(), 2, 3, 6, 8)
    assert aten(compiled) == ["adaptive_avg_pool2d"]


def test_indices_stay_with_aten_and_their_values_with_them() -> None:
    def indices(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = F.max_pool2d(x, 2, return_indices=True)
        return values.exp(), places

    compiled = planned(indices, 2, 3, 6, 8)
    assert aten(compiled) == ["max_pool2d_with_indices"] and len(compiled.kernels) == 1


def test_padding_of_a_function_is_not_the_function_of_padding() -> None:
    compiled = planned(lambda m, x: F.avg_pool2d(torch.cos(x), 3, 1, 1), 2, 3, 6, 8)
    (region,) = compiled.planned.regions
    assert region.program is not None
    assert str(region.program.stages[0]).count("where(") == 2
    assert "cos($x" in str(region.program.stages[0])


# ---- what fuses with them --------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_a_norm_leaves_its_statistics_to_a_pool(target: str) -> None:
    def chain(m: nn.Module, x: Tensor) -> Tensor:
        return F.max_pool2d(F.group_norm(x, 2) * 2, 3, 2).clamp(0, 1)

    compiled = check(chain, 3, 4, 9, 8, target=target)
    first, second = compiled.planned.regions
    assert [b.name for b in first.outputs] == ["group_norm_mean", "group_norm_rstd"]
    assert "x" in second.reads and Code.OVERLAPS in refusal_codes(compiled)


@pytest.mark.parametrize("target", TARGETS)
def test_windows_within_a_norms_rows_are_its_segments(target: str) -> None:
    compiled = check(lambda m, x: F.max_pool1d(F.layer_norm(x, (24,)), 4), 3, 5, 24, target=target)
    (region,) = compiled.planned.regions
    assert region.program is not None and region.program.segmented


def test_what_several_windows_would_compute_at_length_is_stored() -> None:
    def chain(m: nn.Module, x: Tensor) -> Tensor:
        return F.avg_pool2d(F.gelu(x.sin()) * F.softplus(x), 5, 1)

    compiled = planned(chain, 16, 64, 64, 64, target="cpu")
    assert [s.why.code for s in compiled.planned.shared] == [Code.OVERLAPPED]
    assert len(compiled.kernels) == 2
    assert len(planned(lambda m, x: F.avg_pool2d(x + 1, 5, 1), 16, 64, 64, 64).kernels) == 1


# ---- lanes -----------------------------------------------------------------------------------


def test_vectors_keep_to_where_all_lanes_have_one_answer() -> None:
    compiled = planned(lambda m, x: F.max_pool2d(x, 3, 2, 1), 2, 3, 40, 41, target="cpu")
    (kernel,) = compiled.kernels
    numbers = dict(kernel.config.constants)
    assert kernel.config.shape == "short_rows"
    assert (numbers["kRun"], numbers["kLow"], numbers["kHigh"]) == (21, 1, 20)
    across = [r for r in kernel.program.ranges if r.at.stride(kernel.program.rows[-1]) == 2]
    assert certain(kernel.program, kernel.config) == set(across)
    assert "V > 1 ||" in compiled.source


def test_a_thread_takes_a_box_of_windows_if_they_share_loads() -> None:
    def config(forward: Forward, side: int = 40) -> tuple[str, tuple[int, ...]]:
        (kernel,) = planned(forward, 64, 64, side, side).kernels
        return kernel.config.shape, kernel.config.windows

    assert config(lambda m, x: F.max_pool2d(x, 3, 2, 1)) == ("windows", (2, 2))
    assert config(lambda m, x: F.max_pool2d(x, 3, 1, 1)) == ("windows", (8, 4))
    assert config(lambda m, x: F.max_pool2d(x, 3, 1, 1), 41)[1][1] == 1
    assert config(lambda m, x: F.max_pool2d(x, 7, 1, 3))[1] == (8, 4)
    assert config(lambda m, x: F.max_pool2d(x, 5, 1, 2), 14)[1] == (4, 2)
    assert config(lambda m, x: F.max_pool2d(x, 5, 1, 2), 7)[1] == (2, 1)
    assert config(lambda m, x: F.max_pool2d(x, 3)) == ("resident", ())


def test_small_windows_that_share_nothing_are_loaded_together() -> None:
    """What one of them loads is too little to wait for."""

    def config(side: int) -> tuple[str, tuple[int, ...], int]:
        (kernel,) = planned(lambda m, x: F.max_pool2d(x, 2), 64, 64, side, side).kernels
        return kernel.config.shape, kernel.config.windows, dict(kernel.config.constants)["kVec"]

    assert config(40) == ("windows", (1, 2), 4)
    assert config(42) == ("windows", (2, 1), 2)
    assert config(41) == ("windows", (2, 1), 1)


def test_what_a_picture_has_in_common_is_read_once() -> None:
    norm = nn.BatchNorm2d(8)
    compiled = planned(
        lambda m, x: F.max_pool2d(torch.tanh(m.norm(x)), 2), 64, 8, 32, 32, norm=norm
    )
    (kernel,) = compiled.kernels
    text = compiled.source[compiled.source.index("struct Picture") :]
    kept, seen = text[: text.index("finish(")].split(" seen(")
    assert kernel.config.shape == "windows"
    assert "kw::load_same<1>(a.norm_weight" in kept and "kw::rsqrt" in kept
    assert "still." in seen and "load_same" not in seen and "kw::rsqrt" not in seen


def test_few_windows_are_spread_over_all_threads() -> None:
    (kernel,) = planned(lambda m, x: F.max_pool2d(x[:1], 3, 2, 1), 2, 3, 40, 40).kernels
    assert kernel.config.windows[0] == 1


def test_what_a_thread_sees_is_told_by_axes() -> None:
    def axes(forward: Forward, *shape: int, **parts: nn.Module) -> list[tuple[int, ...]]:
        (kernel,) = planned(forward, *shape, **parts).kernels
        found = sight(kernel.program)
        assert found is not None
        return [(a.size, a.taps, a.step, a.spread) for a in found.axes]

    pooled = axes(lambda m, x: F.max_pool2d(x, 3, 2, 1), 2, 3, 40, 41)
    assert pooled == [(20, 3, 2, 1), (21, 3, 2, 1)]
    conv = nn.Conv2d(6, 6, (3, 5), stride=(1, 2), dilation=2, padding=4, groups=6)
    found = axes(lambda m, x: m.conv(x), 2, 6, 20, 21, conv=conv)
    assert found == [(24, 3, 1, 2), (11, 5, 1, 1)]  # a step of two with taps two apart
    up = nn.ConvTranspose2d(6, 6, 3, dilation=2, groups=6)
    assert axes(lambda m, x: m.up(x), 2, 6, 9, 9, up=up) == [(13, 3, 1, -2)] * 2


# ---- depthwise convolutions ------------------------------------------------------------------

CONVOLUTIONS = {
    "same": lambda: nn.Conv2d(6, 6, 3, padding="same", groups=6),
    "stepped": lambda: nn.Conv2d(6, 6, 5, stride=2, padding=2, groups=6, bias=False),
    "dilated, two filters": lambda: nn.Conv2d(6, 12, 3, dilation=2, padding=1, groups=6),
    "two channels": lambda: nn.Conv2d(6, 9, (3, 1), groups=3),
    "transposed": lambda: nn.ConvTranspose2d(6, 6, 3, dilation=2, groups=6),
    "transposed, cropped": lambda: nn.ConvTranspose2d(6, 9, (4, 2), padding=(3, 1), groups=3),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_of_few_channels_a_group_are_sums_over_windows(kind: str, target: str) -> None:
    conv = CONVOLUTIONS[kind]()
    compiled = check(lambda m, x: torch.relu(m.conv(x)), 2, 6, 9, 11, target=target, conv=conv)
    assert len(compiled.kernels) == 1 and not aten(compiled)


@pytest.mark.parametrize("target", TARGETS)
def test_depthwise_convolutions_of_lines_and_volumes(target: str) -> None:
    line, volume = nn.Conv1d(4, 4, 7, padding=3, groups=4), nn.Conv3d(4, 4, 3, groups=4)

    def both(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        return m.line(x.flatten(2)).tanh(), m.volume(x)

    assert not aten(check(both, 2, 4, 4, 5, 6, target=target, line=line, volume=volume))


def test_who_reads_windows_does_not_part_their_rows() -> None:
    """A pool that reads a depthwise convolution cuts its axes; the convolution's own are whole."""
    compiled = check(
        lambda m, x: F.max_pool3d(torch.tanh(m.conv(x)), 2),
        *(2, 6, 8, 12, 10),
        target="cuda",
        conv=nn.Conv3d(6, 6, 3, padding=1, groups=6),
    )
    convolution = next(k for k in compiled.kernels if k.template.symbol == "windows")
    sizes = [convolution.program.sizes[atom] for atom in convolution.program.rows]
    assert sizes[-4:] == [6, 8, 12, 10]


@pytest.mark.parametrize("target", TARGETS)
def test_parts_of_a_cat_are_no_padding(target: str) -> None:
    conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    check(lambda m, x: m.conv(torch.cat([x, x.sin()], 1)), 2, 3, 6, 7, target=target, conv=conv)


def test_the_ledger_says_why_a_depthwise_convolution_is_where_it_is() -> None:
    def told(conv: nn.Module, target: str, size: int) -> str:
        module = Written(lambda m, x: torch.relu(m.conv(x)), conv=conv).eval()
        problem = problem_from_module(module, (torch.randn(64, 32, size, size),))
        compiled = compile_problem(problem, target=target, policy=WHERE_IT_PAYS)
        return next(row.why for row in compiled.ledger if row.op == "conv2d")

    small, large = (nn.Conv2d(32, 32, k, padding=k // 2, groups=32) for k in (3, 7))
    assert "as a sum over windows" in told(small, "cuda", 56)
    assert "as a sum over windows" in told(small, "cpu", 56)
    assert "stays with the library" in told(large, "cpu", 56)
    dense = nn.Conv2d(32, 32, 3, padding=1, groups=2)
    assert "windows" not in told(dense, "cuda", 56)


# ---- coordinates -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_a_place_is_the_sum_of_its_steps(seed: int) -> None:
    draw = random.Random(seed)
    atoms = Atoms()
    counts = [draw.randint(2, 5) for _ in range(2)]
    steps = [draw.randint(1, 4) for _ in range(2)]
    start, size = draw.randint(-2, 2), draw.randint(12, 40)
    terms = [((atoms.fresh(n),), step) for n, step in zip(counts, steps, strict=True)]
    axis = atoms.affine(terms, start, size)
    at = atoms.access("x", (3, size), ((), axis)).at
    for places in itertools.product(*(range(n) for n in counts)):
        wanted = start + sum(p * s for p, s in zip(places, steps, strict=True))
        assert at.offset + sum(at.stride(a) * p for a, p in enumerate(places)) == wanted


def test_windows_side_by_side_are_a_cut_of_their_axis() -> None:
    atoms = Atoms()
    places, taps = atoms.fresh(4), atoms.fresh(3)
    assert atoms.affine((((places,), 3), ((taps,), 1)), 0, 12) == (places, taps)
    assert Slide(0, 3, 3).exact(4, 12) and not Slide(0, 3, 3).exact(4, 13)
    assert not Slide(0, 3, 2).exact(4, 12)


@pytest.mark.parametrize("side, together", [(54, 2), (56, 1), (50, 4), (34, 4)])
def test_windows_that_are_neighbours_in_memory_are_stored_in_whole_vectors(
    side: int, together: int
) -> None:
    """26, 27, 24 and 16 windows: what a thread stores at once begins at a multiple of itself."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2).square().contiguous()

    module = Written(forward)
    problem = problem_from_module(module, (torch.randn(64, side, side, 64),))
    (kernel,) = compile_problem(problem, target="cuda", policy=ALWAYS).kernels
    assert kernel.config.windows[-2:] == (1, together)  # channels lie along neighbouring threads


# ---- large windows ---------------------------------------------------------------------------

LARGE: dict[str, tuple[Forward, tuple[int, ...], tuple[int, ...]]] = {
    "average": (lambda m, x: F.avg_pool2d(x, (18, 17), 1), (20, 20), (3, 4)),
    "largest, stepped": (lambda m, x: F.max_pool2d(x, 30, 2) * 2, (36, 34), (4, 3)),
    "padded": (lambda m, x: F.avg_pool2d(x, 20, 1, 1), (20, 20), (3, 3)),
    "volume": (lambda m, x: F.avg_pool3d(x, (8, 9, 10), 1), (10, 11, 12), (3, 3, 3)),
    "line": (lambda m, x: F.avg_pool1d(x, 300, 2), (310,), (6,)),
    "small": (lambda m, x: F.avg_pool2d(x, 5, 1), (7, 7), ()),
    "many": (lambda m, x: F.avg_pool2d(x, 20, 1), (28, 28), ()),
    "side by side": (lambda m, x: F.avg_pool2d(x, 20), (40, 40), ()),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", LARGE)
def test_few_large_windows_are_made_in_one_walk(kind: str, target: str) -> None:
    forward, space, windows = LARGE[kind]
    (kernel,) = check(forward, 2, 3, *space, target=target).kernels
    assert (kernel.config.shape == "pictures") == bool(windows)
    if windows:
        assert kernel.config.windows == windows


@pytest.mark.parametrize("target", TARGETS)
def test_the_mean_of_a_convolution_reads_its_input_once(target: str) -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    compiled = check(lambda m, x: m.c(x).mean((2, 3)), 2, 3, 40, 40, target=target, c=conv)
    shapes = [k.config.shape for k in compiled.kernels if "x" in k.reads]
    assert shapes == ["strided" if target == "cpu" else "pictures"], "a CPU sums axis by axis"
