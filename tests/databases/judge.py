"""Is a sample right under `kernelwright.optimize`, in every layout, with gradients and without?

In: a Sample. Out: a Verdict. Where eager raises, the compiled module has to raise; where it gives
something, all of it is compared: structure, types, strides, whose memory it is, gradients, what
became of the arguments and of the module's state. Values are held to twice eager's error against
float64, or against eager itself where the sample cannot run in float64.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from alike import aliases, difference, gradients, tensors
from checking import GRADIENTS
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from zoo.checks import fallbacks, seed

import kernelwright
from databases.cases import Sample
from databases.layouts import LAYOUTS, continuous, laid
from kernelwright.errors import InputError, UnsupportedError
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS, Policy
from kernelwright.verify.compare import first_misplaced, first_unequal, measure, same_bits

OUTCOMES = ("right", "beyond eager", "fell back", "refused", "wrong", "crashed")
# What eager says of a type that an operator was not written for; a kernel may well take it.
NOT_WRITTEN = "not implemented for '"
EXAMPLES = ("plain", "transposed", "expanded", "offset")
NEARBY = 8  # inputs that are tried where an error looks too large
# Where values are whatever the memory held: of new tensors, and of what torch reads beyond its end.
UNDEFINED = {
    **dict.fromkeys(("empty", "new_empty", "resize_", "resize_as_"), frozenset(LAYOUTS)),
    **dict.fromkeys(("nanmedian", "masked.median"), frozenset({"expanded"})),
}


@dataclass
class Verdict:
    """`outcome` of a sample, why, and what happened in each layout."""

    outcome: str
    why: str = ""
    kernels: int = 0
    layouts: dict[str, str] = field(default_factory=dict)


@dataclass
class Call:
    """What one call gave: an error, or outputs, gradients, arguments and state after it."""

    error: Exception | None = None
    outputs: Any = None
    arguments: Any = None
    identities: list[list[bool]] = field(default_factory=list)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


def undefined_of(name: str) -> frozenset[str]:
    """The layouts in which the values of an entry are nobody's."""
    found = [layouts for start, layouts in UNDEFINED.items() if name.startswith(start)]
    return frozenset().union(*found)


class Wrong(AssertionError):
    """What differs from eager."""


class Beyond(Exception):
    """Eager has no such operator for the type."""


def judged(sample: Sample, number: int = 0, undefined: frozenset[str] = frozenset()) -> Verdict:
    """By its number a sample is compiled from dense inputs, transposed, expanded or sliced ones.

    And every other sample with all kernels that can be, not only where they pay.
    """
    example = EXAMPLES[number % len(EXAMPLES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _judged(sample, example, ALWAYS if number % 2 else WHERE_IT_PAYS, undefined)


def _judged(sample: Sample, example: str, policy: Policy, undefined: frozenset[str]) -> Verdict:
    eager = copy.deepcopy(sample.module)
    given = sample.args, sample.kwargs
    first = called(copy.deepcopy(eager), given, example, False)
    try:
        args, kwargs = laid(given, example, False)
        compiled = kernelwright.explain(sample.module, args, kwargs, policy=policy)
        fused = compiled.instantiate()
    except (UnsupportedError, InputError) as error:
        return Verdict("right" if first.error else "refused", str(error))
    except Exception as error:
        return Verdict("crashed", f"{type(error).__name__}: {error}")
    bench = Bench(eager, fused, given, undefined)
    return bench.verdict(len(compiled.kernels))


class Bench:
    """Both modules, and float64 where that is possible; each call begins with eager's state.

    Float64 gets dense inputs: what some operators of eager's make of others is not defined.
    """

    def __init__(
        self, eager: nn.Module, fused: nn.Module, given: Any, undefined: frozenset[str]
    ) -> None:
        self.eager, self.fused, self.given, self.undefined = eager, fused, given, undefined
        if any(map(is_lazy, [*eager.parameters(), *eager.buffers()])):
            for module in (eager, fused):  # the first call gives them their state
                called(module, given, "plain", False)
        self.state = copy.deepcopy(eager.state_dict())
        again = [called(self._fresh(eager), given, "plain", False, number) for number in (5, 6)]
        self.random = not all(map(alike, tensors(again[0].outputs), tensors(again[1].outputs)))

    def verdict(self, kernels: int) -> Verdict:
        found = Verdict("right", kernels=kernels)
        for layout in LAYOUTS:
            before = fallbacks(self.fused)
            try:
                for differentiable in (False, True):
                    self.compare(layout, differentiable)
            except Beyond as error:
                found.layouts[layout] = "beyond eager"
                if found.outcome != "wrong":
                    found.outcome, found.why = "beyond eager", str(error)
                continue
            except Wrong as error:
                found.layouts[layout] = f"wrong: {error}"
                if found.outcome != "wrong":
                    found.outcome, found.why = "wrong", f"{layout}: {error}"
                continue
            causes = sorted(fallbacks(self.fused) - before)
            found.layouts[layout] = "; ".join(["fell back", *causes]) if causes else "right"
            if causes and layout == "plain" and found.outcome == "right":
                found.outcome, found.why = "fell back", "; ".join(causes)
        return found

    def _fresh(self, module: nn.Module) -> nn.Module:
        """Eager's state, no gradients; what a call did to the module is undone."""
        with torch.no_grad():
            for name, value in module.state_dict().items():
                if isinstance(value, Tensor):
                    value.copy_(self.state[name])
        module.zero_grad(set_to_none=True)
        return module

    def compare(self, layout: str, differentiable: bool) -> None:
        theirs = called(self._fresh(self.eager), self.given, layout, differentiable)
        ours = called(self._fresh(self.fused), self.given, layout, differentiable)
        what = "with gradients, " if differentiable else ""
        if theirs.error or ours.error:
            self._errors(what, ours.error, theirs.error)
            return
        check_alike(what, ours, theirs)
        if layout in self.undefined:
            return
        exact = Lazy(lambda: self._oracle(self.given, layout, differentiable) or theirs)
        nearby = Lazy(lambda: list(self._nearby(theirs, layout, differentiable)))
        for part in ("outputs", "arguments", "state", "gradients"):
            slack = GRADIENTS if part == "gradients" else 1.0
            # Eager stands for float64 there, and both sides' errors are in the distance to it.
            slack *= 2.0 if self.random else 1.0
            a, b = (named(getattr(x, part)) for x in (ours, theirs))
            for name in b:
                others = Lazy(lambda p=part, n=name: [found(pair, p, n) for pair in nearby()])
                right = Lazy(lambda p=part, n=name: found((theirs, exact()), p, n)[1])
                check_close(f"{what}{part} {name}", a[name], b[name], right, others, slack)

    def _nearby(
        self, theirs: Call, layout: str, differentiable: bool
    ) -> Iterator[tuple[Call, Call]]:
        """Eager and float64 on nearly the same inputs: eager is exact on some by luck alone.

        Where numbers are drawn, eager on the very inputs stands for float64.
        """
        generator = torch.Generator().manual_seed(17)

        def moved(x: Tensor) -> Tensor:
            if not x.is_floating_point():
                return x
            noise = torch.rand(x.shape, generator=generator).to(x.device) * 2 - 1
            return (x * (1 + noise * torch.finfo(x.dtype).eps)).to(x.dtype)

        for _ in range(NEARBY):
            given = pytree.tree_map_only(Tensor, moved, self.given)
            beside = called(self._fresh(self.eager), given, layout, differentiable)
            exact = theirs if self.random else self._oracle(given, layout, differentiable)
            if beside.error is None and exact is not None:
                yield beside, exact

    @staticmethod
    def _errors(what: str, ours: Exception | None, theirs: Exception | None) -> None:
        if ours is None:
            if NOT_WRITTEN in str(theirs):
                raise Beyond(_said(theirs))
            raise Wrong(f"{what}eager raises {_said(theirs)}, ours does not")
        if theirs is None:
            raise Wrong(f"{what}ours raises {_said(ours)}, eager does not")

    def _oracle(self, given: Any, layout: str, differentiable: bool) -> Call | None:
        if self.random:
            return None
        try:
            module = widened(copy.deepcopy(self._fresh(self.eager)))
            given = pytree.tree_map_only(Tensor, wide, laid(given, layout, False))
            call = called(module, given, "dense", differentiable)
        except Exception:
            return None
        return None if call.error else call


class Lazy:
    """A value that is computed when it is first asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.made = make, None

    def __call__(self) -> Any:
        if self.made is None:
            self.made = self.make()
        return self.made


def _said(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def wide(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def widened(module: nn.Module) -> nn.Module:
    """In double precision, tensors that are plain attributes included."""
    module._apply(wide)
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                vars(part)[name] = wide(value.detach())
    return module


def called(
    module: nn.Module, given: Any, layout: str, differentiable: bool, number: int = 5
) -> Call:
    """One call on new memory, and backward from random cotangents if it is `differentiable`."""
    call = Call()
    args, kwargs = call.arguments = laid(given, layout, differentiable)
    seed(number)
    try:
        with torch.set_grad_enabled(differentiable):
            call.outputs = module(*args, **kwargs)
        if any(y.requires_grad for y in tensors(call.outputs)):
            call.gradients = gradients(module, call.outputs, call.arguments)
    except Exception as error:
        call.error = error
    call.state = dict(module.state_dict())
    call.state = {k: v.detach().clone() for k, v in call.state.items() if isinstance(v, Tensor)}
    given_in = tensors(call.arguments)
    call.identities = [[a is b for b in given_in] for a in tensors(call.outputs)]
    return call


def named(value: Any) -> dict[str, Tensor]:
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return {k: v for k, v in value.items() if isinstance(v, Tensor)}
    return {str(i): x for i, x in enumerate(tensors(value))}


def check_alike(what: str, ours: Call, theirs: Call) -> None:
    """Everything but values."""
    if (wrong := difference(ours.outputs, theirs.outputs)) is not None:
        raise Wrong(f"{what}outputs {wrong}")
    if ours.identities != theirs.identities:
        raise Wrong(f"{what}which outputs are the very inputs")
    if not aliases_of(ours) == aliases_of(theirs):
        raise Wrong(f"{what}aliases {aliases_of(ours)}, eager {aliases_of(theirs)}")
    for name, gradient in theirs.gradients.items():
        if (ours.gradients.get(name) is None) != (gradient is None):
            missing = "None" if gradient is not None else "not None"
            raise Wrong(f"{what}the gradient of {name} is {missing}")
    if list(ours.state) != list(theirs.state):
        raise Wrong(f"{what}the names of the state")


def aliases_of(call: Call) -> list[list[bool]]:
    """Which outputs share memory with which arguments, and with each other."""
    outputs = [x for x in tensors(call.outputs) if has_memory(x)]
    given = [x for x in tensors(call.arguments) if has_memory(x)]
    return aliases(outputs, given)


def has_memory(x: Tensor) -> bool:
    return x.layout is torch.strided and not x.is_nested and x.untyped_storage().data_ptr() != 0


def dense(x: Tensor) -> Tensor:
    x = x.detach()
    x = x.dequantize() if x.is_quantized else x
    x = x.to_dense() if x.layout is not torch.strided else x
    x = x.resolve_conj().resolve_neg()
    return torch.view_as_real(x).resolve_neg() if x.is_complex() else x


def alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = dense(a), dense(b)
    return same_bits(a, b) or bool(torch.equal(a, b))


def found(pair: tuple[Call, Call], part: str, name: str) -> tuple[Tensor, Tensor]:
    """One value of eager's, and float64's in its place if that has the like."""
    theirs, exact = (named(getattr(call, part)).get(name) for call in pair)
    return theirs, theirs if exact is None or exact.shape != theirs.shape else exact


def check_close(
    what: str,
    a: Tensor | None,
    b: Tensor | None,
    exact: Callable[[], Tensor],
    nearby: Callable[[], list[tuple[Tensor, Tensor]]],
    slack: float,
) -> None:
    if a is None or b is None:
        return
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        raise Wrong(f"{what}: {a.shape} of {a.dtype}, eager {b.shape} of {b.dtype}")
    if alike(a, b):
        return
    ours, theirs, right = (dense(x) for x in (a, b, exact()))
    if not continuous(a):
        if first_unequal(ours, theirs, right) is None:
            return
        raise Wrong(f"{what}: values differ")
    if first_misplaced(ours, theirs, right) is not None:
        raise Wrong(f"{what}: a NaN or an infinity is elsewhere")
    figures = measure(ours, theirs, right)
    if figures.worst.ratio > slack:
        others = [(dense(x), dense(y)) for x, y in nearby() if x is not None and x.shape == b.shape]
        samples = [measure(x, x, y) for x, y in others]
        figures = figures.with_eager([figures, *samples])
    if figures.worst.ratio > slack:
        raise Wrong(f"{what}: {figures.worst}")
