"""Library convolutions in channels_last: which are, what follows them, and equal values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.accuracy import UNKNOWN, Accuracy
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.graph import Contraction, View
from kernelwright.interpret import run
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import CHANNELS_LAST, WHERE_IT_PAYS, Policy, with_channels_last
from kernelwright.problem import problem_from_module
from kernelwright.spec import check_graph
from kernelwright.strides import lying
from kernelwright.targets import SM_90

Tensor = torch.Tensor
# Hopper without convolutions of ours.
LIBRARY = replace(SM_90, conv_loops=())
TF32, FLOAT32 = Accuracy(3e-4, 3e-4), Accuracy(2e-7, 3e-4)


class Same(dict[str, Accuracy]):
    """One accuracy for all convolutions."""

    def __init__(self, accuracy: Accuracy) -> None:
        super().__init__()
        self.accuracy = accuracy

    def get(self, name: str, default: Any = None) -> Any:
        return self.accuracy


class Written(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.written = forward
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.third = nn.Conv2d(16, 8, 1)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.volume = nn.Conv3d(3, 4, 3)
        self.grown = nn.ConvTranspose3d(3, 4, 3, stride=2, output_padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.GroupNorm(2, 8)
        self.table = nn.Parameter(torch.randn(8, 10, 10))

    def forward(self, x: Tensor) -> Any:
        return self.written(self, x)


def pooled(m: Any, x: Tensor) -> Tensor:
    return m.second(F.max_pool2d(m.norm(m.first(x)).relu(), 3, 2, 1)).tanh()


def residual(m: Any, x: Tensor) -> Tensor:
    y = m.first(x).relu()
    return (m.second(y) + y).sigmoid().mean((2, 3))


def joined(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    return m.third(torch.cat([y.relu(), m.second(y)], 1))


def chunks(m: Any, x: Tensor) -> Tensor:
    a, b = m.second(m.first(x).relu()).chunk(2, 1)
    return a.tanh() * b.sigmoid()


def returned_twice(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.first(x).relu()
    return y, m.second(y)


MODELS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "pooled": (pooled, (3, 10, 10)),
    "residual": (residual, (3, 10, 10)),
    "joined": (joined, (3, 10, 10)),
    "chunks": (chunks, (3, 10, 10)),
    "returned twice": (returned_twice, (3, 10, 10)),
    "bare": (lambda m, x: m.first(x), (3, 10, 10)),
    "one after another": (lambda m, x: m.second(m.deep(m.first(x))), (3, 10, 10)),
    "transposed": (lambda m, x: m.up(m.first(x).relu()).exp(), (3, 10, 10)),
    "three dimensions": (lambda m, x: m.volume(x * 2).relu(), (3, 6, 5, 4)),
    "transposed, three": (lambda m, x: F.gelu(m.grown(x)), (3, 4, 5, 3)),
    "group norm": (lambda m, x: m.grouped(m.first(x)), (3, 10, 10)),
    "softmax": (lambda m, x: m.first(x).softmax(1), (3, 10, 10)),
    "a table of one sample": (lambda m, x: m.first(x) * m.table + m.table, (3, 10, 10)),
    "a view": (lambda m, x: m.first(x.view(-1, 3, 10, 10)).relu(), (300,)),
    "a part": (lambda m, x: m.first(x[:, 1:4]).relu(), (5, 10, 10)),
    "a part of a sum": (lambda m, x: m.first((x + 1)[:, 1:4]).relu(), (5, 10, 10)),
    "numbers of places": (
        lambda m, x: m.first(x) + torch.arange(10.0, device=x.device),
        (3, 10, 10),
    ),
}


def compiled(
    forward: Callable[..., Any],
    shape: tuple[int, ...],
    accuracy: Accuracy = TF32,
    policy: Policy = CHANNELS_LAST,
    batch: int = 2,
) -> Compiled:
    torch.manual_seed(0)
    module = Written(forward).eval()
    problem = problem_from_module(module, (torch.randn(batch, *shape),))
    return compile_problem(problem, target=LIBRARY, accuracies=Same(accuracy), policy=policy)


def orders(made: Compiled) -> list[bool]:
    """For each convolution that stays with the library whether it has its channels last."""
    found = [n.payload for n in made.planned.graph if isinstance(n.payload, Contraction)]
    return [bool(p.call.order) for p in found if not p.is_product]


@pytest.mark.parametrize("name", MODELS)
def test_values_and_strides_are_those_of_the_model(name: str) -> None:
    made = compiled(*MODELS[name])
    assert orders(made)
    assert all(orders(made))
    module = copy.deepcopy(made.problem.module).double()
    inputs = tuple(x.double() for x in made.problem.inputs)
    wanted = module(*inputs)
    got, _ = run(made.planned.graph, module, inputs)
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    graph = made.planned.graph
    for node in (n for n in graph if isinstance(n.payload, Contraction)):
        operand = lying(graph, node.inputs[0]).movedim(1, -1)
        assert operand.is_contiguous() or name == "chunks"


@pytest.mark.parametrize("name", ["pooled", "residual", "joined"])
def test_what_lies_between_convolutions_has_its_channels_last(name: str) -> None:
    """Only the model's input is stored anew; its output alone is turned back."""
    made = compiled(*MODELS[name])
    turned = {k.name for k in made.kernels if k.config.shape == "turned"}
    activations = [r for r in made.planned.regions if not isinstance(r.outputs[0].shape[0], int)]
    returned = len(made.problem.module(*made.problem.inputs).shape) == 4
    assert sum(r.name in turned for r in activations) == 1 + returned
    stored = [b for r in activations for b in r.outputs if len(b.shape) == 4]
    assert all(b.shape[-1] in (3, 8, 16) for b in stored[:-1])


def test_a_library_that_takes_tf32_in_that_order_alone_keeps_the_other() -> None:
    made = compiled(*MODELS["residual"], FLOAT32, WHERE_IT_PAYS, batch=64)
    assert not any(orders(made))
    assert "its error would be 3.0e-04, eager's is 2.0e-07" in str(made.planned)


def test_nothing_is_turned_where_nothing_was_measured() -> None:
    made = compiled(*MODELS["residual"], UNKNOWN, WHERE_IT_PAYS, batch=64)
    assert not any(orders(made))
    assert "channels first" not in str(made.planned)


def test_large_operands_pay_for_their_turning() -> None:
    module = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU())
    assert _last_of(module, (256, 16, 32, 32)) == [True]


def test_depthwise_in_three_dimensions_keeps_its_order() -> None:
    module = nn.Conv3d(16, 16, 5, groups=16)  # its windows are too large for a sum of ours
    assert _last_of(module, (64, 16, 8, 8, 8)) == [False]


def test_a_norm_that_is_returned_keeps_its_order() -> None:
    """A reduction stores as it reads, and its rows of NCHW would be parts of sectors."""
    module = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)).train()
    problem = problem_from_module(module, (torch.randn(128, 16, 32, 32),))
    made = compile_problem(problem, target=LIBRARY, accuracies=Same(TF32))
    assert not any(orders(made))
    assert "behind it, would take" in str(made.planned)


def test_matrix_products_of_pixels_follow_what_they_read() -> None:
    """A 1 x 1 convolution gains nothing by itself."""
    alone = nn.Conv2d(16, 32, 1)
    assert _last_of(alone, (128, 16, 32, 32)) == [False]
    behind = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), alone, nn.ReLU())
    assert _last_of(behind, (128, 16, 32, 32)) == [True, True]


def test_half_precision_needs_no_measurement() -> None:
    module = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU()).half()
    problem = problem_from_module(module, (torch.randn(256, 16, 32, 32).half(),))
    made = compile_problem(problem, target=LIBRARY, accuracies={})
    assert all(orders(made))


def test_emitted_text_gives_the_library_what_lies_so() -> None:
    made = compiled(*MODELS["pooled"])
    assert ".permute(0, 3, 1, 2)" in made.source
    assert ".permute(0, 2, 3, 1)" in made.source


def test_below_some_samples_the_library_runs_as_in_eager() -> None:
    made = compiled(*MODELS["residual"], Accuracy(3e-4, 3e-4, fewest=16))
    assert "from_batch(16, " in made.source
    assert "in channels_last from 16 samples on" in str(made.planned)
    assert "from_batch" not in compiled(*MODELS["residual"]).source


def _last_of(module: nn.Module, shape: tuple[int, ...]) -> list[bool]:
    problem = problem_from_module(module.eval(), (torch.randn(shape),))
    return orders(compile_problem(problem, target=LIBRARY, accuracies=Same(TF32)))


def test_what_is_there_in_both_orders_is_read_in_either() -> None:
    made = compiled(lambda m, x: m.first(x).relu().sum() + x.cumsum(2).sum(), (3, 10, 10))
    assert all(orders(made))
    assert not [n.name for n in made.planned.graph if n.name.endswith("_first")]


def test_a_convolution_is_known_by_its_node_whatever_others_are_called() -> None:
    """`conv_last` is a name that users like."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, bias=False)
            self.conv_last = nn.Conv2d(16, 8, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv_last(self.conv(x).relu()).tanh()

    problem = problem_from_module(Model(), (torch.randn(128, 16, 32, 32),))
    made = compile_problem(problem, target=LIBRARY, accuracies=Same(TF32))
    told = [str(r.why) for r in made.planned.regions if r.kind == "contract"]
    assert len(told) == 2
    assert all("in channels_last" in why for why in told)


def test_turned_views_are_permutations() -> None:
    made = compiled(*MODELS["one after another"])
    views = [n.payload for n in made.planned.graph if n.name.endswith("_channels")]
    assert all(isinstance(v, View) and v.kind == "permute" for v in views)


@pytest.mark.parametrize(
    "chosen", [("first_product",), ("second",), ("first_product", "third_product")]
)
def test_calls_that_are_not_chosen_have_their_operands_as_eager(chosen: tuple[str, ...]) -> None:
    forward, shape = joined, (3, 10, 10)
    torch.manual_seed(0)
    module = Written(forward).eval()
    captured = capture(problem_from_module(module, (torch.randn(2, *shape),)))
    primitives = expand(captured)
    graph, first = with_channels_last(primitives, dict.fromkeys(chosen, 1))
    check_graph(graph, "expand")
    calls = [n for n in graph if isinstance(n.payload, Contraction)]
    assert len(calls) == 3
    for node in calls:
        last = bool(node.payload.call.order)  # type: ignore[union-attr]
        assert last == (first.get(node.name) in chosen)
        operand = lying(graph, node.inputs[0])
        assert operand.is_contiguous(memory_format=torch.channels_last) == last
    x = torch.randn(2, *shape, dtype=torch.float64)
    got, _ = run(graph, module.double(), (x,))
    torch.testing.assert_close(got, module(x))
