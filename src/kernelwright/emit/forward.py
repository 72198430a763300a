"""The functions of one model: guards, the steps, the original, forward around them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from kernelwright.emit import values
from kernelwright.emit.apart import prefixed
from kernelwright.emit.cpp import comment
from kernelwright.emit.device_steps import DevicePrinter, printer_for
from kernelwright.emit.freed import freed
from kernelwright.emit.lines import filled, indented, listed
from kernelwright.emit.names import Names, permuted
from kernelwright.emit.routines import RoutineWriter
from kernelwright.emit.runs import RunWriter
from kernelwright.emit.steps import StepPrinter
from kernelwright.emit.values import python
from kernelwright.expr import leaves
from kernelwright.graph import (
    SOURCES,
    Node,
    Ref,
    View,
    hint,
    is_differentiable,
    smallest_batch,
)
from kernelwright.lower.lowered import Lowered
from kernelwright.lower.steps import Invoke, Library, Step, every
from kernelwright.lower.trained import TrainingStep
from kernelwright.memory import apart, chain, may_be_view
from kernelwright.places import is_place, look_up
from kernelwright.plan.model import Plan
from kernelwright.problem import Problem

CHANNELS_LAST = (4, 5)  # numbers of dimensions that have such an order
HEAP = 1 << 9  # of a class that Python made


class ForwardWriter(Names):
    """Prints the functions of one model."""

    called, ran = "fused", "forward"
    about = "The steps of a call: inputs and state in, results out."

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        lowered: Lowered,
        device: str,
        names: Mapping[type, str],
        step: TrainingStep | None = None,
    ) -> None:
        super().__init__(problem, plan, device, names)
        self.lowered, self.step = lowered, step
        self.prefix = "_kw"

    def own(self, name: str) -> str:
        """A name of the file where the user's parameters stand, which might hide it otherwise."""
        return prefixed(name, self.prefix)

    # ---- what the kernels cover ------------------------------------------------------------

    def outside(self) -> list[str]:
        """The function that says why a call is outside of what the kernels cover."""
        state = self.local["state"]
        lines = [
            f"def outside({', '.join([state, *self.arguments.inside.values()])}):",
            '    """Why the kernels cannot take this call, or None when they can."""',
            f"    {self.local['cause']} = transformed({python(self._untraceable())})",
            f"    if {self.local['cause']} is not None:",
            f"        return {self.local['cause']}",
        ]
        for test, cause in self.arguments.checks:
            lines += _when(test, cause)
        for name, leaf in self.leaves.items():
            lines += self._input_checks(self.graph[name], leaf.place)
        for leaf, other in self.repeated:
            cause = f"{leaf.name} and {other.name} are not one tensor, as in the example"
            lines += _when(f"{leaf.place} is not {other.place}", cause)
        lines += self._symbol_checks()
        lines += self._state_checks() if self.state() else []
        if self.graph.contract.random and any(
            len(n.type.shape) in CHANNELS_LAST for n in self.state()
        ):
            lines += _when(
                f"any(is_channels_last(tensor) for tensor in {state})",
                "a weight is in channels_last order, and eager's random numbers follow it",
            )
        lines += _when(f'torch.is_autocast_enabled("{self.device}")', "autocast is on")
        return [*lines, *self._ways(), "    return None"]

    def _state_checks(self) -> list[str]:
        """Parameters and buffers, where they are not as they were when they fitted."""
        words = ("place", "unknown", "tensor", "dtype", "shape", "device")
        place, unknown, tensor, dtype, shape, device = (self.local[word] for word in words)
        state = self.local["state"]
        return [
            f"    {place} = {self.leaves[self.first].place}.device",
            f"    {unknown} = unlike({state}, {place})",
            f"    for {tensor}, ({dtype}, {shape}, {device}) in zip({unknown}, STATE_TYPES):",
            f"        if {tensor}.dtype != {dtype} or {tensor}.shape != {shape}:",
            '            return "a parameter has another type or shape"',
            f"        if {tensor}.device != {place} and {tensor}.device.type != {device}:",
            '            return "a parameter is on another device"',
            f"        if not is_ordinary({tensor}):",
            '            return "a parameter is not a plain tensor"',
            f"    if {unknown}:",
            f"        fits({state}, {place})",
        ]

    def is_guarded(self) -> bool:
        """Whether the tensors that forward is given decide alone whether a call is covered."""
        places = sorted(leaf.place for leaf in self.leaves.values())
        alone = places == sorted(self.arguments.inside.values()) and not self.arguments.checks
        asks = self.needs_its_way or self.repeated or self.reads_globals()
        return alone and not asks

    def _ways(self) -> list[str]:
        """Where results lie otherwise while other gradients are recorded, and nobody knows how."""
        if not self.needs_its_way:
            return []
        places = [leaf.place for leaf in self.leaves.values()]
        test = self._records_otherwise("asking", [*places, f"*{self.local['state']}"])
        return _when(test, "the result lies otherwise where these gradients are recorded")

    @property
    def needs_its_way(self) -> bool:
        """Whether the kernels serve calls alone that record the gradients they were traced for."""
        return self.graph.contract.recorded is not None and not self.orders_otherwise

    def _records_otherwise(self, asking: str, sources: list[str]) -> str:
        order = [*self.leaves, *(n.name for n in self.state())]
        ways = [tuple(name in of for name in order) for of in self.graph.contract.recorded or ()]
        return f"{asking}({', '.join(sources)}) not in {ways}"

    @cached_property
    def orders_otherwise(self) -> dict[str, tuple[int, ...]]:
        """The orders of outputs in calls that record other gradients."""
        leaves, orders = pytree.tree_leaves(self.graph.outputs), self.graph.contract.otherwise
        if orders is None or len(leaves) != len(orders):
            return {}
        pairs = zip(leaves, orders, strict=True)
        return {leaf.name: order for leaf, order in pairs if isinstance(leaf, Ref) and order}

    def _untraceable(self) -> str | None:
        if self.graph.contract.random:
            return "random numbers are traced"
        return "an argument is traced that is no tensor" if self.arguments.constants else None

    def _input_checks(self, node: Node, name: str) -> list[str]:
        shape, device = node.type.shape, self.device
        lines = _when(f"not is_ordinary({name})", f"{name} is not a plain tensor")
        lines += _when(f'{name}.device.type != "{device}"', f"{name} is not on a {device} device")
        lines += _when(
            f"{name}.dtype != {node.type.dtype}", f"{name} is not {str(node.type.dtype)[6:]}"
        )
        fixed = {i: d for i, d in enumerate(shape) if isinstance(d, int)}
        tests = [f"{name}.ndim != {len(shape)}"]
        start = 0 if 0 in fixed else 1
        if len(fixed) == len(shape) - start and fixed:
            sizes = tuple(fixed[i] for i in range(start, len(shape)))
            tests.append(
                f"{name}.shape[{start}:] != {sizes}" if start else f"{name}.shape != {sizes}"
            )
        else:
            tests += [f"{name}.shape[{i}] != {d}" for i, d in fixed.items()]
        wanted = " x ".join(str(d) for d in shape)
        lines += _when(" or ".join(tests), f"{name} is not of shape {wanted}")
        if len(shape) in CHANNELS_LAST:
            # Eager keeps that order in its result, and the library has kernels for it.
            lines += _when(f"is_channels_last({name})", f"{name} is in channels_last order")
        if node.name in self.graph.contract.copies:
            lines += _when(f"not {name}.is_contiguous()", f"the result would be a copy of {name}")
        elif node.name in self.graph.contract.follows:
            lines += _when(
                f"not in_order({name})", f"the result would lie in memory as {name} does"
            )
        if node.name in self.graph.contract.repeats:
            lines += _when(f"0 in {name}.stride()", f"the result would repeat what {name} repeats")
        return lines

    def _symbol_checks(self) -> list[str]:
        """Sizes that must agree, enough for a statistic, and what the trace asked of them."""
        lines: list[str] = []
        for node in self.graph:
            for axis, size in enumerate(node.type.shape if node.op == "input" else ()):
                if isinstance(size, int) or self.graph.symbols.get(str(size)) == (node.name, axis):
                    continue
                place = f"{self.leaves[node.name].place}.shape[{axis}]"
                lines += _when(
                    f"{place} != {self.size(size, inline=True)}", "the inputs differ in batch size"
                )
        smallest, fewest = smallest_batch(self.graph), self.fewest()
        least = {s: max(smallest, fewest.get(s, 0)) for s in self.graph.symbols}
        for symbol in self.graph.symbols if smallest else ():
            test = f"{self.symbol(symbol, inline=True)} < {smallest}"
            lines += _when(test, f"compiled for at least {smallest} samples")
        for symbol, count in fewest.items():
            test = f"{self.symbol(symbol, inline=True)} < {count}"
            lines += _when(test, "too few samples for a statistic")
        for guard in self.graph.contract.guards:
            if guard.holds_from(least):
                continue
            test, *divisors = map(PythonPrinter().doprint, (guard.test, *guard.divisors))
            where = f" ({guard.place})" if guard.place else ""
            fails = [*(f"{self._inline(d)} == 0" for d in divisors), f"not ({self._inline(test)})"]
            lines += _when(" or ".join(fails), f"compiled for {test}{where}")
        return lines

    def fewest(self) -> dict[str, int]:
        """The smallest batch for kernels that reduce over it: none of their divisors may vanish."""
        found: dict[str, int] = {}
        for kernel in self.lowered.kernels:
            program = kernel.program
            for atom in program.elements if program.stages else ():
                size = program.sizes[atom]
                for symbol in () if isinstance(size, int) else size.free_symbols:
                    divisors = [leaf.value for e in program.exprs for leaf in leaves(e, "size")]
                    vanishes = any(hint(d, batch=1) <= 0 for d in divisors)
                    found[str(symbol)] = max(found.get(str(symbol), 1), 2 if vanishes else 1)
        return found

    def state(self) -> list[Node]:
        """The parameters and buffers that the forward reads, or that gradients flow to."""
        return self._state

    @cached_property
    def _state(self) -> list[Node]:
        bases = {self.graph.base(r) for region in self.plan.regions for r in region.reads}
        bases |= {self.graph.base(r) for r in self.graph.results}
        bases |= {name for of in self.graph.contract.reaches or () for name in of}
        bases |= self.changed.keys()
        bases |= self.step.sources if self.step is not None else set()
        return [n for n in self.graph if n.op in ("parameter", "buffer") and n.name in bases]

    @cached_property
    def changed(self) -> dict[str, str]:
        """The buffers that a call changes, and their places in the module."""
        counters = (counter.buffer for counter in self.graph.counters)
        targets = {*(target for target, _ in self.graph.mutations), *counters}
        sources = [n.name for n in self.graph if n.op == "buffer"]
        return {n: self.graph.targets[n] for n in sources if self.graph.targets[n] in targets}

    def on_host(self) -> list[Node]:
        """Tensors that no .to() moves: attributes and globals that lie on the CPU beside a GPU."""
        if self.device == "cpu":
            return []
        places = {n.name: self.graph.targets[n.name] for n in self.state()}
        loose = [n for n in self.state() if is_place(places[n.name])]
        module = self.problem.module
        return [n for n in loose if look_up(module, places[n.name]).device.type == "cpu"]

    def reads_globals(self) -> bool:
        return any("__globals__" in self.graph.targets[n.name] for n in self.state())

    def state_types(self) -> list[str]:
        """The table that outside() compares the state with."""
        if not self.state():
            return []
        lines = ["STATE_TYPES = ("]
        for n in self.state():
            shape = tuple(int(str(d)) for d in n.type.shape)
            where = "cpu" if n in self.on_host() else None
            row = f"({n.type.dtype}, {shape}, {python(where)})"
            place = self.graph.targets[n.name].removeprefix("{}.")
            lines.append(f"    {row},  # {comment(place)}")
        return [*lines, ")"]

    def state_reader(self) -> list[str]:
        lines = [f"def state({self.local['module']}):"]
        lines.append(
            '    """The parameters and buffers that a call reads, in one order for all."""'
        )
        names = [self.attribute(self.graph.targets[n.name]) for n in self.state()]
        if len(names) < 2:
            return [*lines, *listed("    ", "return (", names, ")", margin=0)]
        return [*lines, *indented(filled("return (", names, ")"))]

    # ---- results -----------------------------------------------------------------------------

    def _undone(self, name: str, text: str) -> str:
        """The expression for a result, given one for the output that is a regrouping of it."""
        while self.graph.regroups(name):
            node, view = self.graph[name], self.graph[name].payload
            assert isinstance(view, View)
            inner = self.graph[node.inputs[0]]
            if view.kind == "permute":
                back = [view.dims.index(i) for i in range(len(view.dims))]
                text = permuted(text, back)
            elif node.type.shape != inner.type.shape:
                text = f"{text}.reshape({self.tuple_of(inner.type.shape)})"
            name = inner.name
        return text

    def reaches(self) -> list[tuple[int, ...]]:
        """For each result, the positions among inputs and state that its gradient flows to."""
        order = [*self.leaves, *(n.name for n in self.state())]
        known = self.graph.contract.reaches
        rows = []
        for result in self.results:
            sources = set(order)
            if known is not None and result.leaf is not None:
                sources = set(known[result.leaf])
            flows = is_differentiable(self.graph[result.name].type.dtype)
            if result.leaf is None or not flows:
                sources = set()
            rows.append(tuple(i for i, name in enumerate(order) if name in sources))
        return rows

    def rewritten(self) -> tuple[list[int], list[int], list[int]]:
        """Positions of buffers that a call changes.

        And of those among them that outputs depend on, and that kernels write in place.
        """
        order = [*self.leaves, *(n.name for n in self.state())]
        found = [i for i, n in enumerate(order) if n in self.changed]
        needed = self._behind([r.name for r in self.results if r.leaf is not None])
        in_place = [*self.lowered.in_place.buffers]
        in_place += self.step.saving.in_place.buffers if self.step is not None else ()
        recalled, written = ([i for i in found if order[i] in of] for of in (needed, in_place))
        return found, recalled, written

    def uncounted(self) -> list[int]:
        """Positions of the statistics that torch's batch norms write without counting a version.

        A graph of eager's that reads them, of a call before, may still be differentiated.
        """
        order = [*self.leaves, *(n.name for n in self.state())]
        made = {
            target for target, v in self.graph.mutations if self.graph[v].origin.op == "getitem"
        }
        return [i for i, name in enumerate(order) if self._is_statistic(name, made)]

    def _is_statistic(self, name: str, made: set[str]) -> bool:
        target = self.changed.get(name, "")
        if target not in made or is_place(target):
            return False
        owner = self.problem.module.get_submodule(target.rpartition(".")[0])
        return isinstance(owner, _NormBase)

    def alone(self) -> list[int]:
        """Positions of outputs that may be views of what is made inside, and overlap no other."""
        names = [result.name for result in self.results if result.leaf is not None]
        found = []
        for i, name in enumerate(names):
            inside = self.graph[chain(self.graph, name)[-1]].op not in SOURCES
            if inside and may_be_view(self.graph, name):
                others = (*names[:i], *names[i + 1 :])
                found += [i] * all(apart(self.graph, name, other) for other in others)
        return found

    def _behind(self, names: list[str]) -> set[str]:
        """Every value that these are computed from."""
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name not in seen:
                seen.add(name)
                names += self.graph[name].inputs
        return seen

    # ---- the functions -----------------------------------------------------------------------

    def parameters(self) -> list[str]:
        return [*self.inputs.values(), *(self.variable(n.name) for n in self.state())]

    def sized(self) -> list[str]:
        return [f"    {self.local[s]} = {self.symbol(s)}" for s in self.graph.symbols]

    @cached_property
    def routines(self) -> RoutineWriter:
        return RoutineWriter(self, self.lowered)

    @cached_property
    def runs(self) -> RunWriter | None:
        """On a GPU kernels run in rows, where a call is like the example."""
        on_gpu = self.device != "cpu"
        return RunWriter(self, self.lowered, self.routines, self.ran) if on_gpu else None

    @cached_property
    def fused(self) -> list[str]:
        """The steps, one after another."""
        printer = printer_for(self)
        with self.within({}):
            moved = self._moved(printer)
            changes = self._changes(printer)
            end = [*changes, *listed("", "return (", self._handed_back(), ")", margin=4)]
            body = [*moved, *self._body(printer, end)]
        given = [self.local["kept"]] * self.freezes
        head = filled(f"def {self.called}(", [*given, *self.parameters()], "):", margin=0)
        lines = [*head, f'    """{self.about}"""']
        lines += self.sized()
        device = self.local["device"]
        if _mentions(body, device):
            lines.append(f"    {device} = {self.inputs[self.first]}.device")
        return freed([*lines, *indented(body)])

    def _body(self, printer: StepPrinter, end: list[str]) -> list[str]:
        """The way that the example takes, if there are others, and the steps one by one."""
        lines: list[str] = []
        if self.runs is not None:
            main = [*self.runs.python(), *end]
            tests = self.runs.tests
            if not tests:
                return main
            lines += printer.test(tests)
            lines += freed(["def main():", *indented(main)])[1:]
        for step in self.lowered.steps:
            lines += self._step(step, printer)
        return [*lines, *end]

    def _moved(self, printer: StepPrinter) -> list[str]:
        if not isinstance(printer, DevicePrinter):
            return []
        return [line for node in self.on_host() for line in printer.moved(node.name)]

    @property
    def freezes(self) -> bool:
        """Whether the steps are given the halves of weights that are frozen."""
        return bool(self.lowered.frozen)

    def _step(self, step: Step, printer: StepPrinter) -> list[str]:
        return self.routines.invoke(step) if isinstance(step, Invoke) else printer.step(step)

    def _changes(self, printer: StepPrinter) -> list[str]:
        """Buffers that no kernel writes are given their values at the end, alike ones at once."""
        done, places = self.lowered.in_place, {t: name for name, t in self.changed.items()}
        copied: dict[Any, list[tuple[str, str]]] = {}
        for target, name in self.graph.mutations:
            if self.graph.base(name) not in done.stored:
                # Of a buffer, which another of these lines may change, it is the value before.
                old = ".clone()" * (self.graph[self.graph.base(name)].op in SOURCES)
                pair = self.variable(places[target]), f"{self.value(name)}{old}"
                copied.setdefault(self.graph[name].type.dtype, []).append(pair)
        lines: list[str] = []
        for pairs in copied.values():
            lines += printer.copied([old for old, _ in pairs], [new for _, new in pairs])
        counted: dict[int, list[str]] = {}
        for counter in self.graph.counters:
            if places[counter.buffer] not in done.counted:
                counted.setdefault(counter.by, []).append(self.variable(places[counter.buffer]))
        for by, names in counted.items():
            lines += printer.counted(names, by)
        return lines

    def _handed_back(self) -> list[str]:
        """The values of results; the caller may not be handed the same tensor twice.

        Two views that are alike are two tensors, and share memory as eager's do.
        """
        found: list[str] = []
        for result in self.results:
            text = self.value(result.name)
            base = self.graph[self.graph.base(result.name)].op
            again = text in found and (result.leaf is None or text.isidentifier())
            again |= result.leaf is None and base in SOURCES
            found.append(f"{text}.clone()" if again else text)
        return found

    def blank(self) -> list[str]:
        inside = filled("def blank(", self.parameters(), "):", margin=0)
        lines = [*inside, '    """Results without values, for tracers."""', *self.sized()]
        made = []
        for result in self.results:
            type = self.graph[result.name].type
            shape, device = self.tuple_of(type.shape), self.device_of()
            made.append(f"torch.empty({shape}, dtype={type.dtype}, device={device})")
        return [*lines, *listed("    ", "return (", made, ")", margin=0)]

    def original(self) -> list[str]:
        """The user's own forward on the same tensors, its outputs as the results that they are."""
        module, outputs = self.local["module"], self.local["outputs"]
        names = [*self.inputs.values(), *(leaf.name for leaf in self.arguments.constants)]
        called = f"super(ModelNew, {module}).forward({', '.join(self.arguments.rebuilt)})"
        if self.arguments.is_method:
            called = f"Model.forward({', '.join([module, *self.arguments.rebuilt])})"
        lines = listed("", "def original(", [module, *names], "):", margin=0)
        lines.append('    """What fused() computes, by the original forward."""')
        places = values.places(self.graph.outputs, outputs)
        made = []
        for result in self.results:
            if result.leaf is not None:
                leaf = pytree.tree_leaves(self.graph.outputs)[result.leaf]
                made.append(self._undone(leaf.name, places[result.leaf]))
        needed = [local for local in self.sized() if _mentions(made, local.split()[0])]
        lines += [*needed, f"    {outputs} = {called}"]
        return [*lines, *listed("    ", "return (", made, ")", margin=0)]

    def model(self) -> str | None:
        """The original's class, where an object of it can stand for one of ModelNew."""
        kind = type(self.problem.module)
        others = [k for k in kind.__mro__ if k is not object]
        plain = all(k.__flags__ & HEAP and not vars(k).get("__slots__") for k in others)
        plain = plain and not hasattr(kind, "__del__")
        return "Model" if plain and self.arguments.is_method else None

    def forward(self) -> list[str]:
        """ModelNew.forward: the way that a call takes."""
        fusion = self.own("FUSION")
        *lines, made = self._called(fusion)
        state = {n.name: self.attribute(self.graph.targets[n.name], "self") for n in self.state()}
        head = f"def forward({', '.join(filter(None, ['self', self.arguments.printed()]))}):"
        body = [*lines, *self._handed_out(made, f"{fusion}.state(self)", state)]
        shown = ["    @functools.wraps(Model.forward)"] * self.arguments.shows_another
        return [*shown, f"    {head}", *(f"        {line}" for line in body)]

    @property
    def served_directly(self) -> bool:
        return self.problem.guarded

    def served(self) -> list[str]:
        """The same for a call that others have guarded: it brings the state along."""
        memo, fusion = self.local["memo"], self.own("FUSION")
        head = f"def served({', '.join([memo, *self.arguments.inside])}):"
        made = f"{fusion}.run({', '.join([memo, *self._inputs()])})"
        state = {n.name: f"{memo}.state[{i}]" for i, n in enumerate(self.state())}
        body = self._handed_out(made, f"{memo}.state", state)
        said = '"""A call whose arguments fit: nothing is asked of them here."""'
        return [head, *(f"    {line}" for line in (said, *body))]

    def _handed_out(self, made: str, read: str, state: Mapping[str, str]) -> list[str]:
        """What the caller gets, of the expression of the results; the state by its texts."""
        names = [self.variable(r.name) for r in self.results]
        assembled = self.assembled(state)
        lines = [*self._sizes_of(assembled), *listed("", "(", names, f") = {made}")]
        if self.orders_otherwise:
            sources = [*(leaf.given for leaf in self.leaves.values()), f"*{read}"]
            test = self._records_otherwise(f"{self.own('FUSION')}.asking", sources)
            lines.append(f"{self.local['otherwise']} = {test}")
        return [*lines, f"return {assembled}"]

    def _called(self, fusion: str) -> list[str]:
        """The guard, the original where it must run, and last the expression of the results."""
        memo, cause = self.local["memo"], self.local["cause"]
        handed = ", ".join(["self", *self.arguments.inside])
        return [
            f"{memo}, {cause} = {fusion}.look({handed})",
            f"if {cause} is not None:",
            f"    {memo}.fall_back({cause})",
            f"    return {self._original_forward()}",
            f"{fusion}.run({', '.join([memo, *self._inputs()])})",
        ]

    def _inputs(self) -> list[str]:
        """The tensors of a call, and what else the original needs."""
        given = _tuple([leaf.given for leaf in self.leaves.values()])
        kept = [leaf.given for leaf in self.arguments.constants]
        return [given, *([_tuple(kept)] if kept else [])]

    def _original_forward(self) -> str:
        """The original forward on the arguments as they were given, with itself as its `self`."""
        handed = self.arguments.handed_on()
        if not self.arguments.is_method:
            return f"super().forward({handed})"
        fusion = self.own("FUSION")
        model = f"{fusion}.model" if "Model" in self.arguments.inside else "Model"
        return f"{model}.forward({', '.join(filter(None, [f'{fusion}.plain(self)', handed]))})"

    def _sizes_of(self, text: str) -> list[str]:
        """The sizes that a text needs."""
        return [
            f"{local} = {self._given_size(symbol)}"
            for symbol, local in self.local.items()
            if symbol in self.graph.symbols and _mentions([text], local)
        ]

    def _given_size(self, symbol: str) -> str:
        name, axis = self.graph.symbols[symbol]
        return f"{self.leaves[name].given}.shape[{axis}]"

    def assembled(self, state: Mapping[str, str]) -> str:
        """The outputs, of results and of views of what came in."""
        self.known = {name: leaf.given for name, leaf in self.leaves.items()} | dict(state)
        text = values.rebuild(self.graph.outputs, self._output, self.names)
        self.known = {}
        return text

    def _output(self, value: Any) -> str | None:
        """The text of a leaf of the outputs.

        A view outside of autograd's function has the history of what it is a view of; one that
        gradients do not flow through in eager is cut off from it. A view that changes nothing is no
        step here, but a tensor of its own in eager.
        """
        text = self._known(value)
        if not isinstance(value, Ref):
            return text
        if value.name in self.orders_otherwise:
            laid = f"{self.own('FUSION')}.laid({text}, {self.orders_otherwise[value.name]})"
            return f"({laid} if {self.local['otherwise']} else {text})"
        if self.graph[value.name].op == "view" and value.name in self.detached:
            return f"{text}.detach()"
        other = value.name in self._other_tensors and text in self.known.values()
        return f"{text}.view_as({text})" if other else text

    @cached_property
    def _other_tensors(self) -> frozenset[str]:
        """Outputs that are not the very tensors of inputs or of the module."""
        leaves, given = pytree.tree_leaves(self.graph.outputs), self.graph.contract.given
        if len(leaves) != len(given):
            return frozenset()
        pairs = zip(leaves, given, strict=True)
        return frozenset(x.name for x, very in pairs if isinstance(x, Ref) and not very)


def _mentions(texts: list[str], name: str) -> bool:
    return any(re.search(rf"\b{name}\b", text) for text in texts)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _when(test: str, cause: str) -> list[str]:
    return [f"    if {test}:", f"        return {python(cause)}"]


def contracts(lowered: Lowered) -> bool:
    """Whether products or convolutions are the library's, on any way."""
    steps = [*lowered.steps, *(s for r in lowered.routines for s in r.steps)]
    return any(step.contracts for step in every(steps) if isinstance(step, Library))
