"""What is computed of fake tensors lies in memory as eager's results do.

In: calls on fake tensors. Out: their results, fake as well, with the strides that kernels give.
torch's rules for fake tensors are written in Python, and here and there they differ from kernels in
that. Here a pointwise operator orders axes as TensorIterator does, which nearly all of their
kernels share; of those that do not it is written down how they lie, and for any other operator
narrow types lie as wide ones do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
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


def _of_max_pool1d(result: Tensor, x: Tensor) -> Tensor:
    """The CPU has a kernel without places, for when no gradient will ask for them."""
    recorded = x.requires_grad and torch.is_grad_enabled()
    return result if recorded or x.device.type != "cpu" else _in_rows(result, x)


def _of_log_sigmoid(result: Tensor, x: Tensor) -> Tensor:
    return _in_rows(result, x) if x.device.type == "cpu" else _as_first(result, x)


def _in_rows(result: Tensor, _: Any) -> Tensor:
    return torch.empty(result.shape, dtype=result.dtype, device=result.device)


def _in_format(result: Tensor, x: Tensor) -> Tensor:
    """In channels_last where the operand is, on the CPU."""
    if x.device.type != "cpu":
        return result
    return result.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))


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
    aten._native_batch_norm_legit.default: _of_batch_norm,
    aten._native_batch_norm_legit.no_stats: _of_batch_norm,
    aten._native_batch_norm_legit_functional.default: _of_batch_norm,
    aten._batch_norm_with_update.default: _of_batch_norm,
    aten._batch_norm_with_update_functional.default: _of_batch_norm,
    aten.log_sigmoid_forward.default: _of_log_sigmoid,
    aten.max_unpool2d.default: _in_format,
    aten.reflection_pad3d.default: _in_format,
    aten.replication_pad3d.default: _in_format,
    aten.normal.Tensor_Tensor: _in_rows,
    aten.normal.Tensor_float: _in_rows,
    aten.normal.float_Tensor: _in_rows,
    **{getattr(aten, f"{name}_like").default: _as_first for name in LIKE},
    aten.hardtanh.default: _as_first,
    aten.nan_to_num.default: _as_first,
    aten.deg2rad.default: _as_first,
    aten.rad2deg.default: _as_first,
    aten.huber_loss.default: _as_first,
    aten.binary_cross_entropy.default: _as_first,
    aten.nll_loss2d_forward.default: _in_rows,
    aten.masked_fill.Scalar: _in_rows,
    aten.masked_fill.Tensor: _in_rows,
    aten.pow.Scalar: _in_rows,
    aten.rrelu_with_noise.default: _in_rows,
    aten.rrelu_with_noise_functional.default: _in_rows,
}

# Composites that are other kernels for fake tensors than for real ones, by all of their names.
COMPOSITES: dict[Any, Callable[[Tensor, Any], Tensor]] = {
    F.max_pool1d: _of_max_pool1d,
    torch.max_pool1d: _of_max_pool1d,
    aten.max_pool1d: _of_max_pool1d,
    aten.max_pool1d.default: _of_max_pool1d,
    torch.channel_shuffle: _in_format,
    torch.native_channel_shuffle: _in_format,
    aten.channel_shuffle: _in_format,
    aten.channel_shuffle.default: _in_format,
}


def _attention(query: Tensor, key: Tensor, *parts: Any) -> tuple[Tensor, Tensor | None]:
    """A layer of torch.nn while no gradient is recorded: (..., mask, weights, average, kind)."""
    heads, (_, weights, average, _) = parts[2], parts[-4:]
    shape = (*query.shape[:1], *(() if average else (heads,)), query.shape[1], key.shape[1])
    return _in_rows(query, None), query.new_empty(shape) if weights else None


# What has no rule for fake tensors.
WHOLE: dict[Any, Callable[..., Any]] = {
    torch._native_multi_head_attention: _attention,
    torch._transformer_encoder_layer_fwd: lambda x, *_: _in_rows(x, None),
}

# Pointwise operators that are several kernels, or that copy an operand first.
OTHERS = {
    aten.clone,
    aten.conj_physical,
    aten.ldexp,
    aten.mvlgamma,
}
# Of these, whoever is given other strides gives other values.
BY_PLACE = (aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter)
# Of which a number stays one; of others with `Scalar` in their name it becomes an operand.
TAKES_NUMBERS = {aten.lerp.Scalar, aten.pow.Tensor_Scalar, aten.float_power.Tensor_Scalar}


def draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator draws random numbers, which a dropout does only where it is live."""
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return False
    schema = op._schema.arguments
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    given |= dict(zip((a.name for a in schema), args, strict=False)) | {**kwargs}
    rate = given.get("dropout_p", given.get("dropout", 1.0))
    return given.get("train", True) is not False and rate != 0.0


def goes_by_place(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether values depend on how operands lie: numbers are drawn in the order of memory."""
    return draws(op, args, kwargs) or op.overloadpacket in BY_PLACE


@contextlib.contextmanager
def layouts() -> Iterator[list[list[Tensor]]]:
    """To be entered inside of a FakeTensorMode; the operands of calls whose values go by places."""
    asked = torch.overrides.has_torch_function
    torch.overrides.has_torch_function = lambda args: False  # torch.nn asks, and means users' own
    try:
        with _Composites(), _Kernels() as kernels:
            yield kernels.placed
    finally:
        torch.overrides.has_torch_function = asked


class _Composites(TorchFunctionMode):
    """They are kernels by the time that a dispatch mode sees them, or have no rule at all."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = WHOLE.get(func)
        if made is not None:
            return made(*args, **kwargs)
        result = func(*args, **kwargs)
        lies = COMPOSITES.get(func)
        if lies is None or not isinstance(result, Tensor):
            return result
        return lies(result, next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.placed: list[list[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if goes_by_place(func, args, kwargs):
            given = pytree.tree_leaves((args, kwargs))
            self.placed.append([x for x in given if isinstance(x, Tensor)])
        results = func(*args, **kwargs)
        lies = KERNELS.get(func)
        if lies is not None and kwargs.get("memory_format") in (None, torch.preserve_format):
            if isinstance(results, Tensor):
                return lies(results, args[0])
            return (lies(results[0], args[0]), *results[1:])
        if not _makes_tensors(func):
            return results
        pointwise = torch.Tag.pointwise in func.tags or func.overloadpacket is aten.floor_divide
        if pointwise and func.overloadpacket not in OTHERS:
            return _iterated(func, args, kwargs, results)
        return _as_wide(func, args, kwargs, results) if func in decomposition_table else results


def _makes_tensors(func: Any) -> bool:
    """Whether it returns new ones, and changes none."""
    views = [value for value in func._schema.returns if value.alias_info is not None]
    return not views and not func._schema.is_mutable


def _iterated(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """As TensorIterator lays it."""
    operands = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if not isinstance(result, Tensor) or not operands:
        return result
    given = zip(func._schema.arguments, args, strict=False)
    wrapped = any(str(a.type) == "Tensor" and not isinstance(x, Tensor) for a, x in given)
    wrapped |= "calar" in func._overloadname and func not in TAKES_NUMBERS
    alike = not wrapped and all(x.shape == result.shape for x in operands)
    strides = (_kept(operands) if alike else None) or _sorted(operands, tuple(result.shape))
    if strides == result.stride():
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _kept(operands: Sequence[Tensor]) -> tuple[int, ...] | None:
    """The strides of operands of one shape that all lie alike, without gaps."""
    first, last = operands[0], torch.channels_last
    if all(x.is_contiguous() for x in operands):
        return _filling(first.shape, range(first.ndim))
    if first.ndim == 4 and all(x.is_contiguous(memory_format=last) for x in operands):
        return _filling(first.shape, (0, 2, 3, 1))
    same = all(_fills(x) and x.stride() == first.stride() for x in operands)
    return first.stride() if same else None


def _sorted(operands: Sequence[Tensor], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes from wide steps to neighbours, by the first operand that tells two of them apart."""
    rank = len(shape)
    steps = [[0] * (rank - x.ndim) + [*x.stride()] for x in operands]
    for x, of in zip(operands, steps, strict=True):
        for axis, size in enumerate(x.shape, start=rank - x.ndim):
            of[axis] = 0 if size == 1 and shape[axis] != 1 else of[axis]

    def wider(a: int, b: int) -> int:
        for of in steps:
            if of[a] and of[b] and (of[a] != of[b] or shape[a] > shape[b]):
                return 1 if of[a] >= of[b] else -1
        return 0

    order = list(reversed(range(rank)))  # from neighbours to wide steps, by insertion
    for start in range(1, rank):
        place = start
        for other in reversed(range(start)):
            swap = wider(order[other], order[place])
            if swap < 0:
                break
            if swap > 0:
                order[other], order[place] = order[place], order[other]
                place = other
    return _filling(shape, reversed(order))


def _filling(shape: Sequence[int], axes: Iterable[int]) -> tuple[int, ...]:
    """The strides without gaps in which these axes follow each other, from the widest steps on."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(list(axes)):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


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
