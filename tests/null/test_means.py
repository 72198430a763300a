"""Means of normalised values come from the statistics: the same numbers, and one pass less."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from program_interpreter import carry_out_plan
from torch import Tensor, nn
from written import Written

from kernelwright import interpret, spec
from kernelwright.capture import capture
from kernelwright.counters import counted
from kernelwright.expand import expand
from kernelwright.graph import Graph
from kernelwright.pipeline import compile_problem
from kernelwright.plan import Limits, from_statistics, limits_of
from kernelwright.plan.means import LAW
from kernelwright.problem import problem_from_module
from kernelwright.targets import target_for

Forward = Callable[..., Any]
NOWHERE = Limits(lambda elements, segment: False, 1, 1)  # no row stays
SHAPE = (3, 4, 5, 7)
SPACE = (2, 3)


def primitives(module: nn.Module, x: Tensor) -> Graph:
    return expand(counted(capture(problem_from_module(module, (x,)))))


def written(forward: Forward, training: bool = True, **parts: Any) -> Written:
    module = Written(forward, **parts)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return module.train(training)


def both(module: nn.Module, x: Tensor, limits: Limits = NOWHERE) -> tuple[Graph, Graph, int]:
    """The primitives before and after, and how often the law fired."""
    before = primitives(module, x)
    after, laws = from_statistics(before, limits)
    spec.check_graph(after, "from_statistics")
    return before, after, len(laws)


def passes(graph: Graph) -> int:
    """Sums over all of the largest value that have another row than those before them."""
    largest = max(graph, key=lambda n: n.type.numel if isinstance(n.type.numel, int) else 1 << 40)
    sums = [n for n in graph if n.op == "reduce"]
    whole = [n for n in sums if graph[n.inputs[0]].type.numel == largest.type.numel]
    return len({n.payload.axes for n in whole})  # type: ignore[union-attr]


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, equal_nan=True)


def batch_norm(**options: Any) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(SHAPE[1], **options)


def subtracted(m: Any, x: Tensor) -> Tensor:
    y = m.n(x)
    return y - y.mean(dim=SPACE, keepdim=True)


def squeezed(m: Any, x: Tensor) -> Tensor:
    """Squeeze and excitation: the mean goes through a product and comes back as a factor."""
    y = m.n(x)
    return y * torch.sigmoid(m.l(y.mean(dim=SPACE)))[..., None, None]


FIRES: dict[str, tuple[Forward, dict[str, Any]]] = {
    "batch norm, keepdim": (subtracted, {"n": batch_norm()}),
    "dropped axes": (lambda m, x: m.n(x).mean(dim=SPACE), {"n": batch_norm()}),
    "negative axes": (lambda m, x: m.n(x).mean(dim=(-1, -2)), {"n": batch_norm()}),
    "a sum": (lambda m, x: m.n(x).sum(dim=SPACE), {"n": batch_norm()}),
    "a sum that is returned and divided": (
        lambda m, x: ((y := m.n(x).sum(dim=SPACE)), y / 35),
        {"n": batch_norm()},
    ),
    "one axis of the space": (lambda m, x: m.n(x).mean(dim=3), {"n": nn.BatchNorm2d(4)}),
    "channels too": (lambda m, x: m.n(x).mean(dim=(1, 2, 3)), {"n": batch_norm()}),
    "everything": (lambda m, x: m.n(x).mean(), {"n": batch_norm()}),
    "the axes of the statistics": (lambda m, x: m.n(x).mean(dim=(0, 2, 3)), {"n": batch_norm()}),
    "a global pool": (lambda m, x: F.adaptive_avg_pool2d(m.n(x), 1), {"n": batch_norm()}),
    "several readers": (
        lambda m, x: ((y := m.n(x)), torch.relu(y), y.mean(dim=SPACE)),
        {"n": batch_norm()},
    ),
    "two means": (
        lambda m, x: ((y := m.n(x)).mean(dim=SPACE), y.mean(dim=3)),
        {"n": batch_norm()},
    ),
    "no weights": (subtracted, {"n": batch_norm(affine=False)}),
    "no running statistics": (subtracted, {"n": batch_norm(track_running_stats=False)}),
    "another momentum": (subtracted, {"n": batch_norm(momentum=0.3)}),
    "scaled and shifted": (lambda m, x: (2 - m.n(x) / 3).mean(dim=SPACE), {"n": batch_norm()}),
    "squeeze and excitation": (squeezed, {"n": batch_norm(), "l": nn.Linear(4, 4)}),
    "group norm": (subtracted, {"n": nn.GroupNorm(2, 4)}),
    "group norm, whole samples": (
        lambda m, x: m.n(x).mean(dim=(1, 2, 3)),
        {"n": nn.GroupNorm(2, 4)},
    ),
    "instance norm": (subtracted, {"n": nn.InstanceNorm2d(4, affine=True)}),
    "by hand": (
        lambda m, x: ((x - x.mean((0, 2, 3), keepdim=True)) * 3).mean(dim=SPACE),
        {},
    ),
    "by torch.var_mean": (
        lambda m, x: (
            (x - (s := torch.var_mean(x, (0, 2, 3), keepdim=True))[1]) / (s[0] + 1).sqrt()
        ).mean(dim=SPACE),
        {},
    ),
}


@pytest.mark.parametrize("name", FIRES)
def test_the_same_values(name: str) -> None:
    torch.manual_seed(0)
    forward, parts = FIRES[name]
    module = written(forward, **parts)
    shape = (3, 4, 5, 20) if name in ("one axis of the space", "two means") else SHAPE
    x = torch.randn(*shape)
    before, after, fired = both(module, x)
    assert fired == (2 if name == "two means" else 1)
    assert passes(after) < passes(before) or name in ("the axes of the statistics", "instance norm")
    wide, exact = module.double(), x.double()
    for y in (exact, exact * 3 + 1000, with_specials(exact)):
        close(interpret.run(after, wide, (y,)), interpret.run(before, wide, (y,)))


def with_specials(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 0, 0, 0], x[1, 1, 2, 3], x[2, 2, 1, 1] = float("nan"), float("inf"), float("-inf")
    return x


LEFT: dict[str, tuple[Forward, dict[str, Any]]] = {
    "a function that is not affine": (
        lambda m, x: torch.relu(m.n(x)).mean(dim=SPACE),
        {"n": batch_norm()},
    ),
    "a residual": (lambda m, x: (m.n(x) + x).mean(dim=SPACE), {"n": batch_norm()}),
    "a square": (lambda m, x: ((y := m.n(x)) * y).mean(dim=SPACE), {"n": batch_norm()}),
    "a reciprocal": (lambda m, x: (1 / m.n(x)).mean(dim=SPACE), {"n": batch_norm()}),
    "a factor that varies along the axes": (
        lambda m, x: (m.n(x) * m.w).mean(dim=SPACE),
        {"n": batch_norm(), "w": nn.Parameter(torch.ones(5, 7))},
    ),
    "channels alone": (lambda m, x: m.n(x).mean(dim=1), {"n": batch_norm()}),
    "few elements": (lambda m, x: m.n(x).mean(dim=3), {"n": batch_norm()}),
    "a maximum": (lambda m, x: m.n(x).amax(dim=SPACE), {"n": batch_norm()}),
    "axes that the statistics keep": (
        lambda m, x: F.layer_norm(x, (7,)).mean(dim=2),
        {},
    ),
    "other statistics than mean and variance": (
        lambda m, x: ((x - x.mean((0, 2, 3), True)) / x.abs().sum((0, 2, 3), True)).mean(SPACE),
        {},
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    forward, parts = LEFT[name]
    before, after, fired = both(written(forward, **parts), torch.randn(*SHAPE))
    assert not fired and after is before


def test_eval_mode_has_no_statistics_to_wait_for() -> None:
    module = written(subtracted, training=False, n=batch_norm())
    assert not both(module, torch.randn(*SHAPE))[2]


def test_narrow_sums_would_be_rounded() -> None:
    module = written(subtracted, n=nn.GroupNorm(2, 4)).to(torch.bfloat16)
    assert not both(module, torch.randn(*SHAPE, dtype=torch.bfloat16))[2]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_rows_that_stay_are_left_alone(target: str) -> None:
    """A group norm in one kernel, and a mean in the kernel of what it is subtracted from."""
    limits = limits_of(target_for(target))
    x = torch.randn(*SHAPE)
    assert not both(written(subtracted, n=nn.GroupNorm(2, 4)), x, limits)[2]
    assert not both(written(subtracted, n=batch_norm()), x, limits)[2]
    assert both(written(lambda m, x: m.n(x).mean(SPACE), n=batch_norm()), x, limits)[2]
    assert both(written(squeezed, n=batch_norm(), l=nn.Linear(4, 4)), x, limits)[2]


@pytest.mark.parametrize("offset", [0.0, 100.0, 10000.0])
def test_as_accurate_as_eager(offset: float) -> None:
    """In float32, node by node; the variance is taken around means that are near."""
    torch.manual_seed(0)
    module = written(subtracted, n=batch_norm())
    x = torch.randn(8, 4, 40, 41) + offset
    _, after, fired = both(module, x)
    with torch.no_grad():
        ours, state = interpret.run(after, module, (x,))
    theirs = module(x).detach()
    exact = copy.deepcopy(module).double()(x.double()).detach()
    assert fired

    def error(y: Tensor) -> float:
        return float((y.double() - exact).norm() / exact.norm())

    assert error(ours) < 2 * error(theirs) + 1e-7
    assert {"n.running_mean", "n.running_var"} <= state.keys()


def test_a_convolution_leaves_sums_of_samples_for_both() -> None:
    """No kernel but the last reads what the convolution stored, and nothing is stored for none."""
    parts = {"c": nn.Conv2d(3, 8, 3), "n": nn.BatchNorm2d(8)}
    long = torch.randn(2, 3, 260, 260)
    made = compiled(lambda m, x: subtracted(m, m.c(x)), long, **parts)
    convolution, small, last = made.planned.regions
    product = "n_2_conv2d"
    assert convolution.kind == "conv" and product in {b.name for b in convolution.outputs}
    assert product not in small.reads and product in last.reads
    assert any(LAW in law for law in made.rewrites)
    pooled = compiled(lambda m, x: m.n(m.c(x)).mean(dim=SPACE), torch.randn(2, 3, 9, 9), **parts)
    assert [r.kind for r in pooled.planned.regions] == ["conv", "rowwise"]
    assert product not in {b.name for r in pooled.planned.regions for b in r.outputs}


def compiled(forward: Forward, x: Tensor, **parts: nn.Module) -> Any:
    from kernelwright.plan import ALWAYS

    problem = problem_from_module(written(forward, **parts), (x,))
    return compile_problem(problem, target="cuda", policy=ALWAYS)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.GroupNorm(4, 8)], ids=["batch", "group"])
def test_plans_compute_it(norm: nn.Module) -> None:
    torch.manual_seed(0)
    made = compiled(
        lambda m, x: m.n(m.c(x)).mean(dim=SPACE),
        torch.randn(2, 3, 9, 9),
        c=nn.Conv2d(3, 8, 3),
        n=norm,
    )
    module, x = made.problem.module.double(), torch.randn(3, 3, 9, 9, dtype=torch.float64)
    got, state = carry_out_plan(made.planned, module, (x,))
    close(got, module(x))
    for name, value in state.items():
        close(value, module.get_buffer(name))
