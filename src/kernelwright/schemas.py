"""An operator of torch's as the nodes of a graph have it: by its name, its arguments in order.

In: an overload and the arguments of a traced call. Out: the name that laws and lowerings know, the
Call, and every argument as the schema lists it, its default filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelwright.graph import Call

# Overloads that only say how an argument is passed; the others (min.dim) keep their name.
PLAIN_OVERLOADS = {
    "default", "Tensor", "Scalar", "int", "self", "input", "Tensor_Scalar", "Tensor_Tensor",
    "Tensor_Other", "ScalarSelf", "ScalarOther",
}  # fmt: skip


def packet(target: Any) -> str:
    return str(target._schema.name.split("::")[1])


def written(target: Any) -> str:
    """`torch.ops.aten.add.Tensor`."""
    home, name = target._schema.name.split("::")
    return f"torch.ops.{home}.{name}.{target._overloadname}"


def schema_call(
    target: Any, args: Any, kwargs: Any, look: Callable[[Any], Any]
) -> tuple[str, Call, tuple[Any, ...]]:
    """The name, the Call and all arguments, of which `look` says what they are in the graph."""
    (home, name), overload = target._schema.name.split("::"), target._overloadname
    op = name if overload in PLAIN_OVERLOADS else f"{name}.{overload}"
    op = op if home == "aten" else f"{home}::{op}"
    positional: list[Any] = []
    keywords: list[tuple[str, Any]] = []
    for i, argument in enumerate(target._schema.arguments):
        if argument.name in kwargs:
            raw = kwargs[argument.name]
        elif not argument.kwarg_only and i < len(args):
            raw = args[i]
        else:
            raw = argument.default_value
        if argument.kwarg_only:
            keywords.append((argument.name, look(raw)))
        else:
            positional.append(look(raw))
    call = Call(written(target), tuple(positional), tuple(keywords))
    return op, call, (*positional, *(v for _, v in keywords))
