"""Composite operators stay whole in a trace, and torch prepares that once, not for every trace.

In: an exported program. Out: the same, functional and not decomposed. torch has
ExportedProgram.run_decompositions for that, which traces the program once more. Where that would
leave every operator as it is, it is left out. Else it is made quick: to keep operators whole torch
lists those that it has, once for each namespace, and gives every one of five hundred some twenty
other kernels for the time being: most of the time of a small model's trace. Here they are listed
once a trace, registered without ceremony, and given what they had the last time. All of that
reaches into torch, so it is done in releases that the tests have run with.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import _decomp
from torch._C import DispatchKey
from torch._export import utils as export_utils
from torch._ops import OperatorBase, OpOverload
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program

Kernels = dict[Any, Any]
TRIED = ("2.11.", "2.13.")
# Constants of the forward: a copy by the time that the program is functional.
LIFTS = (
    torch.ops.aten.lift.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.lift_fresh_copy.default,
)
# torch would make views and copies of these, by strides that values do not have here.
KNOWN = (
    torch.ops.aten.reshape.default,
    torch.ops.aten.flatten.using_ints,
    torch.ops.aten.unflatten.int,
    torch.ops.aten.contiguous.default,
)
DROPOUTS = {
    torch.ops.aten.dropout.default: torch.ops.aten.mul.Tensor,
    torch.ops.aten.dropout_.default: torch.ops.aten.mul_.Tensor,
}
COPY = torch.ops.aten._to_copy.default
LISTING, OVERRIDE = "_materialize_cpp_cia_ops", "_override_composite_implicit_decomp"


@dataclass(frozen=True)
class Prepared:
    """The kernels of operators before torch changed them, and after that, with their fake ones."""

    before: dict[Any, Kernels]
    after: dict[Any, tuple[Kernels, Any]]


_known: dict[frozenset[tuple[Any, Callable[..., Any]]], Prepared] = {}


def functional(program: Any) -> Any:
    """The program without operators that write into tensors, its composites whole."""
    _drop_all(program.graph)
    if _is_tried():
        _settle(program.graph)
    if _is_tried() and all(map(_stays, program.graph.nodes)):
        return program
    with _kept_whole():
        return program.run_decompositions({})


def _drop_all(graph: Any) -> None:
    """A dropout of everything draws no numbers, which the one that torch makes of it does."""
    for node in graph.nodes:
        if node.target in DROPOUTS and node.args[1:] == (1.0, True):
            node.target, node.args = DROPOUTS[node.target], (node.args[0], 0.0)


def _settle(graph: Any) -> None:
    """What torch would only look at for the sake of views is what it comes to, as it would say.

    A cast is a copy or nothing, and so is a constant that is lifted; a dropout of nothing is what
    it was given.
    """
    for node in list(graph.nodes):
        given: Any = node.args[0] if node.args else None
        if any(user.op == "output" for user in node.users):
            continue  # the program's signature has its name
        if _is_cast(node):
            before, after = (n.meta["val"].dtype for n in (given, node))
            if before is not after:
                node.target, node.args = COPY, (given,)
                node.kwargs = {"dtype": after}
            else:
                _replace(node, given)
        elif (
            node.target is torch.ops.aten.dropout.default and node.args[1] == 0
        ) or node.target is torch.ops.aten.detach_.default:
            _replace(node, given)
        elif node.target is torch.ops.aten.lift_fresh_copy.default:
            node.target = torch.ops.aten.clone.default


def _is_cast(node: Any) -> bool:
    if node.target is torch.ops.aten.to.dtype:
        return len(node.args) == 2 and not node.kwargs
    same = node.target is torch.ops.aten.to.device and len(node.args) == 3 and not node.kwargs
    return same and node.args[0].meta["val"].device == node.meta["val"].device


def _replace(node: Any, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _is_tried() -> bool:
    return torch.__version__.startswith(TRIED)


def _stays(node: Any) -> bool:
    """Whether tracing a program once more leaves this node as it is."""
    if node.op in ("placeholder", "output") or node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload) or node.target in LIFTS:
        return isinstance(node.meta.get("val"), torch.SymInt)
    if node.target in KNOWN or _is_idle(node):
        return True
    if export_utils._is_cia_op(node.target):
        # Tracing a loss once more makes a constant of how many classes there are.
        kept = export_utils._check_valid_to_preserve(node.target)
        return bool(kept) and "loss" not in node.target._schema.name
    unsafe = _decomp._should_decompose_because_unsafe_op(node.target)
    # A softshrink is made of other operators, in Python.
    in_python = set(node.target.py_kernels) - {DispatchKey.Meta}
    return not (node.target._schema.is_mutable or unsafe or in_python)


def _is_idle(node: Any) -> bool:
    """A dropout outside of training; one of nothing is torch's to leave out, in either mode."""
    if node.target is not torch.ops.aten.dropout.default:
        return False
    _, rate, training = node.args
    return rate > 0 and training is False


@contextlib.contextmanager
def _kept_whole() -> Iterator[None]:
    """Meanwhile programs are functionalised so; another release of torch does as it likes."""
    with contextlib.ExitStack() as stack:
        if _is_tried():
            listing = getattr(export_utils, LISTING)
            override = getattr(exported_program, OVERRIDE)
            stack.enter_context(_instead(export_utils, LISTING, cache(listing)))
            stack.enter_context(
                _instead(exported_program, OVERRIDE, lambda new: _overridden(new, override))
            )
        yield


@contextlib.contextmanager
def _overridden(new: Mapping[Any, Callable[..., Any]], override: Any) -> Iterator[None]:
    """What torch's own context does, from what that did the first time."""
    wanted = frozenset(new.items())
    before = {op: op.py_kernels.copy() for op in new}
    known = _known.get(wanted)
    if known is None or known.before != before:
        with _registering(), override(new):
            after = {op: (op.py_kernels.copy(), op_implementations_dict.get(op)) for op in new}
            _known[wanted] = Prepared(before, after)
            yield
        return
    try:
        for op, (kernels, fake) in known.after.items():
            _give(op, kernels)
            if fake is not None:
                op_implementations_dict.setdefault(op, fake)
        yield
    finally:
        for op, kernels in before.items():
            _give(op, kernels)
            op_implementations_dict.pop(op, None)


def _give(op: Any, kernels: Kernels) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


@contextlib.contextmanager
def _registering() -> Iterator[None]:
    """torch's own function for one kernel evaluates its annotations anew, ten thousand times."""
    register = OperatorBase.py_impl

    def py_impl(self: Any, key: Any) -> Any:
        if not isinstance(key, DispatchKey) or key == DispatchKey.Python or key in self.py_kernels:
            return register(self, key)

        def inner(function: Any) -> Any:
            self.py_kernels[key] = function
            self._dispatch_cache.clear()
            return function

        return inner

    with _instead(OperatorBase, "py_impl", py_impl):
        yield


@contextlib.contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)
