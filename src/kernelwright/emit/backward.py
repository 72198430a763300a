"""The functions of a training step: the forward that keeps values, and the backward that reads them.

In: what was lowered for both, and the writer of the forward as it is for inference. Out: the texts of
`saving` and `backward` with their routines, and the table of what the one keeps for the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from kernelwright.emit.forward import ForwardWriter
from kernelwright.emit.lines import filled, indented, listed
from kernelwright.emit.names import Names
from kernelwright.emit.routines import RoutineWriter
from kernelwright.emit.steps import StepPrinter
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

    called, about = "saving", "The steps of a call with gradients, which hands back what they read."

    def __init__(self, base: ForwardWriter, step: TrainingStep) -> None:
        of = (base.problem, step.forward, step.saving, base.device, base.names)
        super().__init__(*of)
        self.base, self.made = base, step.found.made
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

    def _handed_back(self) -> list[tuple[str, str]]:
        """Whoever gets a result may change it, and whoever gave a tensor too: copies are kept."""
        found = super()._handed_back()
        given = {self.graph.base(result.name) for result in self.results}
        for name in self.made:
            base = self.graph.base(name)
            own = base not in given and self.graph[base].op not in SOURCES
            found.append((name, self.value(name) + ("" if own else ".clone()")))
        return found


class BackwardWriter(Names):
    """Prints the backward: cotangents and what was kept in, gradients out."""

    def __init__(self, base: ForwardWriter, saving: SavingWriter, step: TrainingStep) -> None:
        self.base, self.saving, self.step = base, saving, step
        self.problem, self.names, self.device = base.problem, base.names, base.device
        self.plan, self.graph = step.backward, step.backward.graph
        self.arguments, self.direct = base.arguments, base.direct
        self.leaves, self.results = {}, []
        self.known, self.slots, self.recorded_on = {}, {}, ""
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
        leaves = pytree.tree_leaves(self.base.graph.outputs)
        given = self.step.found.cotangents
        pairs = [(i, r) for i, r in enumerate(self.base.results) if r.leaf is not None]
        found = [(i, given.get(leaves[r.leaf].name, "")) for i, r in pairs if r.leaf is not None]
        return [(i, name) for i, name in found if name in self.graph.by_name]

    # ---- what is kept --------------------------------------------------------------------------

    def kept(self) -> list[tuple[str, str, int, tuple[int, ...]]]:
        """For each value that is handed over: its name, where it is found, and what needs it."""
        leaves = pytree.tree_leaves(self.base.graph.outputs)
        results = {leaves[r.leaf].name: i for i, r in enumerate(self.base.results)
                   if r.leaf is not None}  # fmt: skip
        sized = {name for name, _ in self.graph.symbols.values()}
        everything = tuple(map(self.order.index, self.gradients))
        rows = []
        for saved in self.step.found.saved:
            needs = tuple(map(self.order.index, self.reach[saved.value]))
            name, needs = saved.value, everything if saved.value in sized else needs
            if name in self.order:
                rows.append((name, "copy" if saved.copied else "tensor", self.order.index(name), needs))
            elif name in results:
                rows.append((name, "result", results[name], needs))
            else:
                rows.append((name, "made", self.step.found.made.index(name), needs))
        return rows

    def table(self) -> list[str]:
        """What a call keeps for its backward, and why."""
        lines = ["# Where each value that the backward reads is found, and which gradients need it.", "KEPT = ("]
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
        return [*head, '    """Whether the backward holds for tensors of these sizes."""', f"    return {text}"]

    # ---- the function --------------------------------------------------------------------------

    def backward(self) -> list[str]:
        given = [self.value(name) for _, name in self.flows]
        kept = [self.variable(row[0]) for row in self.kept()]
        head = filled("def backward(", [self.local["wanted"], *given, *kept], "):", margin=0)
        lines = [*head, '    """The gradients that are wanted: cotangents and what was kept in."""']
        lines += self._regrouped()
        lines += [f"    {self.local[s]} = {self.symbol(s)}" for s in self.graph.symbols]
        with self.within({}):
            lines += indented(self._steps())
            made = [self._gradient(place, source) for place, source in enumerate(self.order)]
        return [*lines, *listed("    ", "return (", made, ")", margin=0)]

    def _regrouped(self) -> list[str]:
        """Cotangents as those of the outputs, where results are regroupings of these."""
        leaves = pytree.tree_leaves(self.base.graph.outputs)
        lines = []
        for i, name in self.flows:
            result, variable = self.base.results[i], self.value(name)
            assert result.leaf is not None
            slots = {**self.base.slots, result.name: variable}
            with self.base.within(slots):
                text = self.base.value(leaves[result.leaf].name)
            if text != variable:
                lines.append(f"    {variable} = {text}")
        return lines

    def _gradient(self, place: int, source: str) -> str:
        name = self.gradients.get(source)
        if name is None:
            return "None"
        text = self.value(name)
        return text if self._always(self._needs([name])) else f"{text} if {self._wanted([place])} else None"

    def _wanted(self, places: Iterable[int]) -> str:
        return " or ".join(f"{self.local['wanted']}[{i}]" for i in places)

    def _needs(self, names: Iterable[str]) -> tuple[int, ...]:
        """The places of the tensors whose gradients need one of these values."""
        found = {s for name in names for s in self.reach.get(self.graph.base(name), ())}
        found |= {s for name in names for s in self.reach.get(name, ())}
        return tuple(i for i, source in enumerate(self.order) if source in found)

    def _always(self, needs: tuple[int, ...]) -> bool:
        """Whether a backward is never run without this."""
        return len(needs) in (0, len(self.gradients))

    def _steps(self) -> list[str]:
        """Each step under the gradients that it is for; what is read last is given back."""
        printer = StepPrinter(self)
        steps = list(self.lowered.steps)
        needs = _spread([self._needs(_written(step, self)) for step in steps], steps)
        printed = [self.routines.invoke(s) if isinstance(s, Invoke) else printer.step(s) for s in steps]
        ends = {self.value(ref.name) for ref in self.graph.outputs}
        freed = _freed(printed, {name for text in ends for name in _names(text)})
        lines: list[str] = []
        before: tuple[int, ...] | None = None
        for own, text, over in zip(needs, printed, freed, strict=True):
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


def training(base: ForwardWriter, step: TrainingStep) -> list[list[str]]:
    """All that a file for training has beside one for inference, as the lines of its definitions."""
    saving = SavingWriter(base, step)
    backward = BackwardWriter(base, saving, step)
    flows = f"FLOWS = {tuple(i for i, _ in backward.flows)}  # results whose gradients it takes"
    routines = [list(lines) for lines in (*saving.routines, *backward.routines)]
    made = [saving.fused(), backward.backward(), backward.table(), [flows], backward.covers()]
    return [*routines, *made]


def _written(step: Step, names: Names) -> Iterator[str]:
    """The values of the graph that a step makes; memory for one is asked for by another step."""
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
            yield from _written(inner, names)
    elif isinstance(step, Panels):
        yield from (step.product.name, *step.launch.writes)
    elif isinstance(step, Slices):
        yield from (step.product, *(b.name for b in step.outputs))


def _spread(needs: list[tuple[int, ...]], steps: list[Step]) -> list[tuple[int, ...]]:
    """Memory without a value of its own is needed for what is launched next."""
    found = list(needs)
    for i in range(len(found) - 2, -1, -1):
        if not found[i] and isinstance(steps[i], Alloc):
            found[i] = found[i + 1]
    return found


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _freed(printed: list[list[str]], ends: set[str]) -> list[list[str]]:
    """For each step the variables that no later one reads, and that are not handed back."""
    made: set[str] = set()
    last: dict[str, int] = {}
    for i, text in enumerate(printed):
        for statement in ast.parse("\n".join(text)).body:
            if isinstance(statement, ast.Assign):
                names = (n for target in statement.targets for n in ast.walk(target))
                made |= {n.id for n in names if isinstance(n, ast.Name)}
        last |= dict.fromkeys(_names("\n".join(text)), i)
    over: list[list[str]] = [[] for _ in printed]
    for name in sorted(made - ends):
        over[last[name]].append(name)
    return over
