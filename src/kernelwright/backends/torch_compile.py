"""The backend of torch.compile: each graph of Dynamo's is compiled at its first call, and served.

In: a GraphModule, and options. Out: a Served, which Dynamo calls behind its guards. The one idea: a
graph that cannot be compiled, or a fault of ours, is a graph that runs as eager would, with one
warning that says why. What was found out about a graph is kept on disk under its own hash, so that
a later process traces and plans nothing again.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from kernelwright.cache import keep_graph, kept_graph
from kernelwright.errors import PACKAGE, InputError, KernelwrightError, UnsupportedError, where_from
from kernelwright.frontend.dynamo import Lifted, lifted
from kernelwright.live import adopt, load_class
from kernelwright.options import BackendOptions
from kernelwright.pipeline import compile_problem
from kernelwright.problem import Problem, problem_from_module, resolve_precision
from kernelwright.runtime.autograd import is_recomputing
from kernelwright.targets import target_for, target_of
from kernelwright.targets.target import Target
from kernelwright.version import __version__

MOST_KINDS = 8  # of sizes, of one graph whose sizes may change
MOST_STATES = 64  # of models of one class, as a module remembers calls on a GPU
Run = Callable[..., Any]
_told: set[str] = set()


def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: BackendOptions | None = None,
    mode: str | None = None,
) -> Served:
    """What torch.compile(model, backend="kernelwright", options=...) calls for each graph."""
    if mode is not None:
        raise InputError(f"The backend kernelwright has no mode {mode!r}; leave mode= out.")
    return Served(graph_module, _checked(options or {}))


def _checked(options: BackendOptions) -> BackendOptions:
    known = BackendOptions.__annotations__
    for name in options:
        if name not in known:
            raise InputError(
                f"The backend kernelwright has no option {name!r}; it has {', '.join(known)}."
            )
    if (target := options.get("target")) is not None:
        target_for(target)
    resolve_precision(options.get("precision", "current"))
    return options


class Served:
    """A graph of Dynamo's: its kinds, each for some sizes, and itself where none can be made.

    `why` says why the last one could not be made, None where all is well; a graph with nothing for
    kernels to do is its own best form, and no cause to complain.
    """

    def __init__(self, graph_module: fx.GraphModule, options: BackendOptions) -> None:
        self.graph_module, self.options = graph_module, options
        self.eager: Run = graph_module.forward
        self.kinds: list[Kind] = []
        self.why: str | None = None
        self._failed = 0  # sizes that could not be compiled, which are not tried for ever
        self._run: Run = self._first
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def __repr__(self) -> str:
        count = sum(node.op.startswith("call_") for node in self.graph_module.graph.nodes)
        how = f"{len(self.kinds)} kinds by kernels" if self.kinds else "as in eager"
        return f"Served({count} operators: {how}{f'; {self.why}' if self.why else ''})"

    def _first(self, *arguments: Any) -> Any:
        """The call that everything is found out in."""
        with self._lock:
            if self._run == self._first:
                kind = self._another(arguments)
                if kind is None:
                    self._run = self.eager
                elif kind.lifted.fixed:
                    self._run = _unless_watched(kind.run, self.eager)
                else:
                    self._run = _unless_watched(self._by_sizes, self.eager)
        return self._run(*arguments)

    def _by_sizes(self, *arguments: Any) -> Any:
        """A call whose sizes Dynamo has left open."""
        for kind in self.kinds:
            if kind.takes(arguments):
                return kind.run(*arguments)
        with self._lock:
            more = len(self.kinds) + self._failed < MOST_KINDS
            made = self._another(arguments) if more else None
            self._failed += more and made is None
        if made is not None:
            return made.run(*arguments)
        if len(self.kinds) >= MOST_KINDS:
            self._tell(
                f"it was called with more than {MOST_KINDS} kinds of sizes, and other ones run so; "
                "a size that should be free must be the first of its tensor"
            )
        return self.eager(*arguments)

    def _another(self, arguments: Sequence[Any]) -> Kind | None:
        """A kind for these arguments; None where there is none, of which the user has been told."""
        try:
            with _plainly(arguments) as example:
                kind = _kind(self.graph_module, example, self.options)
                cause = kind and kind.cause(arguments)
                if cause:
                    raise UnsupportedError(cause)
        except Exception as error:
            if self.options.get("fallback", True) is False:
                raise
            self._tell(_sentence(error))
            return None
        if kind is not None:
            self.kinds.append(kind)
        return kind

    def _tell(self, why: str) -> None:
        self.why = why
        if why not in _told:
            _told.add(why)
            warnings.warn(f"A graph of torch.compile runs as in eager: {why}.", stacklevel=5)


def _sentence(error: Exception) -> str:
    if isinstance(error, KernelwrightError):
        return str(error).rstrip(".")
    told = f"{type(error).__name__} at {where_from(error)}: {error}".rstrip(".")
    return f"{told}; this is a bug in kernelwright, please report it"


def _unless_watched(run: Run, eager: Run) -> Run:
    """The call, but where a mode wants to see every operator, or a backward runs the original."""
    modes, tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state

    def call(*arguments: Any) -> Any:
        if modes() or tracing() is not None or is_recomputing():
            return eager(*arguments)
        return run(*arguments)

    return call


@contextlib.contextmanager
def _plainly(arguments: Sequence[Any]) -> Iterator[list[Any]]:
    """The arguments as an example, outside of what is set around the call that brings them."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UnsupportedError("a transform of torch.func is active")
    recorded = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(recorded):
        yield _apart(arguments)


def _apart(arguments: Sequence[Any]) -> list[Any]:
    """Each in memory of its own, and as a trace may have it: what shares memory is not traced."""
    found, homes = [], set()
    for x in arguments:
        if isinstance(x, Tensor) and x.layout is torch.strided:
            home = x.untyped_storage()._cdata
            if x.is_inference() or (home in homes and not isinstance(x, nn.Parameter)):
                blank = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
                if not torch._debug_has_internal_overlap(blank):
                    blank.copy_(x.detach())
                x = blank.requires_grad_(x.requires_grad)
            homes.add(home)
        found.append(x)
    return found


class Given:
    """What a call brings: its state; `module` stands in for the model in a backward."""

    __slots__ = ("backwards", "fusion", "module", "state")
    frozen: Mapping[str, Any] = MappingProxyType({})  # no weight of a graph is frozen
    wants = None  # who records is asked at each call

    def __init__(self, state: tuple[Tensor, ...], module: nn.Module, fusion: Any) -> None:
        self.state, self.module, self.fusion = state, module, fusion
        self.backwards: Counter[str] = Counter()


class Kind:
    """A ModelNew of a graph, for arguments as they stand in Dynamo's calls."""

    def __init__(
        self, lifted: Lifted, model_class: type[nn.Module], arguments: Sequence[Any], eager: Run
    ) -> None:
        self.lifted, self.model_class = lifted, model_class
        self.numbers = [(i, arguments[i]) for i in lifted.numbers]
        self.model = adopt(model_class, lifted.module)
        space = vars(sys.modules[model_class.__module__])
        self.fusion = next(v for v in space.values() if hasattr(v, "baked_in"))
        nothing = (_nothing(arguments),)
        self.inputs = _picker(lifted.inputs) if lifted.inputs else lambda arguments: nothing
        places = {id(getattr(self.model, name)): i for name, i in lifted.state.items()}
        order = [(places.get(id(x)), x) for x in self.fusion.state(self.model)]
        # What is not among the arguments hangs on the graph itself.
        self.own = [x for place, x in order if place is None]
        self.state = _picker([i for i, _ in order if i is not None])
        if self.own:
            self.state = lambda given: tuple(x if i is None else given[i] for i, x in order)
        first = len(self.lifted.inputs) or 1
        written = {order[i - first][0] for i in self.fusion.rewritten} | {*lifted.writes}
        self.writes = sorted(place for place in written if place is not None)
        self.run = self._directly() if hasattr(self.fusion, "served") else self._by_module()
        if lifted.records != torch.is_grad_enabled():
            self.run = torch.set_grad_enabled(lifted.records)(self.run)
        if lifted.autocast:
            self.run = torch.autocast(lifted.autocast, enabled=False)(self.run)
        if self.writes or self.own:
            self.run = self._unless_shared(self.run, eager)

    def cause(self, arguments: Sequence[Any]) -> str | None:
        """Why the kernels cannot take a call."""
        if self.fusion.refused:
            return cast(str, self.fusion.refused)
        off = torch.autocast(self.lifted.autocast or "cpu", enabled=False)
        with off if self.lifted.autocast else contextlib.nullcontext():
            found = self.fusion.outside(self.state(arguments), *self.inputs(arguments))
        return cast("str | None", found)

    def takes(self, arguments: Sequence[Any]) -> bool:
        same = all(arguments[i] == number for i, number in self.numbers)
        return same and self.cause(arguments) is None

    def _directly(self) -> Run:
        """A call with the state that it brings; what a backward replaces has no values."""
        for name, place in self.lifted.state.items():
            own = getattr(self.model, name)
            blank = torch.empty_strided(own.shape, own.stride(), dtype=own.dtype, device="meta")
            if place in self.writes:  # which a backward writes into once more
                blank = torch.zeros_like(own)
            elif isinstance(own, nn.Parameter):
                blank = nn.Parameter(blank, own.requires_grad)
            _put(self.model, name, blank)
        # Nothing here keeps the weights of the first call.
        self.lifted = replace(self.lifted, module=self.model)
        model, fusion, served = self.model, self.fusion, self.fusion.served
        inputs, state = self.inputs, self.state

        def run(*arguments: Any) -> Any:
            return served(Given(state(arguments), model, fusion), *inputs(arguments))

        return run

    def _by_module(self) -> Run:
        """A call of a module over the state that it brings; there is one for each such state."""
        models: dict[tuple[int, ...], nn.Module] = {}
        inputs, held = self.inputs, _picker([*self.lifted.state.values()])

        def run(*arguments: Any) -> Any:
            state = held(arguments)
            key = tuple(map(id, state))
            model = models.get(key)
            if model is None:
                if len(models) >= MOST_STATES:
                    models.clear()
                model = models[key] = self._over(state)
            return model.forward(*inputs(arguments))

        return run

    def _over(self, state: Sequence[Tensor]) -> nn.Module:
        model = adopt(self.model_class, self.lifted.module)
        for name, value in zip(self.lifted.state, state, strict=True):
            _put(model, name, value)
        return model

    def _unless_shared(self, run: Run, eager: Run) -> Run:
        """Kernels read before they write: no argument may lie in memory that the call changes."""
        changed = _picker(self.writes)
        own = {x.untyped_storage()._cdata for x in self.own}
        places = {*self.lifted.inputs, *self.lifted.state.values()} - {*self.writes}
        others = _picker(sorted(places))

        def call(*arguments: Any) -> Any:
            homes = {x.untyped_storage()._cdata for x in changed(arguments)} | own
            if len(homes) < len(self.writes) + len(own) or any(
                x.untyped_storage()._cdata in homes for x in others(arguments)
            ):
                return eager(*arguments)
            return run(*arguments)

        return call


def _put(model: nn.Module, name: str, value: Any) -> None:
    """In the place of a parameter or buffer."""
    for table in (model._parameters, model._buffers):
        if name in table:
            table[name] = value


def _nothing(arguments: Sequence[Any]) -> Tensor:
    """What a forward is given that takes no tensor."""
    return next(x for x in arguments if isinstance(x, Tensor)).new_empty(())


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """These of a call's arguments, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda arguments: tuple(arguments[i] for i in places)


def _kind(
    graph_module: fx.GraphModule, example: Sequence[Any], options: BackendOptions
) -> Kind | None:
    """The compiled graph; None where no kernel of ours has anything to do in it."""
    if not any(isinstance(x, Tensor) for x in example):
        return None
    found = lifted(graph_module, example)
    inputs = tuple(example[i] for i in found.inputs) or (_nothing(example),)
    precision = options.get("precision", "current")
    problem = replace(problem_from_module(found.module, inputs, precision), guarded=True)
    machine = _machine(problem, options)
    with torch.autocast(problem.device.type, enabled=False):
        key = _key(found, problem, machine)
        known = kept_graph(key)
        if known is None:
            known = _compiled(problem, machine)
            keep_graph(key, known)
        if known["why"] is not None:
            raise UnsupportedError(known["why"])
        if known["source"] is None:
            return None
        model_class = load_class(known["source"], problem.name)
        return Kind(found, model_class, example, graph_module.forward)


def _compiled(problem: Problem, machine: Target) -> dict[str, str | None]:
    """The text for a graph, or why there is none."""
    try:
        compiled = compile_problem(problem, target=machine)
    except UnsupportedError as error:
        return {"source": None, "why": str(error)}
    return {"source": compiled.source if compiled.fused else None, "why": None}


def _machine(problem: Problem, options: BackendOptions) -> Target:
    name = options.get("target")
    machine = target_of(problem.device) if name is None else target_for(name)
    if machine.device != problem.device.type:
        raise InputError(
            f"The target {machine.name} is no {problem.device.type}, where the graph's tensors are"
        )
    return machine


def _key(found: Lifted, problem: Problem, machine: Target) -> str:
    """The hash of all that the text for a graph depends on."""
    module = found.module
    tensors = [*problem.tensors, *module.parameters(), *module.buffers()]
    own = [getattr(module, name) for name in found.own]
    name = torch.cuda.get_device_name(problem.device) if problem.device.type == "cuda" else ""
    parts = [
        *(found.text, *map(_described, tensors), machine, name),
        *(problem.precision, problem.conv_tf32, torch.__version__, __version__, _package()),
        *(hashlib.sha256(repr(x.tolist()).encode()).hexdigest() for x in own),
    ]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def _described(x: Tensor) -> str:
    kind = type(x).__name__
    return f"{kind} {x.dtype} {tuple(x.shape)} {x.stride()} {x.device} {x.requires_grad}"


@cache
def _package() -> str:
    """This package as it is on the disk: whoever changes it is not served what it made before."""
    files = sorted(p for p in PACKAGE.rglob("*") if p.suffix != ".pyc" and p.is_file())
    told = [(str(p.relative_to(PACKAGE)), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()
