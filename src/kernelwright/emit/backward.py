"""The functions of a training step: a forward that keeps values, and the backward that reads them.

In: what was lowered for both, and the writer of the forward as it is for inference. Out: the texts
of `saving` and `backward` with their routines, and the table of what the one keeps for the other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from kernelwright.emit.device_steps import printer_for
from kernelwright.emit.forward import ForwardWriter
from kernelwright.emit.freed import freed
from kernelwright.emit.lines import filled, indented, listed
from kernelwright.emit.names import Names
from kernelwright.emit.routines import RoutineWriter
from kernelwright.emit.runs import RunWriter
from kernelwright.errors import UnsupportedError
from kernelwright.graph import SOURCES, Node
from kernelwright.handed import Result
from kernelwright.lower.steps import (
    Alloc,
    Choice,
    Invoke,
    Launch,
    Library,
    Panels,
    Slices,
    Step,
)
from kernelwright.lower.trained import TrainingStep
from kernelwright.training.partition import reach


class SavingWriter(ForwardWriter):
    """The forward whose results are those of `fused`, and then the values that are kept."""

    called = ran = "saving"
    about = "The steps of a call with gradients, which hands back what they read."

    def __init__(self, base: ForwardWriter, step: TrainingStep) -> None:
        of = (base.problem, step.forward, step.saving, base.device, base.names)
        super().__init__(*of)
        self.base, self.made = base, [ref.name for ref in self.graph.outputs[1]]
        self.results = [self._same(result) for result in base.results]

    def state(self) -> list[Node]:
        """As the other forward is given it."""
        return [self.graph[node.name] for node in self.base.state()]

    def _same(self, result: Result) -> Result:
        """The result as this graph has it."""
        mine, theirs = self.graph.by_name.get(result.name), self.base.graph[result.name]
        if mine is None or mine.type != theirs.type:
            raise UnsupportedError(f"with gradients {result.name} is no value of its own")
        return result

    @cached_property
    def routines(self) -> RoutineWriter:
        return RoutineWriter(self, self.lowered, self.base.routines.printed)

    @property
    def returned(self) -> list[str]:
        return [*super().returned, *self.made]

    def _handed_back(self) -> list[str]:
        """Whoever gets a result may change it, and whoever gave a tensor too: copies are kept."""
        found = super()._handed_back()
        given = {self.graph.base(result.name) for result in self.results}
        for name in self.made:
            base = self.graph.base(name)
            own = base not in given and self.graph[base].op not in SOURCES
            found.append(self.value(name) + ("" if own else ".clone()"))
        return found


class BackwardWriter(Names):
    """Prints the backward: cotangents and what was kept in, gradients out."""

    def __init__(self, base: ForwardWriter, saving: SavingWriter, step: TrainingStep) -> None:
        self.base, self.saving, self.step = base, saving, step
        self.problem, self.names, self.device = base.problem, base.names, base.device
        self.plan, self.graph = step.backward, step.backward.graph
        self.arguments = base.arguments
        self.leaves, self.results = {}, []
        self.known, self.slots, self.placed_on = {}, {}, ""
        self.local = self._locals()
        self.inputs = {}
        self.inputs = {n.name: self.variable(n.name) for n in self.graph if n.op == "input"}
        self.first = next(iter(self.inputs))
        self.lowered = step.lowered
        self.routines = RoutineWriter(self, self.lowered, saving.routines.printed)
        self.order = [*base.leaves, *(n.name for n in base.state())]
        self.reach = reach(self.graph, self.gradients)

    @property
    def gradients(self) -> dict[str, str]:
        """The gradient of each source, as the graph of primitives has it."""
        names = [ref.name for ref in self.graph.outputs]
        return dict(zip(self.step.found.gradients, names, strict=True))

    @cached_property
    def flows(self) -> list[tuple[int, str]]:
        """The results that have a cotangent here, and the inputs that these are."""
        given = self.step.found.cotangents
        return [(i, given[name]) for name, i in self.handed.items() if name in given]

    @cached_property
    def handed(self) -> dict[str, int]:
        """The place among the results of each output that is one, by its captured name."""
        leaves = pytree.tree_leaves(self.step.found.forward.outputs[0])
        results = enumerate(self.base.results)
        return {leaves[r.leaf].name: i for i, r in results if r.leaf is not None}

    # ---- what is kept --------------------------------------------------------------------------

    def kept(self) -> list[tuple[str, str, int, tuple[int, ...]]]:
        """For each value that is handed over: its name, where it is found, and what needs it."""
        results = self.handed
        sized = {name for name, _ in self.sized.values()}
        everything = tuple(map(self.order.index, self.gradients))
        rows = []
        for saved in self.step.found.saved:
            name = saved.value
            needs = (
                everything
                if name in sized
                else self._ordered(self.timetable.needed(self.value(name)))
            )
            if name in self.order:
                kind, place = "copy" if saved.copied else "tensor", self.order.index(name)
            elif name in results:
                kind, place = "result", results[name]
            else:
                kind, place = "made", self.step.found.made.index(name)
            rows.append((name, kind, place, needs))
        return rows

    def table(self) -> list[str]:
        """What a call keeps for its backward, and why."""
        lines = [
            "# Where each value that the backward reads is found, and which gradients need it.",
            "KEPT = (",
        ]
        for name, kind, place, needs in self.kept():
            lines += [f'    ("{kind}", {place}, {needs}),  # {name}']
        return [*lines, ")"]

    def covers(self) -> list[str]:
        """Whether the backward holds for tensors of these sizes."""
        tests = [f"{self.base.symbol(s)} > 0" for s in self.base.graph.symbols]
        sizes = {s: self.base.symbol(s) for s in self.base.graph.symbols}
        for guard in self.step.found.guards:
            divisors = [f"{PythonPrinter().doprint(d)} != 0" for d in guard.divisors]
            for test in (*divisors, PythonPrinter().doprint(guard.test)):
                tests.append(self.base._renamed(f"({test})", sizes))
        head = filled("def covers(", self.base.parameters(), "):", margin=0)
        text = " and ".join(tests) or "True"
        return [
            *head,
            '    """Whether the backward holds for tensors of these sizes."""',
            f"    return {text}",
        ]

    # ---- the function --------------------------------------------------------------------------

    @property
    def example(self) -> dict[str, int]:
        return {symbol: self.base.example[symbol] for symbol in self.graph.symbols}

    @property
    def returned(self) -> list[str]:
        return [*self.gradients.values()]

    @cached_property
    def runs(self) -> RunWriter | None:
        """Where the gradients of all parameters are wanted, a GPU's kernels run in rows."""
        if self.device == "cpu":
            return None
        asked = [self._ordered(needs) for needs in self.timetable.needs]
        state = {self.order.index(n) for n in self.gradients if n not in self.base.leaves}
        conditions = ["" if self._always(of) or state & {*of} else self._wanted(of) for of in asked]
        of = (self, self.lowered, self.routines, "backward", conditions)
        return RunWriter(*of)

    def backward(self) -> list[str]:
        given = [self.value(name) for _, name in self.flows]
        kept = [self.variable(row[0]) for row in self.kept()]
        head = filled("def backward(", [self.local["wanted"], *given, *kept], "):", margin=0)
        lines = [*head, '    """The gradients that are wanted: cotangents and what was kept in."""']
        lines += [f"    {self.local[s]} = {self.symbol(s)}" for s in self.graph.symbols]
        with self.within({}):
            body = [f"{variable} = {text}" for variable, text in self.regrouped.items()]
            made = [self._gradient(place, source) for place, source in enumerate(self.order)]
            end = listed("", "return (", made, ")", margin=4)
            tests, main = self._main(end)
            if tests or not main:
                main = [*tests, *main, *self._steps(), *end]
            body += main
        device = self.local["device"]
        if re.search(rf"\b{device}\b", "\n".join(body)):
            lines.append(f"    {device} = {self.inputs[self.first]}.device")
        return [*lines, *indented(body)]

    def _main(self, end: list[str]) -> tuple[list[str], list[str]]:
        """The way of runs, for whoever wants the gradients of all parameters, and its tests."""
        if self.runs is None:
            return [], []
        state = [self.order.index(n) for n in self.gradients if n not in self.base.leaves]
        first, last = len(self.base.leaves), len(self.order)
        one = self.local["wanted"]
        if len(state) == last - first:
            tests = [f"all({one}[{first}:])"] if state else []
        else:
            tests = [f"{one}[{i}]" for i in state]
        tests += self.runs.tests
        main = freed(["def main():", *indented([*self.runs.python(), *end])])[1:]
        if tests:
            return self.runs.printer.test(tests), main
        return [], [line.removeprefix("    ") for line in main]

    @cached_property
    def regrouped(self) -> dict[str, str]:
        """Cotangents as those of the outputs, where results are regroupings of these."""
        leaves = pytree.tree_leaves(self.base.graph.outputs)
        found = {}
        for i, name in self.flows:
            result, variable = self.base.results[i], self.value(name)
            assert result.leaf is not None
            with self.base.within({**self.base.slots, result.name: variable}):
                text = self.base.value(leaves[result.leaf].name)
            if text != variable:
                found[variable] = text
        return found

    @cached_property
    def sized(self) -> dict[str, tuple[str, int]]:
        """Where each free size is read: of a tensor as it is handed over."""
        found: dict[str, tuple[str, int]] = {}
        for node in self.graph:
            if node.op == "input" and self.value(node.name) not in self.regrouped:
                for axis, size in enumerate(node.type.shape):
                    found.setdefault(str(size), (node.name, axis))
        if not found.keys() >= self.graph.symbols.keys():
            raise UnsupportedError("a size of the backward is that of nothing that it is given")
        return {symbol: found[symbol] for symbol in self.graph.symbols}

    def symbol(self, symbol: str, inline: bool = False) -> str:
        name, axis = self.sized[symbol]
        return f"{self.value(name)}.shape[{axis}]"

    def _gradient(self, place: int, source: str) -> str:
        name = self.gradients.get(source)
        if name is None:
            return "None"
        text = self.value(name)
        if len(self.gradients) == 1:
            return text
        return f"{text} if {self._wanted([place])} else None"

    def _wanted(self, places: Iterable[int]) -> str:
        return " or ".join(f"{self.local['wanted']}[{i}]" for i in places)

    def _ordered(self, sources: Iterable[str]) -> tuple[int, ...]:
        """The places of tensors whose gradients are needed."""
        return tuple(sorted(map(self.order.index, sources)))

    def _reached(self, names: Iterable[str]) -> set[str]:
        """The sources whose gradients need one of these values."""
        every = [n for name in names for n in (name, self.graph.base(name)) if n in self.reach]
        return {source for name in every for source in self.reach[name]}

    def _always(self, needs: tuple[int, ...]) -> bool:
        """Whether a backward is never run without this."""
        return len(needs) in (0, len(self.gradients))

    @cached_property
    def timetable(self) -> Timetable:
        """The steps as they are printed, and what each of them is needed for."""
        printer = printer_for(self)
        with self.within({}):
            printed = [
                self.routines.invoke(s) if isinstance(s, Invoke) else printer.step(s)
                for s in self.lowered.steps
            ]
            ends = {source: _names(self.value(name)) for source, name in self.gradients.items()}
        made = [list(_written(step)) for step in self.lowered.steps]
        own = [self._reached(n for n in names if n in self.graph.by_name) for names in made]
        written = [{self.variable(name) for name in names} for names in made]
        return Timetable(printed, own, written, ends)

    def _steps(self) -> list[str]:
        """Each step under the gradients that it is for; what is read last is given back."""
        lines: list[str] = []
        before: tuple[int, ...] | None = None
        for needs, text, over in self.timetable.rows:
            own = self._ordered(needs)
            body = [*text, *([f"del {', '.join(over)}"] if over else [])]
            if self._always(own):
                lines += body
                before = None
                continue
            if own != before:
                lines.append(f"if {self._wanted(own)}:")
            lines += indented(body)
            before = own
        return lines


class Timetable:
    """Printed steps in order, each with the sources that it is needed for.

    `own` are the sources whose gradients depend on what a step makes, `written` the variables that
    it writes, `ends` those that the gradient of a source is read from. A step that makes several
    values needs all that it reads whichever of them is wanted.
    """

    def __init__(
        self,
        printed: list[list[str]],
        own: list[set[str]],
        written: list[set[str]],
        ends: dict[str, set[str]],
    ) -> None:
        self.printed, self.ends = printed, ends
        self.mentioned = [_names("\n".join(text)) for text in printed]
        self.needs = [set(of) for of in own]
        for i in range(len(printed) - 1, -1, -1):
            for variable in written[i]:
                self.needs[i] |= self.needed(variable, behind=i)

    def needed(self, variable: str, behind: int = -1) -> set[str]:
        """The sources whose gradients need a variable, as later steps read it."""
        found = {source for source, names in self.ends.items() if variable in names}
        for i in range(behind + 1, len(self.printed)):
            if variable in self.mentioned[i]:
                found |= self.needs[i]
        return found

    @property
    def rows(self) -> Iterator[tuple[set[str], list[str], list[str]]]:
        """What each step is needed for, its lines, and the variables that none reads behind it."""
        last = {name: i for i, names in enumerate(self.mentioned) for name in names}
        kept = set().union(*self.ends.values())
        made: set[str] = set()
        for i, text in enumerate(self.printed):
            for statement in ast.parse("\n".join(text)).body:
                targets = statement.targets if isinstance(statement, ast.Assign) else ()
                made |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            over = sorted(name for name in made - kept if last[name] == i)
            yield self.needs[i], text, over


class TrainingWriter:
    """What a file for training has beside one for inference: functions, and what they read."""

    def __init__(self, base: ForwardWriter, step: TrainingStep) -> None:
        if base.on_host():
            raise UnsupportedError("a tensor that the forward reads lies on the host")
        self.saving = SavingWriter(base, step)
        self.backward = BackwardWriter(base, self.saving, step)

    @property
    def writers(self) -> tuple[SavingWriter, BackwardWriter]:
        return self.saving, self.backward

    @cached_property
    def functions(self) -> list[list[str]]:
        """Their definitions, as lines."""
        flows = tuple(i for i, _ in self.backward.flows)
        told = f"FLOWS = {flows}  # results whose gradients it takes"
        own = self.backward
        return [self.saving.fused, own.backward(), own.table(), [told], own.covers()]


def _written(step: Step) -> Iterator[str]:
    """What a step makes: values, or memory for them."""
    if isinstance(step, Alloc):
        yield step.buffer.name
    elif isinstance(step, Launch):
        yield from step.writes
    elif isinstance(step, Library):
        yield step.output
    elif isinstance(step, Invoke):
        yield from step.results
    elif isinstance(step, Choice):
        for inner in (*step.steps, *step.otherwise):
            yield from _written(inner)
    elif isinstance(step, Panels):
        yield from (step.product.name, *step.launch.writes)
    elif isinstance(step, Slices):
        yield from (step.product, *(b.name for b in step.outputs))


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
