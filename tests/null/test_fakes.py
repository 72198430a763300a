"""Fake tensors lie as eager's results do: operators on turned and expanded operands, and models."""

from __future__ import annotations

import copy
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
    "softmax": lambda x, y: x.softmax(0),
    "kl": lambda x, y: F.kl_div(y, x, reduction="none"),
}  # fmt: skip


# Of z, (5, 9, 1, 1), whose steps along axes of one place are those of what it is a view of.
AT_ONE_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": torch.empty_like,
    "empty, in rows": lambda z: torch.empty_like(z, memory_format=torch.contiguous_format),
    "numbers": lambda z: torch.full_like(z, 2.0),
    "random": torch.rand_like,
    "clone": torch.clone,
    "huber": lambda z: F.huber_loss(z, z, reduction="none"),
    "cross entropy": lambda z: F.binary_cross_entropy(z, z, reduction="none"),
    "log sigmoid": F.logsigmoid,
}


@pytest.mark.parametrize("name", AT_ONE_PLACE)
def test_steps_along_one_place(name: str) -> None:
    def strides() -> list[tuple[int, ...]]:
        made = AT_ONE_PLACE[name](torch.rand(5, 1, 1, 9).permute(0, 3, 1, 2))
        return [made.stride(), (torch.rand(5, 1, 6, 1, 9)[:, :, :, 0, :1] - made).stride()]

    real = strides()
    with FakeTensorMode(), fakes.Layouts():  # type: ignore[no-untyped-call]
        assert strides() == real


def test_on_cuda_log_sigmoids_lie_as_their_operand() -> None:
    with FakeTensorMode(), fakes.Layouts():  # type: ignore[no-untyped-call]
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
        with FakeTensorMode(), fakes.Layouts():  # type: ignore[no-untyped-call]
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
            with mode, fakes.Layouts():  # type: ignore[no-untyped-call]
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
