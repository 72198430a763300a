"""Outputs of every structure and type: each has its own gradients, and what torch says of it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from alike import tensors
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from zoo.acting import EITHER, RUNS, Make, agree, compiled, rows, watched

import kernelwright
from kernelwright.errors import UnsupportedError
from kernelwright.plan import ALWAYS

pytestmark = pytest.mark.usefixtures("extensions")

X6 = rows(6)
COMPLEX = torch.complex64


@dataclasses.dataclass
class Output:
    loss: Any = None
    logits: Any = None
    hidden: Any = None


class Named(NamedTuple):
    first: Any
    second: Any
    third: Any = None


@dataclasses.dataclass
class AlsoDict(collections.OrderedDict):  # type: ignore[type-arg]
    """As outputs of libraries are: a dict of those of its fields that are not None."""

    loss: Any = None
    logits: Any = None
    hidden: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


@dataclasses.dataclass
class Turned:
    one: Any
    other: Any
    name: str = "turned"


pytree.register_pytree_node(
    Turned, lambda x: ([x.other, x.one], x.name), lambda parts, name: Turned(*[*parts][::-1], name)
)

STRUCTURES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a dataclass": lambda a, b: Output(None, a, b),
    "a dataclass with two that are None": lambda a, b: Output(hidden=(None, a, 3, b)),
    "an integer between": lambda a, b: Output(None, a.argmax(-1), (b, a)),
    "one of them twice": lambda a, b: Output(None, a, (a, b)),
    "one of them cut off": lambda a, b: Output(None, a.detach(), b),
    "a dataclass that is a dict": lambda a, b: AlsoDict(None, a, b),
    "another inside": lambda a, b: AlsoDict(hidden=Output(None, b, a)),
    "in an order of its own": lambda a, b: Turned(a, (None, b)),
    "a named tuple": lambda a, b: Named(None, a, (1, "text", b)),
    "dicts": lambda a, b: {"none": None, "b": b, "in": collections.OrderedDict(z=None, a=a)},
    "a default dict": lambda a, b: collections.defaultdict(list, {"none": None, "b": b, "a": a}),
}


class Two(nn.Module):
    """Two values, each of its own parameters, in some structure."""

    def __init__(self, structure: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.structure = structure

    def forward(self, x: Tensor) -> Any:
        a = torch.relu(self.first(x)) * 2
        return STRUCTURES[self.structure](a, torch.tanh(self.second(x)) + 1)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_of_each_output_are_its_own(structure: str) -> None:
    fused, eager = compiled(Two(structure), *X6(4))
    agree(fused, eager, X6)


# ---- complex tensors -----------------------------------------------------------------------------


class Complex(nn.Module):
    """A forward of a module with complex parameters, whose input is real or complex."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(6, dtype=COMPLEX))
        self.register_buffer("phase", torch.randn(6, dtype=COMPLEX))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def complex_rows(n: int) -> tuple[Tensor]:
    (pairs,) = rows(6, 2)(n)
    return (torch.view_as_complex(pairs),)


OF_REAL: dict[str, Callable[[Any, Tensor], Any]] = {
    "a parameter": lambda m, x: (torch.relu(x) * 2, x * m.weight),
    "there and back": lambda m, x: torch.relu(((m.linear(x) + 1) * m.weight).real) * 2,
    "made of two": lambda m, x: torch.complex(torch.relu(x) + 1, m.linear(x).tanh() * 2),
    "by a transform": lambda m, x: torch.fft.irfft(torch.fft.rfft(x.relu() + 1) * m.weight[:4], 6),
    "cut off": lambda m, x: ((x * m.phase).detach(), x * m.phase, torch.sigmoid(x) + 1),
}
OF_COMPLEX: dict[str, Callable[[Any, Tensor], Any]] = {
    "to real": lambda m, x: torch.relu((x * m.weight).abs() - 1) * 2,
    "as pairs": lambda m, x: torch.view_as_real(x * m.weight) * 2 + 1,
    "both parts": lambda m, x: (torch.relu(x.real * 2 + 1), torch.sigmoid(x.imag) + 1),
    "itself": lambda m, x: (x, m.weight, torch.relu(x.real) + 1),
    "conjugated": lambda m, x: ((x * m.weight).conj(), torch.relu(x.real) + 1),
    "conjugated at once": lambda m, x: ((x * m.weight).conj().resolve_conj(), x.real.relu() + 1),
    "negated": lambda m, x: (x.conj().imag, torch.relu(x.conj().imag * 2 + 1)),
    "negated at once": lambda m, x: (x.conj().imag.resolve_neg(), x.mH.imag.relu() + 1),
    "a part of what is negated": lambda m, x: torch._neg_view(x.real).clone()[:, 1:].relu() + 1,
}


@pytest.mark.parametrize("name", OF_REAL)
def test_complex_values_have_gradients(name: str) -> None:
    fused, eager = compiled(Complex(OF_REAL[name]), *X6(4))
    agree(fused, eager, X6)


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_complex_inputs_have_gradients(name: str) -> None:
    fused, eager = compiled(Complex(OF_COMPLEX[name]), *complex_rows(4))
    agree(fused, eager, complex_rows)


# ---- tensors that are not what their memory holds ------------------------------------------------


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("shift", torch.randn(6))
        self.scale = torch.rand(6) + 1

    def forward(self, x: Tensor) -> Any:
        return torch.relu(self.linear(x) + self.shift) * self.scale, x.resolve_neg(), x.relu()


def negated(n: int) -> tuple[Tensor]:
    (x,) = X6(n)
    return (torch._neg_view(-x),)


UNLIKE: dict[str, Make] = {
    "negated": negated,
    "imaginary part": lambda n: (complex_rows(n)[0].conj().imag,),
    "sparse": lambda n: (X6(n)[0].relu().to_sparse(),),
    "never filled": lambda n: (torch._efficientzerotensor((n, 6)),),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", UNLIKE)
def test_the_original_takes_what_is_no_plain_tensor(name: str, known: bool) -> None:
    """Also where a call of plain tensors of the same shape, type and strides is known."""
    fused, eager = compiled(Plain(), *X6(4))
    if known:
        agree(fused, eager, X6)
    (x,) = UNLIKE[name](4)
    with torch.no_grad():
        ours = theirs = None
        try:
            theirs = eager(x)
        except RuntimeError as refused:  # as a product does with a sparse input
            with pytest.raises(type(refused)):
                fused(x)
        else:
            with watched(fused, EITHER):
                ours = fused(x)
            for mine, other in zip(tensors(ours), tensors(theirs), strict=True):
                assert (mine.is_neg(), mine.is_conj()) == (other.is_neg(), other.is_conj())
                torch.testing.assert_close(mine, other)
    assert fused.fallbacks["x is not a plain tensor"] == 1


def test_an_example_that_is_negated_stands_for_plain_ones() -> None:
    fused, eager = compiled(Plain(), *negated(4))
    agree(fused, eager, X6, RUNS)


@pytest.mark.parametrize("name", ["shift", "scale", "weight"])
def test_state_that_is_negated(name: str) -> None:
    """Refused where the model is compiled; put there later, it makes the original run."""
    holder = "linear" if name == "weight" else ""

    def change(module: nn.Module) -> None:
        owner = module.get_submodule(holder)
        value = torch._neg_view(torch.ones_like(getattr(owner, name).detach()))
        setattr(owner, name, nn.Parameter(value) if name == "weight" else value)

    fused, eager = compiled(Plain(), *X6(4))
    agree(fused, eager, X6)
    for module in (fused, eager):
        change(module)
    (x,) = X6(4)
    with watched(fused, EITHER):
        ours = fused(x)
    for mine, other in zip(tensors(ours), tensors(eager(x)), strict=True):
        torch.testing.assert_close(mine, other)
    model = Plain()
    change(model)
    with pytest.raises(UnsupportedError, match=f"{name} is conjugated or negated lazily"):
        kernelwright.optimize(model, X6(4), policy=ALWAYS)


class Turning(nn.Module):
    """Two attributes in one memory, which begin at one place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(6, 6)
        self.turned = self.table.t()
        self.row = self.table[0]

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.table[1]) * self.turned[1] + self.row


def test_attributes_in_one_memory_are_told_apart() -> None:
    fused, eager = compiled(Turning(), *X6(4))
    agree(fused, eager, X6)


@pytest.mark.parametrize("kind", ["to_sparse", "to_mkldnn"])
def test_examples_without_plain_memory_are_refused(kind: str) -> None:
    (x,) = X6(4)
    with pytest.raises(UnsupportedError, match="kernels are for dense ones"):
        kernelwright.optimize(Plain(), (getattr(x, kind)(),), policy=ALWAYS)


# ---- what the forward did that its results do not show -------------------------------------------


class Held(dict):  # type: ignore[type-arg]
    pass


@dataclasses.dataclass
class Doubled:
    one: Any
    double: Any = dataclasses.field(default=None, init=False)


@dataclasses.dataclass
class Working:
    one: Any

    def __post_init__(self) -> None:
        self.one = self.one * 2


def set_later(kind: Callable[[Any], Any], how: Callable[[Any, str, Any], None], name: str) -> Any:
    def returned(a: Tensor, b: Tensor) -> Any:
        found = kind(a)
        how(found, name, b)
        return (found,)

    return returned


LATER: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "a field that is no argument": (set_later(Doubled, setattr, "double"), "sets double"),
    "an attribute of a dict": (set_later(lambda a: Held(a=a), setattr, "extra"), "sets extra"),
    "an item beside the fields": (set_later(AlsoDict, AlsoDict.__setitem__, "more"), "sets more"),
    "work while it is made": (lambda a, b: Working(a), "works on its fields"),
}


@pytest.mark.parametrize("name", LATER)
def test_what_a_constructor_would_not_give_again_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned, why = LATER[name]
    monkeypatch.setitem(STRUCTURES, name, returned)
    with pytest.raises(UnsupportedError, match=why):
        kernelwright.optimize(Two(name), X6(4), policy=ALWAYS, kinds="given")


class Asking(nn.Module):
    def __init__(self, asks: Callable[[Any, Tensor], bool]) -> None:
        super().__init__()
        self.linear, self.asks = nn.Linear(6, 6), asks

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * (2 if self.asks(self, x) else 3)


ASKS: dict[str, Callable[[Any, Tensor], bool]] = {
    "of the mode": lambda m, x: torch.is_grad_enabled(),
    "of the input": lambda m, x: x.requires_grad,
    "of a result": lambda m, x: m.linear(x).grad_fn is not None,
    "of a parameter": lambda m, x: m.linear.weight.requires_grad,
}


@pytest.mark.parametrize("name", ASKS)
def test_a_forward_that_asks_whether_it_is_recorded_runs_itself(name: str) -> None:
    fused, eager = compiled(Asking(ASKS[name]), *X6(4))
    agree(fused, eager, X6, EITHER)
    assert list(fused.fallbacks) == ["the forward asks whether gradients are recorded"]
