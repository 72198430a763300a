"""Arguments of a call that are no dense tensors: constants of the trace, sparse ones, no axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelwright


class Called(nn.Module):
    """A function of what forward is given, left to ATen."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@dataclass
class Options:
    dim: int
    kind: str = "sum"

    def __post_init__(self) -> None:
        assert self.kind in ("sum", "product")


def running(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    assert type(dim) is int
    return torch.cumsum(x, dim, dtype=dtype)


def by_options(x: Tensor, *, options: Options) -> Tensor:
    return (torch.cumsum if options.kind == "sum" else torch.cumprod)(x, options.dim)


def in_list(pair: list[Any]) -> Tensor:
    return torch.cumsum(pair[0], 0, dtype=pair[1])


X = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "others"),
    [
        (running, (X, 1), {}, ((X, 0), {})),
        (running, (X, 1), {"dtype": torch.float64}, ((X, 1), {"dtype": torch.int32})),
        (running, (X,), {"dtype": torch.float64, "dim": 1}, ((X,), {"dim": 0})),
        (by_options, (X,), {"options": Options(1)}, ((X,), {"options": Options(1, "product")})),
        (in_list, ([X, torch.float64],), {}, (([X, torch.int64],), {})),
    ],
)
def test_constants_are_as_the_caller_gave_them(
    function: Any, args: Any, kwargs: Any, others: Any
) -> None:
    module = Called(function)
    fused: Any = kernelwright.optimize(module, args, kwargs, kinds="given")
    assert torch.equal(fused(*args, **kwargs), module(*args, **kwargs))
    assert not fused.fallbacks
    with pytest.warns(UserWarning, match="runs the original"):
        ours = fused(*others[0], **others[1])
    assert torch.equal(ours, module(*others[0], **others[1]))


def test_inputs_among_the_parts_of_a_result_are_the_inputs() -> None:
    module = Called(lambda *x: torch.atleast_2d(*x))
    given = (torch.randn(3, 4, requires_grad=True), torch.randn(3))
    fused = kernelwright.optimize(module, given, kinds="given")
    ours, theirs = fused(*given), module(*given)
    assert ours[0] is theirs[0] is given[0]
    assert ours[1].data_ptr() == given[1].data_ptr() and torch.equal(ours[1], theirs[1])


def test_views_of_no_axes() -> None:
    module = Called(lambda x: (x.permute(()), x.transpose(0, -1)))
    x = torch.tensor(3.0)
    ours = kernelwright.optimize(module, (x,), kinds="given")(x)
    assert all(y.data_ptr() == x.data_ptr() and y.shape == () for y in ours)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_tensors_are_for_the_original(layout: str) -> None:
    module, y = Called(torch.mm), torch.randn(4, 2)
    fused: Any = kernelwright.optimize(module, (X, y), kinds="given")
    x = getattr(X, layout)()
    with pytest.warns(UserWarning, match="is not a plain tensor"):
        ours = fused(x, y)
    assert torch.equal(ours, torch.mm(x, y))


def test_the_batch_is_free_beside_named_arguments_and_lists() -> None:
    module = Called(lambda x, shape, *, dim, other: (torch.cumsum(x + other, dim), shape))
    compiled = kernelwright.explain(module, (X, [1, 2]), {"other": X, "dim": 1})
    assert compiled.captured.symbols and compiled.captured.contract.fixed is None
    fused: Any = compiled.instantiate()
    larger = torch.randn(7, 4)
    ours, shape = fused(larger, [1, 2], other=larger, dim=1)
    assert torch.equal(ours, torch.cumsum(larger * 2, 1)) and shape == [1, 2]
    assert not fused.fallbacks


def test_a_batch_of_one_that_torch_holds_is_compiled_as_one() -> None:
    module = Called(lambda x, y: torch.linalg.multi_dot([x, y]))
    given = torch.randn(1, 2), torch.randn(2, 1)
    fused: Any = kernelwright.optimize(module, given, kinds="given")
    assert torch.equal(fused(*given), module(*given))
    assert not fused.fallbacks
