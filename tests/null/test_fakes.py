"""Fake tensors lie as eager's results do: operators on turned and expanded operands, and models."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fuzzing.choices import Seeded
from fuzzing.compiled import turned
from fuzzing.grammar import GRAMMAR
from fuzzing.judge import module_of
from fuzzing.recipe import Recipe
from fuzzing.writer import SMALL, Writer
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from written import Written

from kernelwright import fakes
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.probe import tensors_of
from kernelwright.problem import problem_from_module

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Strides = list[list[tuple[int, ...]]]

# Of x and y, both (5, 6), by columns and of one number.
OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "huber": lambda x, y: F.huber_loss(y, x, reduction="none"),
    "huber, the other way": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "huber, mean": F.huber_loss,
    "smooth l1": lambda x, y: F.smooth_l1_loss(y, x, reduction="none"),
    "cross entropy": lambda x, y: F.binary_cross_entropy(x / 2, y / 2, reduction="none"),
    "nll": lambda x, y: F.nll_loss(x[:, None].expand(5, 3, 6), (x < 0).long(), reduction="none"),
    "log sigmoid": lambda x, y: F.logsigmoid(x),
    "power of a number": lambda x, y: torch.pow(0.5, x),
    "power": lambda x, y: torch.pow(x, 0.5),
    "rrelu": lambda x, y: F.rrelu(x),
    "batch norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "max pool": lambda x, y: F.max_pool1d(x, 2),
    "max pool and places": lambda x, y: F.max_pool1d(x[None], 2, return_indices=True)[0],
    "max pool, by name": lambda x, y: torch.max_pool1d(kernel_size=2, input=x),
    "max pool, called": lambda x, y: torch.ops.aten.max_pool1d.default(x, [2]),
    "max pool for a gradient": lambda x, y: F.max_pool1d(x[None].clone().requires_grad_(), 2),
    "softmax": lambda x, y: x.softmax(0),
    "kl": lambda x, y: F.kl_div(y, x, reduction="none"),
}  # fmt: skip


# Operands, as shapes and the orders that their axes are in.
LAID: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "one place": [((5, 1, 1, 1, 9), (0, 4, 1, 2, 3))] * 3,
    "one place, of images": [((5, 1, 1, 9), (0, 3, 1, 2))] * 3,
    "channels last": [((2, 3, 4, 5), (0, 3, 1, 2))] * 3,
    "turned": [((2, 3, 4, 5), (3, 1, 0, 2))] * 3,
    "turned and in rows": [((6, 5), (1, 0)), ((5, 6), (0, 1)), ((6, 5), (1, 0))],
    "in rows and turned": [((5, 6), (0, 1)), ((6, 5), (1, 0)), ((5, 6), (0, 1))],
    "broadcast": [((5, 1), (0, 1)), ((6, 5), (1, 0)), ((), ())],
    "one place, broadcast": [((5, 1, 6, 9), (0, 1, 2, 3)), ((5, 1, 1, 9), (0, 3, 1, 2))],
    "broadcast both ways": [((3, 1, 4), (2, 1, 0)), ((4, 7, 3), (0, 1, 2)), ((4, 1, 1), (0, 1, 2))],
}  # fmt: skip


def pointwise() -> list[Any]:
    """All pointwise operators that give one tensor, and take tensors and numbers."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if name[0] != "_"]
    found = [getattr(p, o) for p in packets if hasattr(p, "overloads") for o in p.overloads()]
    return [op for op in found if torch.Tag.pointwise in op.tags and fakes._makes_tensors(op)]


def called(op: Any, laid: str, dtype: torch.dtype) -> tuple[int, ...] | None:
    """How its result lies, or None if it takes other types or arguments."""
    operands = [torch.ones(shape).permute(order).to(dtype) for shape, order in LAID[laid]]
    given, kinds = itertools.cycle(operands), [str(a.type) for a in op._schema.arguments]
    wanted = zip(kinds, op._schema.arguments, strict=True)
    args = [next(given) if k == "Tensor" else 2 for k, a in wanted if not a.has_default_value()]
    try:
        return tuple(op(*args).stride())
    except Exception:
        return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_pointwise_operators(dtype: torch.dtype) -> None:
    left = ("backward", "aten.ldexp.", "aten.float_power.")  # several kernels in a row
    left += ("aten.isfinite.", "aten.isinf.") if dtype is torch.bool else ()  # nobody asks
    operators = [op for op in pointwise() if not any(word in str(op) for word in left)]
    found = {(op, laid): called(op, laid, dtype) for op in operators for laid in LAID}
    real = {case: lies for case, lies in found.items() if lies is not None}
    with FakeTensorMode(), fakes.layouts():
        fake = {case: called(*case, dtype) for case in real}
    wrong = {case: lies for case, lies in fake.items() if lies != real[case]}
    assert not wrong and len(real) > 400


def test_on_cuda_log_sigmoids_lie_as_their_operand() -> None:
    with FakeTensorMode(), fakes.layouts():
        for device, strides in (("cuda", (9, 1, 9, 9)), ("cpu", (9, 1, 1, 1))):
            x = torch.empty(5, 1, 1, 9, device=device).permute(0, 3, 1, 2)
            assert F.logsigmoid(x).stride() == strides


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, dtype: torch.dtype) -> None:
    def strides() -> tuple[int, ...]:
        x = torch.rand(6, 5).to(dtype).t()
        y = torch.rand(()).to(dtype).expand(5, 6)
        return OPERATORS[name](x, y).stride()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real = strides()
        with FakeTensorMode(), fakes.layouts():
            assert strides() == real


def run(recipe: Recipe, module: nn.Module, inputs: list[Any]) -> Iterator[tuple[str, list[Tensor]]]:
    scope = dict(zip((n for n, _ in recipe.inputs), inputs, strict=True))
    scope |= {"self": module, "torch": torch, "F": F, "nn": nn}
    for statement in recipe.statements:
        value = eval(statement.text, scope)
        several = len(statement.names) > 1
        scope.update(zip(statement.names, value if several else [value], strict=True))
        yield statement.text, [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def strides(recipe: Recipe, module: nn.Module, inputs: list[Any]) -> list[tuple[str, Strides]]:
    """Of every step, along axes with more than one place."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            (text, [[s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] for t in made])
            for text, made in run(recipe, module, inputs)
        ]


@pytest.mark.parametrize("group", range(3))
def test_every_step_of_random_models(group: int) -> None:
    for seed in range(20 * group, 20 * group + 20):
        recipe = Writer(Seeded(seed), GRAMMAR, SMALL, ("float32", "bfloat16")).write()
        module = module_of(recipe)
        for lay in (lambda x: x, turned):
            inputs = [lay(x) if isinstance(x, Tensor) else x for x in recipe.make_inputs(5, 0)]
            try:
                real = strides(recipe, copy.deepcopy(module), inputs)
            except (RuntimeError, ValueError, IndexError):
                continue  # eager refuses
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            with mode, fakes.layouts():
                stand_ins: dict[int, Any] = {
                    id(t): mode.from_tensor(t.detach()) for t in tensors_of(module)
                }
                given = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in inputs]
                assert strides(recipe, copy.deepcopy(module, stand_ins), given) == real, seed


def test_a_call_gives_gaps_as_eager_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention on CUDA does for heads of an odd width: nothing is copied to be rid of them."""

    def wider(result: Tensor, x: Tensor) -> Tensor:
        return result.new_empty(*x.shape[:-1], 8)[..., : x.shape[-1]]

    monkeypatch.setitem(fakes.KERNELS, torch.ops.aten.cumsum.default, wider)
    module = Written(lambda m, x: torch.cumsum(x.sigmoid(), 1)).eval()
    graph = capture(problem_from_module(module, (torch.randn(5, 6),)))
    assert graph.contract.strides == ((8, 1),)
    (result,) = expand(graph).results
    assert expand(graph)[result].op == "opaque"
