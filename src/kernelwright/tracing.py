"""A Problem is traced by torch.export, and what the trace asked about sizes is noted.

In: a Problem. Out: a Trace: a functionalised program that is not decomposed, and what was asked on
the way: questions about free sizes by the user's own code, and whose mode anybody wanted to know.
The module is left as it was.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import keyword
import sys
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, reduce, wraps
from pathlib import Path
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch import nn
from torch._decomp import decomposition_table
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import Dim as ExportDim
from torch.fx import graph as fx_graph
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from kernelwright import effects, modes, recurrences
from kernelwright.borrowed import unfused, untouched
from kernelwright.casts import explicit
from kernelwright.composites import functional
from kernelwright.effects import is_users
from kernelwright.errors import UnsupportedError
from kernelwright.fakes import draws
from kernelwright.graph import Guard
from kernelwright.problem import Problem
from kernelwright.structures import dynamic_shapes, registering_outputs, tensors

TORCH = Path(torch.__file__).parent
LIBRARIES = ("torch", "opt_einsum", "sympy", "numpy")  # that ask for themselves
# Between a question and who asks it there is nothing but torch's machinery for symbols.
MACHINERY = ("__init__.py", "fx", "_utils_internal.py", "utils", "_logging")

PACKED = (
    "The forward works on packed sequences, whose sizes depend on values, so it has no single "
    "graph; give the recurrence padded sequences, or optimize the modules around it one by one."
)


@dataclass(frozen=True)
class Trace:
    """`asked` holds conditions that were true of the example, each with its file and line.

    One that all sizes but zero meet is `true` there: torch does not say what it was. `mode_matters`
    says whether the forward depends on train or eval mode, None if this trace cannot tell; `free`
    whether the batch is free; `unread` why the original has to run in every call.
    """

    program: Any
    asked: tuple[tuple[sympy.Basic, str], ...]
    mode_matters: bool | None
    free: bool
    unread: str | None = None


def trace(problem: Problem, free: bool, watch: bool = False) -> Trace:
    """Export the forward, with the batch free or for the very sizes of the example.

    With `watch` its effects are noted, where no call on fake tensors has told them.
    """
    given = (*problem.inputs, *problem.kwargs.values())
    if any(isinstance(value, PackedSequence) for value in given):
        raise UnsupportedError(PACKED)
    example = several(problem) if free else problem
    args = tuple(map(_only_tensors, example.inputs))
    kwargs = {name: _only_tensors(value) for name, value in example.kwargs.items()}
    try:
        with _quietly(problem.module, problem.recorded), _asked() as asked:
            root = _Forward(problem.module, (example.inputs, example.kwargs))
            shapes = _batched(problem, example, root, args, kwargs) if free else None
            args, kwargs = pytree.tree_map_only(torch.Tensor, _no_view, (args, kwargs))
            seen = effects.watched(root) if watch else contextlib.nullcontext(effects.Watch())
            listening = (
                registering_outputs(root),
                modes.heard(problem.module),
                _unmarked(args, kwargs),
            )
            with listening[0], listening[1] as wondered, listening[2], seen as found:
                program = torch.export.export(root, args, kwargs, dynamic_shapes=shapes)
            unread = f"the forward {found.effect}" if found.effect else _unread(program.graph)
            program = functional(explicit(program, problem.autocast))
            return Trace(program, tuple(asked), modes.matters(wondered), free, unread)
    except UnsupportedError:
        raise
    except Exception as error:
        raise UnsupportedError(_explain(error)) from error


def _no_view(x: torch.Tensor) -> torch.Tensor:
    """torch's export asks for the sizes of what a complex view is of, and does not find it."""
    return x.detach().clone() if x.is_complex() and x._is_view() else x


@contextlib.contextmanager
def _unmarked(*given: Any) -> Iterator[None]:
    """torch notes on the user's tensors which axes are free, and reads that in a later trace."""
    try:
        yield
    finally:
        for x in tensors(given):
            for name in [name for name in vars(x) if name.startswith("_dynamo_")]:
                delattr(x, name)


class _Forward(nn.Module):
    """A module's forward and nothing of its __call__: hooks of the root run around ModelNew too.

    What is no tensor among the arguments is as it was `given`: torch would wrap integers, and
    takes no types. A call with other values is not for this trace anyhow.
    """

    def __init__(self, module: nn.Module, given: Any) -> None:
        super().__init__()
        own_args, own_kwargs = given

        @wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            args = tuple(map(_filled, own_args, args))
            kwargs = {name: _filled(own_kwargs[name], new) for name, new in kwargs.items()}
            return module.forward(*args, **kwargs)

        forward.__signature__ = _named(module, own_kwargs)  # type: ignore[attr-defined]
        own = dict(vars(self))
        shared = {**vars(module), "forward": forward}
        hooks = {name: value for name, value in own.items() if "hooks" in name}
        self.__dict__.update({**shared, **hooks})


def _named(module: nn.Module, kwargs: Iterable[str]) -> inspect.Signature:
    """The signature of forward with what `**kwargs` takes by its names.

    torch.export looks for these among the parameters, and finds no sizes for them to be free.
    """
    signature = inspect.signature(module.forward)
    parameters = list(signature.parameters.values())
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        further = [name for name in kwargs if name not in signature.parameters]
        parameters.pop()
        parameters += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in further]
    return signature.replace(parameters=parameters)


def _is_given(value: Any) -> bool:
    """Whether an argument or a part of it stays whole: it has no tensor, or is the user's kind."""
    return type(value) not in pytree.BUILTIN_TYPES or not tensors(value)


def _only_tensors(own: Any) -> Any:
    """An argument with None for what holds no tensor."""
    return pytree.tree_map(lambda x: x if tensors(x) else None, own, is_leaf=_is_given)


def _filled(own: Any, traced: Any) -> Any:
    """An argument of the trace, with what holds no tensor as in the example."""
    parts, spec = pytree.tree_flatten(own, is_leaf=_is_given)
    pairs = zip(parts, spec.flatten_up_to(traced), strict=True)
    return pytree.tree_unflatten([new if tensors(part) else part for part, new in pairs], spec)


@contextlib.contextmanager
def _quietly(module: nn.Module, recorded: bool) -> Iterator[None]:
    """Without gradients unless they are recorded, without torch's warnings.

    And without a trace on the user's module.
    """
    mode = torch.set_grad_enabled(recorded)
    with warnings.catch_warnings(), mode, untouched(module), unfused(module):
        warnings.simplefilter("ignore")
        with _any_names(), _norms_by_axis(), recurrences.whole(module):
            yield


@contextlib.contextmanager
def _any_names() -> Iterator[None]:
    """torch writes `self.def` for a submodule called def, and then cannot read its own text."""
    write = fx_graph._format_target

    def is_plain(part: str) -> bool:
        # Python takes other letters than ASCII's for their normal forms, getattr does not.
        return part.isascii() and part.isidentifier() and not keyword.iskeyword(part)

    def quoted(base: str, target: str) -> str:
        if all(map(is_plain, target.split("."))):
            return write(base, target)
        return reduce(lambda text, part: f"getattr({text}, {part!r})", target.split("."), base)

    fx_graph._format_target = quoted
    try:
        yield
    finally:
        fx_graph._format_target = write


@contextlib.contextmanager
def _norms_by_axis() -> Iterator[None]:
    """Some releases of torch keep an axis of one in the shape of a norm that counts from the end.

    Eager drops it. Distances are such norms.
    """
    norm = torch.ops.aten.linalg_vector_norm.default
    rule = decomposition_table[norm]

    def counted(x: Any, order: Any = 2, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dim is not None:
            axes = dim if isinstance(dim, tuple | list) else (dim,)
            dim = [axis % max(x.ndim, 1) for axis in axes]
        return rule(x, order, dim, *args, **kwargs)

    def fake(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return counted(*args, **kwargs)

    decomposition_table[norm] = counted
    op_implementations_dict[norm] = fake
    try:
        yield
    finally:
        decomposition_table[norm] = rule
        del op_implementations_dict[norm]


@contextlib.contextmanager
def _asked() -> Iterator[list[tuple[sympy.Basic, str]]]:
    """Questions about symbolic sizes that Python code asks, with their answers.

    torch.export keeps guards, but takes every free size to be at least two: `if x.shape[0] > 1`
    leaves none. So the questions themselves are noted; those of torch.nn, which has a BatchNorm
    refuse a batch of one, only where so few samples change the answer.
    """
    found: list[tuple[sympy.Basic, str]] = []
    answer = ShapeEnv.evaluate_expr

    def evaluate(self: Any, expr: Any, *args: Any, **kwargs: Any) -> Any:
        result = answer(self, expr, *args, **kwargs)
        frame = _asker() if isinstance(result, bool | BooleanAtom) else None
        if frame is not None:
            test = expr if result else sympy.Not(expr)
            if _part_of_torch(frame.f_code.co_filename) is None:
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                found.append((sympy.sympify(test), place))
            elif getattr(expr, "free_symbols", None) and not _holds_for_few(test):
                found.append((test, ""))
        return result

    ShapeEnv.evaluate_expr = evaluate  # type: ignore[assignment,method-assign]
    try:
        yield found
    finally:
        ShapeEnv.evaluate_expr = answer  # type: ignore[method-assign]


def _holds_for_few(test: sympy.Basic) -> bool:
    """Whether no sample or one would be given the answer that many are given."""
    symbols = list(test.free_symbols)
    few = itertools.product((0, 1), repeat=len(symbols))
    return all(Guard(test).holds(dict(zip(map(str, symbols), sizes, strict=True))) for sizes in few)


def _asker() -> types.FrameType | None:
    """The frame of the user's or of torch.nn that asks, or None where torch asks for itself."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == "<string>":  # generated, by whoever called it
            frame = frame.f_back
            continue
        part = _part_of_torch(name)
        if part is None:
            library = str(frame.f_globals.get("__name__")).split(".")[0] in LIBRARIES
            return None if library else frame
        if part not in MACHINERY:
            return frame if part == "nn" else None
        frame = frame.f_back
    return None


@cache
def _part_of_torch(file: str) -> str | None:
    """The folder or file right inside of torch's that a file is in, or None outside of it."""
    path = Path(file)
    return path.relative_to(TORCH).parts[0] if TORCH in path.parents else None


def _batched(problem: Problem, example: Problem, root: nn.Module, args: Any, kwargs: Any) -> Any:
    """Ask for a free leading dimension of every tensor that has one of the batch's size."""
    size = max(problem.batch, 2)
    held = [problem.tensors[i] for i in problem.held]
    further: dict[int, set[int]] = {}
    for number, axis in problem.free:
        further.setdefault(id(example.tensors[number]), set()).add(axis)

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        batched = value.ndim and value.shape[0] == size and not any(value is x for x in held)
        axes = further.get(id(value), set()) | ({0} if batched else set())
        return {axis: ExportDim.AUTO for axis in sorted(axes)} or None

    bound = inspect.signature(root.forward).bind(*args, **kwargs)
    return {name: dynamic_shapes(value, one) for name, value in bound.arguments.items()}


def several(problem: Problem) -> Problem:
    """With two samples instead of one, which would be taken for a fixed size, and lies anyhow.

    Where axes are named that are free, one sample may be something else than a batch.
    """
    if problem.batch != 1 or problem.free:
        return problem

    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]) if x.ndim and x.shape[0] == 1 else x

    given = (problem.inputs, dict(problem.kwargs))
    inputs, kwargs = pytree.tree_map_only(torch.Tensor, twice, given)
    return replace(problem, inputs=inputs, kwargs=kwargs)


def _unread(graph: Any) -> str | None:
    """Random numbers that nobody reads are drawn all the same: later ones are others."""
    read = {*graph.find_nodes(op="output")}
    for node in reversed(graph.nodes):
        writes = node.op == "call_function" and getattr(node.target, "_schema", None)
        if node in read or (writes and writes.is_mutable):
            read |= {node, *node.all_input_nodes}
        elif draws(node.target, node.args, node.kwargs):
            return f"nobody reads what {node.target} draws"
    return None


def _packs(frame: types.FrameType) -> bool:
    """Whether torch's code for packed sequences, or a recurrence over them, is at work here."""
    path = Path(frame.f_code.co_filename)
    if path == TORCH / "nn" / "modules" / "rnn.py":
        return frame.f_locals.get("batch_sizes") is not None
    return path == TORCH / "nn" / "utils" / "rnn.py"


def _layer(error: BaseException) -> str | None:
    """The layer or function of torch.nn that asked for a value, None where the user's code did."""
    found: str | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        part = _part_of_torch(frame.f_code.co_filename)
        if part == "nn":
            owner = frame.f_locals.get("self")
            kind = type(owner).__name__ if isinstance(owner, nn.Module) else ""
            named = f"The forward of {kind}" if kind else f"F.{frame.f_code.co_name}"
            found = named if frame.f_code.co_name != "_call_impl" else found
        elif is_users(frame.f_code.co_filename):
            found = None
    return found


def _explain(error: Exception) -> str:
    text = str(error)
    if any(_packs(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
        return PACKED
    if "DynamicOutputShape" in type(error).__name__:
        return (
            f"The size of what {text.split('.Tensor')[0].strip()} gives depends on the values of "
            "tensors, so the forward has no single graph; optimize the modules around it instead."
        )
    dependent = ("GuardOnDataDependentSymNode", "DataDependentOutputException")
    if "data-dependent" in text.lower() or type(error).__name__ in dependent:
        if (asking := _layer(error)) is not None:
            return (
                f"{asking} looks at the values of tensors, so the forward has no single graph; "
                "leave it to the caller, or optimize the modules around it one by one."
            )
        return (
            "The forward branches on the values of tensors, so it has no single graph; "
            "replace the `if` on a tensor by torch.where, or optimize the submodules one by one."
        )
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return (
        f"torch.export could not trace the forward ({type(error).__name__}: {first.strip()[:200]})."
    )
