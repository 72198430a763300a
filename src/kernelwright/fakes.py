"""What is computed of fake tensors lies in memory as eager's results do.

In: calls on fake tensors. Out: their results, fake as well, with the strides that kernels give.
torch's rules for fake tensors are written in Python, and here and there they differ from kernels in
that: for these operators it is written down here, and narrow types lie as wide ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = (torch.float16, torch.bfloat16)
LIKE = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
aten = torch.ops.aten


def _of_batch_norm(result: Tensor, x: Tensor) -> Tensor:
    """The CPU's does not take over any order but that of channels."""
    if x.device.type != "cpu":
        return result
    wanted = CHANNELS_LAST.get(x.ndim, torch.contiguous_format)
    kept = x.is_contiguous(memory_format=wanted)
    return result.contiguous(memory_format=wanted if kept else torch.contiguous_format)


def _of_log_sigmoid(result: Tensor, x: Tensor) -> Tensor:
    return _in_rows(result, x) if x.device.type == "cpu" else _as_first(result, x)


def _in_rows(result: Tensor, _: Any) -> Tensor:
    return torch.empty(result.shape, dtype=result.dtype, device=result.device)


def _as_first(result: Tensor, x: Tensor) -> Tensor:
    """As the first operand, with the steps along axes of one place too if that fills its memory.

    Which axis comes first in what is computed of it may depend on these.
    """
    if result.shape != x.shape:
        return result
    return _restrided(result, x if _fills(x) else torch.empty_like(x))


def _fills(x: Tensor) -> bool:
    """Whether its elements lie one after the other, in whatever order, without gaps."""
    step = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


# How the first result lies, by the first operand.
KERNELS: dict[Any, Callable[[Tensor, Any], Tensor]] = {
    aten.native_batch_norm.default: _of_batch_norm,
    aten.log_sigmoid_forward.default: _of_log_sigmoid,
    **{getattr(aten, f"{name}_like").default: _as_first for name in LIKE},
    aten.huber_loss.default: _as_first,
    aten.binary_cross_entropy.default: _as_first,
    aten.nll_loss2d_forward.default: _in_rows,
    aten.pow.Scalar: _in_rows,
    aten.rrelu_with_noise.default: _in_rows,
    aten.rrelu_with_noise_functional.default: _in_rows,
}


class Layouts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """To be entered inside of a FakeTensorMode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        lies = KERNELS.get(func)
        if lies is not None and kwargs.get("memory_format") in (None, torch.preserve_format):
            if isinstance(results, Tensor):
                return lies(results, args[0])
            return (lies(results[0], args[0]), *results[1:])
        if func in decomposition_table and _makes_tensors(func):
            return _as_wide(func, args, kwargs, results)
        return results


def _makes_tensors(func: Any) -> bool:
    """Whether it returns new ones, and changes none."""
    views = [value for value in func._schema.returns if value.alias_info is not None]
    return not views and not func._schema.is_mutable


def _as_wide(func: Any, args: Any, kwargs: Any, results: Any) -> Any:
    """As float32 operands would make them: the rules widen narrow ones first, and so copy them."""
    leaves = pytree.tree_leaves((args, kwargs))
    if not any(isinstance(x, Tensor) and x.dtype in NARROW for x in leaves):
        return results

    def wide(x: Tensor) -> Tensor:
        if x.dtype not in NARROW:
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device=x.device)

    given, named = pytree.tree_map_only(Tensor, wide, (args, kwargs))
    try:
        wider = func(*given, **named)
    except Exception:  # an operator need not take other types
        return results
    return pytree.tree_map(
        lambda x, y: _restrided(x, y) if isinstance(x, Tensor) else x, results, wider
    )


def _restrided(made: Tensor, model: Tensor) -> Tensor:
    """One of the type of the first that lies as the second."""
    if made.stride() == model.stride():
        return made
    strides = model.stride()
    return torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device)
