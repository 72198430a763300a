"""Nested inputs and outputs as text: rebuilt, reached and checked, with the right classes."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright import structures
from kernelwright.emit.values import (
    built_otherwise,
    classes,
    different,
    literal,
    parts,
    places,
    rebuild,
)
from kernelwright.errors import UnsupportedError


class Point(NamedTuple):
    x: Any
    y: Any = 2


@dataclasses.dataclass
class Output:
    logits: Any
    hidden: Any = None
    derived: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Output
    rest: tuple[Any, ...] = ()


class Bag(dict):  # type: ignore[type-arg]
    pass


class Row(list):  # type: ignore[type-arg]
    pass


Pair = collections.namedtuple("Pair", "a b")
NAMES = {Point: "Point", Output: "Output", Outer: "Outer", Bag: "Bag", Row: "Row", Pair: "Pair"}
NAMES |= {collections.OrderedDict: "collections.OrderedDict", collections.deque: "deque"}
NAMES |= {collections.defaultdict: "collections.defaultdict"}
SPACE = {k.__name__: k for k in NAMES} | {"torch": torch, "collections": collections}


def t() -> Tensor:
    return torch.randn(2, 3)


STRUCTURES: dict[str, Any] = {
    "a tensor": t(),
    "nothing": None,
    "one in a tuple": (t(),),
    "an empty tuple": (),
    "a list": [t(), [t()], []],
    "a dict": {"a": t(), 'b "c"': (t(), 3), 4: None},
    "an ordered dict": collections.OrderedDict(b=t(), a=t()),
    "a default dict": collections.defaultdict(list, a=t()),
    "a deque": collections.deque([t(), 1]),
    "a named tuple": Point(t(), (t(), "text")),
    "a named tuple by function": Pair(t(), Pair(1.5, t())),
    "a dataclass": Output(t()),
    "dataclasses in each other": Outer(Output(t(), [t()]), (t(), None)),
    "a dict of its own kind": Bag(a=t(), b=Bag()),
    "a list of its own kind": Row([t(), 3]),
    "max": t().max(dim=1),
    "sort, topk and median": [t().sort(), t().topk(2), t().median(dim=0)],
    "plain values": (True, 1, -0.0, math.inf, -math.inf, 2.5, "tab\t'\"", b"x", 1j, None, ...),
    "torch values": (torch.float16, torch.device("cpu"), torch.Size([2, 3]), torch.strided),
}


def same(one: Any, other: Any) -> bool:
    structures.register((one, other))
    first, tree = pytree.tree_flatten(one)
    second, other_tree = pytree.tree_flatten(other)
    return tree == other_tree and all(
        a is b or (type(a) is type(b) and repr(a) == repr(b))
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("case", STRUCTURES)
def test_structures_are_rebuilt(case: str) -> None:
    value = STRUCTURES[case]
    tensors = structures.tensors(value)
    names = {f"t{i}": tensor for i, tensor in enumerate(tensors)}

    def leaf(part: Any) -> str | None:
        return next((n for n, tensor in names.items() if tensor is part), None)

    text = rebuild(value, leaf, NAMES)
    assert same(eval(text, {**SPACE, **names}), value)
    assert set(classes(value)) <= set(NAMES)


def test_how_it_reads() -> None:
    x = STRUCTURES["max"]
    written = {id(x.values): "values", id(x.indices): "indices"}

    def leaf(part: Any) -> str | None:
        return written.get(id(part))

    assert rebuild(x, leaf, {}) == "torch.return_types.max((values, indices))"
    nested = Outer(Output(x.values, {"a": x.indices}), (1,))
    structures.register(nested)
    assert (
        rebuild(nested, leaf, NAMES)
        == 'Outer(inner=Output(logits=values, hidden={"a": indices}), rest=(1,))'
    )


class Reversed(Output):
    """Its second field comes first, and stands in the tree even where it is None."""


pytree.register_pytree_node(
    Reversed, lambda x: ([x.hidden, x.logits], None), lambda parts, _: Reversed(*reversed([*parts]))
)
ABSENT = {
    "a field that is None first": Output(None, (None, t())),
    "several in each other": Outer(Output(None, {"a": None, "b": t()}), (None, Output(None), t())),
    "an order of its own": (None, Reversed(None, t()), Reversed(t())),
}


@pytest.mark.parametrize("case", [*STRUCTURES, *ABSENT])
def test_leaves_are_reached_in_the_order_of_the_tree(case: str) -> None:
    value = (STRUCTURES | ABSENT)[case]
    structures.register(value)
    reached = [eval(text, {**SPACE, "value": value}) for text in places(value, "value")]
    known = pytree.tree_leaves(value)
    assert len(reached) == len(known)
    assert all(found is leaf for found, leaf in zip(reached, known, strict=True))


def verdict(example: Any, value: Any, text: str = "value") -> str | None:
    """What the checks of an example say to another value: the first cause, or None."""
    structures.register((example, value))
    if isinstance(example, Tensor):
        return None
    inner = parts(example)
    test, cause = different(example, text), f"{text} is not {literal(example)}"
    if inner is not None:
        test, cause = built_otherwise(example, text, NAMES)
    if eval(test, {**SPACE, "value": value}):
        return cause
    causes = (verdict(part, value, text + place) for place, part in inner or [])
    return next((c for c in causes if c is not None), None)


@pytest.mark.parametrize("case", STRUCTURES)
def test_a_value_is_built_as_itself_and_as_no_other(case: str) -> None:
    example = STRUCTURES[case]
    assert verdict(example, example) is None
    for other, value in STRUCTURES.items():
        if other != case and not isinstance(example, Tensor):
            assert verdict(example, value) is not None, other


@pytest.mark.parametrize(
    ("example", "value", "cause"),
    [
        ([1], (1,), "value is not built as in the example"),
        ([1, 2], [1], "value is not built as in the example"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "value is not built as in the example"),
        ({"a": {"n": 3}}, {"a": {"n": 4}}, 'value["a"]["n"] is not 3'),
        (Point(1, None), Point(1, 0), "value.y is not None"),
        (Output([2]), Output([2.0]), "value.logits[0] is not 2"),
        (True, 1, "value is not True"),
        (1, True, "value is not 1"),
        (0.0, -0.0, "value is not 0.0"),
        ("a", "b", 'value is not "a"'),
        (math.nan, 1.0, 'value is not float("nan")'),
        (torch.float32, torch.float16, "value is not torch.float32"),
    ],
)
def test_differences_are_named(example: Any, value: Any, cause: str) -> None:
    assert verdict(example, example) is None
    assert verdict(example, value) == cause


def test_nan_is_equal_to_itself() -> None:
    assert not eval(different(math.nan, "x"), {"x": float("nan")})


def test_what_has_no_text_is_named() -> None:
    with pytest.raises(UnsupportedError, match="returns a object"):
        rebuild((object(),), lambda part: None, {})
    assert literal(object()) is None


class Returns(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@dataclasses.dataclass
class Fresh:
    a: Any
    b: Any = 3


class FreshDict(collections.OrderedDict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    "function",
    [
        lambda x: Fresh(Fresh(x + 1), [x, None]),
        lambda x: FreshDict(a=x + 1, b="text"),
        lambda x: Point(x + 1, x.max(dim=1)),
        lambda x: collections.OrderedDict(a=x.sort(dim=1), b=(x + 1, 2.5)),
    ],
)
def test_export_takes_outputs_of_every_kind(function: Any) -> None:
    module, x = Returns(function), torch.randn(4, 8)
    with structures.registering_outputs(module):
        program = torch.export.export(module, (x,))
    assert not module._forward_hooks
    assert same(program.module()(x), function(x))


def test_registering_twice_is_fine() -> None:
    for _ in range(2):
        structures.register([Fresh(1), {"a": Fresh(FreshDict(b=t()))}])
    assert len(structures.tensors({"a": [Fresh(t(), b=FreshDict(c=t()))]})) == 2


@pytest.mark.parametrize(
    "value", [Fresh(t()), FreshDict(a=t()), Point(t(), t()), [t(), {"a": t()}]]
)
def test_the_batch_is_free_inside_of_every_container(value: Any) -> None:
    class Sums(nn.Module):
        def forward(self, value: Any) -> Any:
            return sum(x.sum(1) for x in structures.tensors(value))

    structures.register(value)
    shapes = structures.dynamic_shapes(
        value, lambda x: {0: torch.export.Dim.AUTO} if isinstance(x, Tensor) else None
    )
    program = torch.export.export(Sums(), (value,), dynamic_shapes=(shapes,))
    larger = pytree.tree_map_only(Tensor, lambda x: torch.randn(7, 3), value)
    assert torch.equal(program.module()(larger), Sums()(larger))


def test_classes_of_two_files_are_compared_by_name() -> None:
    other = dataclasses.make_dataclass("Output", ["logits", "hidden"])
    pair = collections.namedtuple("Pair", "a b")
    x = t()
    ours = structures.neutral([Output(x, Pair(1, Bag(c=x)))])
    assert str(ours) == str(structures.neutral([other(x, pair(1, Bag(c=x)))]))
    assert pytree.tree_leaves(ours)[0] is x
    assert structures.neutral(x.max(dim=1)).values.shape == (2,)
    assert structures.neutral((x, None, {"a": 3})) == (x, None, {"a": 3})


def test_a_value_in_the_classes_of_another_file() -> None:
    other = dataclasses.make_dataclass("Output", ["logits", "hidden"])
    given = (other(t(), [other(1, None)]), {"a": Point(1, 2)})
    (changed, named) = structures.in_classes_of(Returns(None), given)
    assert type(changed) is Output and type(changed.hidden[0]) is Output
    assert type(named["a"]) is Point and named["a"] == Point(1, 2)
    assert changed.logits is given[0].logits
