"""Generated convolutions: how they are described, who sits in their epilogues, what costs less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import conv_host
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from written import Written

from kernelwright.accuracy import Accuracy
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.lower import ConvKernel, convolution
from kernelwright.lower.conv import tiles
from kernelwright.lower.conv_shape import ConvConfig
from kernelwright.lower.steps import Alloc, Choice, Launch
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS, ConvForm, Policy
from kernelwright.plan.conv_seats import ConvWay
from kernelwright.plan.convolutions import conv_form
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module
from kernelwright.targets import SM_90, Target
from kernelwright.targets.sm_90 import CONV_LOOPS


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(convolution, "tiles", conv_host.boxes)
    convolution.tile_of.cache_clear()
    yield
    convolution.tile_of.cache_clear()


def loops(**changed: Any) -> Target:
    return replace(SM_90, conv_loops=tuple(replace(c, **changed) for c in CONV_LOOPS))


AGAIN, ONCE = loops(overhead=0.0, memory=1.0), loops(rate=1.0)


def compiled(
    forward: Callable[..., Any],
    *shape: int,
    target: Target = ONCE,
    policy: Policy = ALWAYS,
    train: bool = False,
    **parts: Any,
) -> Compiled:
    module = Written(forward, **parts).train(train)
    problem = problem_from_module(module, (torch.randn(*(shape or (2, 3, 19, 37))),))
    return compile_problem(problem, target=target, policy=policy)


def kinds(made: Compiled) -> list[str]:
    return [r.kind for r in made.planned.regions]


def form_of(layer: nn.Module, *shape: int) -> ConvForm:
    module = Written(lambda m, x: m.c(x), c=layer)
    graph = expand(capture(problem_from_module(module, (torch.randn(*shape),))))
    (node,) = (n for n in graph if n.op == "contract")
    found = conv_form(graph, node)
    assert found is not None
    return found


def test_a_form_is_read_off_the_index_maps() -> None:
    plain = form_of(nn.Conv2d(8, 12, (3, 5), stride=(1, 2), padding=1, groups=4), 2, 8, 9, 11)
    assert (plain.cin, plain.cout, plain.groups, plain.transposed) == (8, 12, 4, False)
    assert (plain.in_size, plain.out_size) == ((1, 9, 11), (1, 9, 5))
    assert (plain.kernel, plain.stride, plain.padding) == ((1, 3, 5), (1, 1, 2), (0, 1, 1))
    assert plain.depth == 2 * 15
    layer = nn.ConvTranspose3d(6, 4, 5, stride=2, padding=1, output_padding=1, groups=2)
    up = form_of(layer, 2, 6, 5, 6, 7)
    assert (up.cin, up.cout, up.groups, up.transposed) == (6, 4, 2, True)
    assert (up.out_size, up.stride, up.padding) == ((12, 14, 16), (2, 2, 2), (1, 1, 1))
    assert up.depth == 3 * 125 / 8
    same = form_of(nn.Conv1d(3, 5, 3, dilation=2, padding="same"), 2, 3, 20)
    assert (same.dilation, same.padding, same.out_size) == ((1, 1, 2), (0, 0, 2), (1, 1, 20))


def test_a_convolution_takes_what_follows_into_its_epilogue() -> None:
    made = compiled(lambda m, x: F.max_pool2d(torch.relu(m.c(x)), 2), c=nn.Conv2d(3, 9, 3))
    (region,) = made.planned.regions
    (row, *_) = made.ledger
    assert region.why.code is Code.CONV and "us, with the library" in row.why
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert kernel.conv.product not in kernel.reads
    assert {"kTileH", "kTileW"} <= dict(kernel.config.constants).keys()


def test_passes_are_one_choice() -> None:
    """All kernels of a convolution that is made again, or the library's steps."""
    parts = {"c": nn.Conv2d(3, 8, 3), "n": nn.GroupNorm(2, 8)}
    made = compiled(lambda m, x: torch.relu(m.n(m.c(x))), target=AGAIN, **parts)
    assert kinds(made) == ["conv", "conv"]
    (routine,) = made.lowered.routines
    (choice,) = routine.steps
    assert isinstance(choice, Choice)
    launched = [str(s).split(" = ")[1].split("(")[0] for s in choice.steps if "(" in str(s)]
    assert launched == ["conv2d_group_norm", "conv2d_group_norm_finish", "conv2d_group_norm_relu"]
    assert "aten.conv2d" in str(choice.otherwise[0])
    once, again = (dict(r.why.numbers) for r in made.planned.regions)
    assert once["again"] == again["again"] < again["once"]


def test_weights_are_packed_for_the_first_pass() -> None:
    """Memory for them once, and the second launch is told that they are there."""
    parts = {"c": nn.Conv2d(3, 8, 3), "n": nn.GroupNorm(2, 8)}
    made = compiled(lambda m, x: torch.relu(m.n(m.c(x))), target=AGAIN, **parts)
    (routine,) = made.lowered.routines
    (choice,) = routine.steps
    assert isinstance(choice, Choice)
    passes = [k for k in made.kernels if isinstance(k, ConvKernel)]
    first, second = passes
    alike = first.config.constants == second.config.constants
    rooms = [s.buffer.name for s in choice.steps if isinstance(s, Alloc)]
    assert rooms.count("packed_weight") == rooms.count("weight_scales") == 2 - alike
    launched = {s.kernel: s.sizes for s in choice.steps if isinstance(s, Launch)}
    assert [launched[k.name][-1] for k in passes] == [0, int(alike)]

    assert replace(first, config=second.config).goes_on(second)
    others = {"kBlockChannels": 128, **dict(first.config.constants), "kStages": 99}
    other = replace(first.config, constants=tuple(others.items()))
    assert not replace(first, config=other).goes_on(first)
    turned = replace(first, largest=replace(first.largest, signs=("a sign",)))
    assert not turned.goes_on(turned)
    elsewhere = replace(first.form, weight="other")
    assert not replace(first, form=elsewhere).goes_on(first)


def test_below_some_samples_the_library_is_as_accurate_as_eager() -> None:
    """`fewest` counts batches; this convolution has three samples for each."""

    def forward(m: Any, x: Any) -> Any:
        return torch.relu(m.c(x.reshape(-1, 3, 19, 37)))

    problem = problem_from_module(
        Written(forward, c=nn.Conv2d(3, 8, 3)), (torch.randn(2, 9, 19, 37),)
    )
    (name,) = [n.name for n in expand(capture(problem)) if n.op == "contract"]
    accuracies = {name: Accuracy(3e-4, 3e-4, fewest=16)}
    made = compile_problem(problem, target=ONCE, policy=ALWAYS, accuracies=accuracies)
    (routine,) = made.lowered.routines
    (choice,) = routine.steps
    assert isinstance(choice, Choice)
    (region,) = made.planned.regions
    assert region.conv is not None and region.conv.loop.accuracy == "tf32"
    assert "3*batch >= 48" in str(choice).replace(" * ", "*")
    assert "aten.conv2d" in str(choice.otherwise[0])


OBSTACLES = {
    "overlapping averages": (lambda m, x: F.avg_pool2d(m.c(x), 3, 2), Code.OVERLAP),
    "magnitudes": (lambda m, x: F.max_pool2d(m.c(x).abs(), 3, 2, 1), Code.OVERLAP),
    "a last window in the padding": (lambda m, x: F.max_pool2d(m.c(x), 2, 1, 1), Code.WALKS),
    "windows with holes": (lambda m, x: F.max_pool2d(m.c(x), 3, 2, 1, 2), Code.OVERLAP),
    "windows of a part": (lambda m, x: F.max_pool2d(m.c(x)[:, :, 1:], 3, 2, 1), Code.OVERLAP),
    "averages of zeros too": (lambda m, x: F.avg_pool2d(m.c(x), 2, 2, 1), Code.WALKS),
    "a part": (lambda m, x: torch.relu(m.c(x)[:, :, 1:]), Code.WALKS),
    "a gate for all": (lambda m, x: (lambda y: y[:, :1] * y[:, 1:])(m.c(x)), Code.WALKS),
    "its own transpose": (lambda m, x: (lambda y: y + y.transpose(2, 3))(m.c(x)), Code.WALKS),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_does_not_fit_reads_the_stored_result(name: str) -> None:
    forward, code = OBSTACLES[name]
    made = compiled(forward, 2, 3, 20, 20, c=nn.Conv2d(3, 9, 3, bias=False))
    assert kinds(made)[0] == "conv" and made.planned.regions[0].why.code is Code.CONV_ALONE
    assert code in [r.why.code for r in made.planned.refusals]


def gated(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.glu(m.c(x), 1), 2)


@pytest.mark.parametrize(("all_channels", "codes"), [(6.0, []), (60.0, [Code.APART_CHANNELS])])
def test_several_channels_are_read_where_that_costs_less(
    monkeypatch: pytest.MonkeyPatch, all_channels: float, codes: list[Code]
) -> None:
    """From tiles of all channels, or from the stored result: both estimates are in the reason."""
    monkeypatch.setattr(
        ConvConfig, "time", lambda tile, batch: all_channels if tile.channels >= 18 else 5.0
    )
    made = compiled(gated, c=nn.Conv2d(3, 18, 3))
    assert [r.why.code for r in made.planned.refusals] == codes
    code = Code.CONV_ALONE if codes else Code.CONV_CHANNELS
    assert made.planned.regions[0].why.code is code
    text = str(made.planned.refusals[0] if codes else made.planned.regions[0].why)
    assert "of all channels" in text and "several" in text


def test_more_channels_than_a_tile_has_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "tiles", tiles)
    for channels, code in ((128, Code.CONV_CHANNELS), (144, Code.CONV_ALONE)):
        made = compiled(gated, 2, 8, 34, 34, c=nn.Conv2d(8, channels, 3))
        assert made.planned.regions[0].why.code is code
        refused = [r.why.code for r in made.planned.refusals]
        assert refused == ([Code.TILE] if code is Code.CONV_ALONE else [])


def test_a_convolution_that_is_there_again_costs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does planning again: an epilogue's needs are all that tiles depend on."""
    monkeypatch.setattr(convolution, "tiles", tiles)

    def searches(layers: int) -> int:
        def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
            for i in range(layers):
                x = torch.relu(getattr(m, f"n{i}")(getattr(m, f"c{i}")(x)) + x)
            return x

        parts: dict[str, nn.Module] = {}
        for i in range(layers):
            parts |= {f"c{i}": nn.Conv2d(8, 8, 3, padding=1), f"n{i}": nn.BatchNorm2d(8)}
        convolution.tile_of.cache_clear()
        tiles.cache_clear()
        made = compiled(forward, 2, 8, 16, 16, train=True, **parts)
        assert sum(isinstance(k, ConvKernel) for k in made.kernels) > 0
        return tiles.cache_info().misses

    assert searches(6) == searches(3) > 0


def early(forward: Callable[..., Any], **parts: Any) -> list[bool]:
    made = compiled(forward, 2, 4, 9, 11, c=nn.Conv2d(4, 8, 3, padding=1), **parts)
    return [k.laid.early for k in made.kernels if isinstance(k, ConvKernel)]


def test_reductions_over_places_are_done_where_the_sums_are() -> None:
    """If they are short and ask for no place; what is stored besides may do as it likes."""
    assert early(lambda m, x: F.group_norm(m.c(x), 2)) == [True]
    assert early(lambda m, x: F.instance_norm(m.c(x) * 2).relu()) == [True]
    scale = nn.Linear(1, 1).bias
    assert early(lambda m, x: (m.c(x) * m.scale).abs().sum((1, 2, 3)), scale=scale) == [True]
    assert early(lambda m, x: F.selu(m.c(x)).var((2, 3))) == [True]
    assert early(lambda m, x: F.gelu(m.c(x)).var((2, 3))) == [False]  # long
    assert early(lambda m, x: F.layer_norm(m.c(x), (11,))) == [False]  # rows of a map
    at = nn.Parameter(torch.ones(9, 11))
    assert early(lambda m, x: (m.c(x) + m.at).abs().mean((2, 3)), at=at) == [False]


def test_a_result_is_stored_as_it_is() -> None:
    made = compiled(lambda m, x: (lambda y: (y, torch.relu(y)))(m.c(x)), c=nn.Conv2d(3, 9, 3))
    assert [b.name for r in made.planned.regions for b in r.outputs] == ["c", "relu"]


def rows(width: int = 11, **how: Any) -> Compiled:
    parts = {"c": nn.Conv2d(4, 8, 3, padding=1), "n": nn.LayerNorm(width)}
    return compiled(lambda m, x: torch.relu(m.n(m.c(x))), 2, 4, 9, width, **parts, **how)


def test_whole_rows_are_held_where_that_costs_less() -> None:
    (region,) = rows().planned.regions
    numbers = dict(region.why.numbers)
    assert region.why.code is Code.CONV_ROWS and numbers["ours"] < numbers["parts"]
    assert "hold whole rows" in str(region.why)


def test_rows_are_left_in_parts_where_tiles_of_whole_ones_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only box that holds rows of 11 is 16 places wide."""
    monkeypatch.setattr(ConvConfig, "time", lambda tile, batch: 1e3 if tile.width == 16 else 99.0)
    made = rows()
    assert [r.why.code for r in made.planned.regions] == [Code.CONV_STORED, Code.POINTWISE]
    (why,) = (r.why for r in made.planned.refusals if r.why.code is Code.ROWS_APART)
    numbers, (stored, *_) = dict(why.numbers), made.planned.regions
    assert numbers["ours"] == 1e3
    assert numbers["parts"] == pytest.approx(dict(stored.why.numbers)["once"])


def test_rows_that_no_tile_holds_are_left_in_parts() -> None:
    made = rows(width=24)
    assert kinds(made) == ["conv", "rowwise"]
    codes = {r.why.code for r in made.planned.refusals}
    assert not codes & {Code.ROWS_APART, Code.TILE}


def test_rows_that_others_read_too_are_left_in_parts() -> None:
    def forward(m: Any, x: Any) -> Any:
        y = m.c(x)
        return y, torch.relu(m.n(y))

    parts = {"c": nn.Conv2d(4, 8, 3, padding=1, bias=False), "n": nn.LayerNorm(11)}
    made = compiled(forward, 2, 4, 9, 11, **parts)
    assert Code.CONV_ROWS not in [r.why.code for r in made.planned.regions]


def test_held_rows_beat_the_library_where_parts_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConvConfig, "time", lambda tile, batch: 1.0 if tile.width == 16 else 1e4)
    (region,) = rows(policy=WHERE_IT_PAYS, target=SM_90).planned.regions
    assert region.kind == "conv"


def test_without_a_tile_the_plan_is_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are not parted from what they are for where that gains nothing."""
    monkeypatch.setattr(convolution, "tiles", lambda form, loop, needs: [])
    parts = {"c": nn.Conv2d(3, 8, 3), "n": nn.GroupNorm(2, 8)}
    made = compiled(lambda m, x: torch.relu(m.n(m.c(x))), **parts)
    assert kinds(made) == ["contract", "rowwise"]
    assert Code.CONVOLUTION in [r.why.code for r in made.planned.refusals]


def test_the_library_keeps_what_it_is_faster_at() -> None:
    slow = loops(rate=1.0)
    made = compiled(
        lambda m, x: torch.relu(m.c(x)), target=slow, policy=WHERE_IT_PAYS, c=nn.Conv2d(3, 9, 3)
    )
    assert kinds(made) == ["contract", "rowwise"]
    (why,) = (r.why for r in made.planned.refusals if r.why.code is Code.CONV_LIBRARY)
    assert "us with a kernel after it" in str(why)


@pytest.mark.parametrize(
    ("ratio", "time", "kind"),
    [(0.9, 20.0, "conv"), (1.1, 20.0, "contract"), (1.1, 5.0, "conv"), (1.3, 5.0, "contract")],
)
def test_close_estimates_are_left_to_the_tile(
    monkeypatch: pytest.MonkeyPatch, ratio: float, time: float, kind: str
) -> None:
    """`ratio` is by the products alone; the library takes 11 us."""
    monkeypatch.setattr(ConvWay, "times", (ratio, 1.0))
    monkeypatch.setattr(ConvConfig, "time", lambda tile, batch: time)
    layer = nn.Conv2d(3, 9, 3)
    made = compiled(lambda m, x: torch.relu(m.c(x)), policy=WHERE_IT_PAYS, c=layer)
    assert kinds(made)[0] == kind


def test_the_accuracy_that_is_owed_decides_the_loop() -> None:
    assert SM_90.conv_loop_for(torch.float32, "float32") is CONV_LOOPS[0]
    assert SM_90.conv_loop_for(torch.float32, "tf32") is CONV_LOOPS[1]
    assert SM_90.conv_loop_for(torch.bfloat16, "float32") is CONV_LOOPS[2]
    assert SM_90.conv_loop_for(torch.float64, "float32") is None
