"""The way that a call like the example takes: kernels in runs, each one function of C++.

A step that has a condition is in no run.

In: the steps of a call, and the example's sizes. Out: for every stretch of kernels between two
calls that only torch can make a Run, as C++ and as the line of Python that starts it; the steps
around them; and the conditions under which a call goes this way. Any other takes one step by one.

What only the kernels of a run see lies in memory that the run takes for itself; values of one size
make room for each other there. Routines are functions in C++ as they are in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from kernelwright.emit.cpp import comment, dim, fit
from kernelwright.emit.device_steps import DevicePrinter
from kernelwright.emit.lines import filled, indented
from kernelwright.emit.names import Names
from kernelwright.emit.programs import RESERVED
from kernelwright.emit.routines import RoutineWriter
from kernelwright.emit.steps import DEEPEST
from kernelwright.graph import Dim, View, product, refs
from kernelwright.lower.lowered import Lowered
from kernelwright.lower.routines import Routine
from kernelwright.lower.steps import (
    DECISIONS,
    WORKSPACE,
    Alloc,
    Choice,
    Decide,
    Guard,
    Invoke,
    Kept,
    Launch,
    Library,
    Step,
)
from kernelwright.plan.model import Buffer

OWN = {"run", "inside", "how", "kept_halves", "kept_scales", *DECISIONS, *WORKSPACE}
OPENING = """\
extern "C" void watch_launches(void (*watcher)(const char* name)) { kw::watcher = watcher; }
extern "C" const char* last_launch() { return kw::last_launch; }"""
PARAMETERS = "void* const* tensors, const int64_t* numbers, int64_t* room"

Tests = list[tuple[tuple[Guard, ...], bool]]


@dataclass
class Straight:
    """Steps without a choice, and the choices that were taken: their guards, and how they went."""

    steps: list[Step] = field(default_factory=list)
    tests: Tests = field(default_factory=list)
    of: list[int] = field(default_factory=list)  # for each the place of what it stands in

    def only(self, kind: type) -> list[Step]:
        return [s for s in self.steps if isinstance(s, kind)]

    @property
    def buffers(self) -> dict[str, Buffer]:
        return {s.buffer.name: s.buffer for s in self.steps if isinstance(s, Alloc)}


@dataclass
class Run:
    """Kernels and routines of kernels in a row."""

    steps: list[Launch | Invoke] = field(default_factory=list)
    name: str = ""


class RunWriter:
    """The main way of one model, as Python and as C++."""

    def __init__(
        self,
        names: Names,
        lowered: Lowered,
        routines: RoutineWriter,
        called: str,
        conditions: Sequence[str] = (),
    ) -> None:
        self.names, self.graph, self.called = names, names.graph, called
        self.lowered, self.writer = lowered, routines
        self.conditions = conditions or [""] * len(lowered.steps)  # of steps, as Python
        self.printer = DevicePrinter(names)
        self.example = names.example
        self.routines = {r.name: r for r in lowered.routines}
        found = {name: self.straight(r.steps) for name, r in self.routines.items()}
        self.alone = {name: way for name, way in found.items() if self.is_alone(way)}
        self.buffers: dict[str, Buffer] = {}
        self.pieces: list[Run | Step] = []
        self.under: list[str] = []  # for each piece its condition
        self.divide()
        self.touched = self._touched()
        runs = [p for p in self.pieces if isinstance(p, Run)]
        for i, run in enumerate(runs):
            run.name = f"{called}_{i + 1}" if len(runs) > 1 else called

    # ---- which steps -------------------------------------------------------------------------

    def straight(self, steps: Sequence[Step]) -> Straight:
        """The steps as the example takes them; memory that is asked for again has another name."""
        found = Straight()
        again: dict[str, str] = {}
        counts: dict[str, int] = {}
        chosen = ((i, s) for i, top in enumerate(steps) for s in self._chosen([top], found.tests))
        for i, step in chosen:
            if isinstance(step, Alloc) and step.buffer.name in WORKSPACE:
                name = step.buffer.name
                counts[name] = counts.get(name, 0) + 1
                again[name] = f"{name}_{counts[name]}" if counts[name] > 1 else name
                step = replace(step, buffer=replace(step.buffer, name=again[name]))
            elif isinstance(step, Launch):
                reads = tuple(again.get(n, n) for n in step.reads)
                step = replace(
                    step, reads=reads, writes=tuple(again.get(n, n) for n in step.writes)
                )
            found.steps.append(step)
            found.of.append(i)
        return found

    def _chosen(self, steps: Sequence[Step], tests: Tests) -> Iterator[Step]:
        for step in steps:
            if isinstance(step, Choice):
                taken = all(map(self.holds, step.guards))
                tests.append((step.guards, taken))
                yield from self._chosen(step.steps if taken else step.otherwise, tests)
            else:
                yield step

    def holds(self, guard: Guard) -> bool:
        """Whether the example meets a condition, on the machine that this is for."""
        if guard.kind not in ("<=", ">="):
            return True
        size = self.of_example(guard.size)
        return size <= guard.limit if guard.kind == "<=" else size >= guard.limit

    def of_example(self, size: Dim) -> int:
        if isinstance(size, int):
            return size
        return int(size.subs({s: self.example[str(s)] for s in size.free_symbols}))

    def is_alone(self, way: Straight) -> bool:
        """Whether these are kernels and their memory, all on values as they lie in memory."""
        known = all(isinstance(s, Alloc | Launch | Decide | Kept) for s in way.steps)
        once = all(len(way.only(kind)) <= 1 for kind in (Decide, Kept))
        launches = [s for s in way.steps if isinstance(s, Launch)]
        return known and once and all(self.lies(n) for s in launches for n in s.reads)

    def lies(self, name: str) -> bool:
        """Whether a value is in the memory of what it is a view of, element by element."""
        while name in self.graph.by_name and self.graph[name].op == "view":
            node, view = self.graph[name], self.graph[name].payload
            assert isinstance(view, View)
            inner = self.graph[node.inputs[0]]
            same = view.kind != "permute" and node.type.shape == inner.type.shape
            if view.kind != "reshape" and not same:
                return False
            name = inner.name
        return True

    def base(self, name: str) -> str:
        return self.graph.base(name) if name in self.graph.by_name else name

    # ---- runs --------------------------------------------------------------------------------

    def divide(self) -> None:
        """The steps as runs, and those between them; a kernel that is alone is Python's."""
        run = Run()
        made: set[str] = set()
        way = self.straight(self.lowered.steps)
        for step, place in zip(way.steps, way.of, strict=True):
            if isinstance(step, Alloc):
                self.buffers[step.buffer.name] = step.buffer
                continue
            alone = isinstance(step, Launch) or (
                isinstance(step, Invoke) and step.routine in self.alone
            )
            alone = alone and not self.conditions[place]
            reads = self.reads(step)
            if not alone or any(not self.lies(n) and self.base(n) in made for n in reads):
                self.finish(run)
                run, made = Run(), set()
            if not alone:
                self.pieces.append(step)
                self.under.append(self.conditions[place])
                continue
            assert isinstance(step, Launch | Invoke)
            run.steps.append(step)
            made |= {*(step.writes if isinstance(step, Launch) else step.results)}
        self.finish(run)

    def finish(self, run: Run) -> None:
        kernels = 0
        for step in run.steps:
            inside = self.alone[step.routine].only(Launch) if isinstance(step, Invoke) else [step]
            kernels += len(inside)
        if kernels < 2:
            self.pieces += run.steps
            self.under += [""] * len(run.steps)
            return
        self.pieces.append(run)
        self.under.append("")
        for step in run.steps:
            if isinstance(step, Invoke):
                self.buffers |= dict(self.left(step))

    def reads(self, step: Step) -> list[str]:
        if isinstance(step, Launch):
            return [*step.reads]
        if isinstance(step, Invoke):
            return [*step.given]
        assert isinstance(step, Library), f"{step} in the steps of a call on a GPU"
        return [*refs((step.call.args, step.call.kwargs))]

    def left(self, step: Invoke) -> Iterator[tuple[str, Buffer]]:
        """What a routine of kernels leaves, by the names of whoever invokes it."""
        own = self.routines[step.routine]
        buffers = self.alone[own.name].buffers
        for inside, name in zip(own.results, step.results, strict=True):
            if inside in buffers:
                yield name, replace(buffers[inside], name=name)

    def _touched(self) -> dict[str, list[int]]:
        """For each value the pieces that see it; the last number stands for the results."""
        found: dict[str, list[int]] = {}
        for i, piece in enumerate(self.pieces):
            for step in piece.steps if isinstance(piece, Run) else [piece]:
                for name in map(self.base, self.seen(step)):
                    found.setdefault(name, []).append(i)
        ends = [*self.names.returned, *(n for _, n in self.graph.mutations)]
        for name in map(self.base, ends):
            found.setdefault(name, []).append(len(self.pieces))
        return found

    def seen(self, step: Step) -> list[str]:
        if isinstance(step, Launch):
            return [*step.reads, *step.writes]
        if isinstance(step, Invoke):
            return [*step.given, *step.results]
        assert isinstance(step, Library)
        return [*self.reads(step), step.output]

    # ---- conditions --------------------------------------------------------------------------

    @property
    def tests(self) -> list[str]:
        """When a call goes this way, as conditions in Python."""
        steps = [s for p in self.pieces if isinstance(p, Run) for s in p.steps]
        used = dict.fromkeys(s.routine for s in steps if isinstance(s, Invoke))
        found: dict[str, None] = {}
        if any(self.alone[name].only(Kept) for name in used):
            count = len(self.lowered.frozen)
            found[f"len({self.printer.kept}) in (0, {count})"] = None
        for name in used:
            for guards, taken in self.alone[name].tests:
                texts = [self.printer.guard(_either_way(g, taken)) for g in guards]
                found |= dict.fromkeys(texts if taken else [f"not ({' and '.join(texts)})"])
        return sorted(found, key=lambda text: text != "GENERATED_GEMM")

    # ---- as Python ---------------------------------------------------------------------------

    def python(self) -> list[str]:
        lines: list[str] = []
        for i, (piece, under) in enumerate(zip(self.pieces, self.under, strict=True)):
            for name, buffer in self.buffers.items():
                at = self.touched.get(name, [])
                if at and at[0] == i and not self.is_inside(name):
                    lines += self.printer.alloc(buffer)
            text = self.piece(piece)
            if under:
                text = [f"if {under}:", *indented(text)]
            lines += text
        return lines

    def piece(self, piece: Run | Step) -> list[str]:
        if isinstance(piece, Run):
            return self.started(piece)
        if isinstance(piece, Invoke):
            return self.writer.invoke(piece)
        return self.printer.step(piece)

    def is_inside(self, name: str) -> bool:
        """Whether only the kernels of one run see a value."""
        at = self.touched.get(name, [-1])
        only = at[0] == at[-1] < len(self.pieces)
        return name in self.buffers and only and isinstance(self.pieces[at[0]], Run)

    def started(self, run: Run) -> list[str]:
        operands = [*map(self.printer.operand, self.operands(run))]
        for step in self.kept(run):
            found = ", ".join(self.printer.halves_of(step))
            operands.append(f"*halves_of({found})")
        sizes = [self.names.local[s] for s in self.sizes(run)]
        decided = self.decided(run)
        sizes += [f"*{self.names.local['how']}"] if decided else []
        sizes += [f"{self.printer.kept} != {{}}"] if self.kept(run) else []
        return [*decided, *self.printer.started("run", run.name, operands, sizes)]

    def decided(self, run: Run) -> list[str]:
        """How the products of a run are launched, three numbers for each of their routines."""
        found = []
        for decide in self.decisions(run).values():
            frozen = f"{self.printer.kept} != {{}}" if isinstance(decide.frozen, str) else "False"
            found.append((decide, frozen))
        how = self.names.local["how"]
        lines = []
        for decide, frozen in found:
            given = self.printer.decision(decide, frozen)
            opening = f"{how} = " if len(found) == 1 else "*"
            lines += filled(f"{opening}product_launch(", given, ")[:3]", margin=DEEPEST)
            lines[-1] += "" if len(found) == 1 else ","
        return lines if len(found) < 2 else [f"{how} = (", *indented(lines), ")"]

    def operands(self, run: Run) -> list[str]:
        """What comes from outside or goes there, by the names under which it is first seen."""
        found: dict[str, str] = {}
        for step in run.steps:
            for name in self._used(step):
                base = self.base(name)
                if not self.is_inside(base):
                    key = base if self.lies(name) else name
                    found.setdefault(key, key)
        return [*found]

    def _used(self, step: Launch | Invoke) -> list[str]:
        """The values that C++ is handed for a step, those of a routine that it looks at."""
        if isinstance(step, Launch):
            return self.seen(step)
        own = self.routines[step.routine]
        given = dict(zip(own.parameters, step.given, strict=True))
        return [*(given[p] for p in self.parameters(own)), *(n for n, _ in self.left(step))]

    def parameters(self, routine: Routine) -> list[str]:
        """Those that its kernels on this way see."""
        launches = [s for s in self.alone[routine.name].steps if isinstance(s, Launch)]
        seen = {self.base(n) for s in launches for n in self.seen(s)}
        return [p for p in routine.parameters if p in seen]

    def kept(self, run: Run) -> list[Kept]:
        """The weights of a run that may be frozen, in the names of whoever invokes the routine."""
        found = []
        for step in run.steps:
            if not isinstance(step, Invoke):
                continue
            own = self.routines[step.routine]
            given = dict(zip(own.parameters, step.given, strict=True))
            targets = dict(zip(own.targets, step.targets, strict=True))
            for one in self.alone[own.name].only(Kept):
                assert isinstance(one, Kept)
                place = targets[one.target]
                found.append(replace(one, target=place, weight=given[one.weight]))
        return found

    def decisions(self, run: Run) -> dict[str, Decide]:
        """What is decided for each routine that is invoked."""
        used = dict.fromkeys(s.routine for s in run.steps if isinstance(s, Invoke))
        pairs = ((name, self.alone[name].only(Decide)) for name in used)
        return {name: one for name, of in pairs for one in of if isinstance(one, Decide)}

    def sizes(self, run: Run) -> list[str]:
        text = "\n".join(self.body(run))
        return [s for s in self.graph.symbols if re.search(rf"\b{s}\b", text)]

    # ---- as C++ ------------------------------------------------------------------------------

    def cxx(self) -> str:
        """The functions of all runs, and what tells of them."""
        runs = [p for p in self.pieces if isinstance(p, Run)]
        steps = [s for run in runs for s in run.steps]
        used = dict.fromkeys(s.routine for s in steps if isinstance(s, Invoke))
        functions = [self.function(self.routines[name]) for name in used]
        texts = ["\n".join(lines) for lines in (*functions, *map(self.entry, runs))]
        kernels = dict.fromkeys(re.findall(r"\blaunch_\w+", "\n".join(texts)))
        declared = [f'extern "C" int {k}(void* const* tensors, const int64_t* numbers);'
                    for k in kernels]  # fmt: skip
        if not texts:
            return ""
        text = "\n\n".join([*(["\n".join(declared)] if declared else []), *texts])
        return f"namespace of_{self.called} {{\n\n{text}\n\n}}"

    def function(self, routine: Routine) -> list[str]:
        """A routine: kernels on values of a run."""
        way = self.alone[routine.name]
        slots, _ = self.writer.slots(routine, self.writer.users[routine.name])
        with self.names.within(slots):
            body = self.statements(routine)
            values = [*self.parameters(routine), *(r for r in routine.results if r in way.buffers)]
            given = [f"void* {self.pointer(name)}" for name in values]
        sizes = [f"int64_t {s}" for s in self.symbols(body)]
        how = ["const int64_t* how"] * bool(way.only(Decide))
        kept = ["bool frozen", "void* kept_halves", "void* kept_scales"] * bool(way.only(Kept))
        head = f"static void start_{routine.name}("
        parameters = ", ".join(["kw::Run& run", *sizes, *how, *kept, *given])
        lines = _wrapped(f"{head}{parameters}) {{")
        room = ["  const kw::Inside inside(run);"] * any("run.take(" in line for line in body)
        about = fit(f"// {comment(self.writer.summary(routine))}")
        return [*about, *lines, *room, *body, "}"]

    def statements(self, routine: Routine) -> list[str]:
        """Its steps; what it leaves lies where it is told."""
        lines: list[str] = []
        for step in self.alone[routine.name].steps:
            if isinstance(step, Alloc):
                lines += [] if step.buffer.name in routine.results else self.taken(step.buffer)
            elif isinstance(step, Kept):
                for buffer, side in ((step.halves, "kept_halves"), (step.scales, "kept_scales")):
                    make = f"frozen ? {side} : run.take({_bytes(buffer)})"
                    lines += fit(f"  void* const {self.pointer(buffer.name)} = {make};")
            elif isinstance(step, Decide):
                pairs = ", ".join(f"{name} = how[{i}]" for i, name in enumerate(DECISIONS[:3]))
                lines.append(f"  const int64_t {pairs};")
            elif isinstance(step, Launch):
                lines += self.launched(step)
        return lines

    def taken(self, buffer: Buffer) -> list[str]:
        return fit(f"  void* const {self.pointer(buffer.name)} = run.take({_bytes(buffer)});")

    def launched(self, step: Launch) -> list[str]:
        operands = ", ".join(self.pointer(n) for n in (*step.reads, *step.writes))
        sizes = [s if isinstance(s, str) else dim(s, "") for s in step.sizes]
        head = f'  run.launch("launch_{step.kernel}", launch_{step.kernel}, '
        return _wrapped(", ".join([f"{head}{{{operands}}}", *sizes]) + ");")

    def entry(self, run: Run) -> list[str]:
        """The function that Python calls."""
        operands, kept = self.operands(run), self.kept(run)
        sizes, decisions = self.sizes(run), self.decisions(run)
        lines = [
            f"  void* const {self.pointer(n)} = run.given({i});" for i, n in enumerate(operands)
        ]
        memory = len(operands) + 2 * len(kept)
        lines += [f"  const int64_t {s} = numbers[{i}];" for i, s in enumerate(sizes)]
        for i, name in enumerate(decisions):
            lines.append(f"  const int64_t* const how_{name} = numbers + {len(sizes) + 3 * i};")
        last = len(sizes) + 3 * len(decisions)
        if kept:
            lines.append(f"  const bool frozen = numbers[{last}] != 0;")
        head = f"  kw::Run run(tensors, {memory}, numbers + {last + bool(kept)});"
        opening = f'extern "C" int run_{run.name}({PARAMETERS}) {{'
        return [opening, head, *lines, *self.body(run), "  return run.ended(room);", "}"]

    def body(self, run: Run) -> list[str]:
        """The kernels and routines of a run; memory that is over is used again."""
        last: dict[str, int] = {}
        for i, step in enumerate(run.steps):
            last |= {self.base(n): i for n in self._used(step)}
        place: dict[str, str] = {}
        lines: list[str] = []
        kept = len(self.operands(run))
        for i, step in enumerate(run.steps):
            for name in dict.fromkeys(map(self.base, self._used(step))):
                if self.is_inside(name) and name not in place:
                    lines += self.placed(name, i, last, place)
            if isinstance(step, Launch):
                lines += self.launched(step)
            else:
                lines += self.invoked_with(step, kept)
                kept += 2 * len(self.alone[step.routine].only(Kept))
        return lines

    def placed(
        self, name: str, now: int, last: Mapping[str, int], place: dict[str, str]
    ) -> list[str]:
        """Memory for a value: that of another of its size that is over, or more."""
        size = _bytes(self.buffers[name])
        others = [n for n, at in place.items() if last[n] < now and at == size]
        place[name] = size
        if not others:
            return self.taken(self.buffers[name])
        place[others[0]] = ""  # is another's from here on
        return fit(f"  void* const {self.pointer(name)} = {self.pointer(others[0])};  // is over")

    def invoked_with(self, step: Invoke, kept: int) -> list[str]:
        own, way = self.routines[step.routine], self.alone[step.routine]
        with self.names.within(self.writer.slots(own, self.writer.users[own.name])[0]):
            sizes = self.symbols(self.statements(own))
        given = ["run", *sizes, *[f"how_{own.name}"] * bool(way.only(Decide))]
        if way.only(Kept):
            given += ["frozen", f"run.given({kept})", f"run.given({kept + 1})"]
        given += map(self.pointer, self._used(step))
        return _wrapped(f"  start_{own.name}({', '.join(given)});")

    def symbols(self, lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        return [s for s in self.graph.symbols if re.search(rf"\b{s}\b", text)]

    def pointer(self, name: str) -> str:
        """What a value is called in C++: as in Python, if it may."""
        if name not in self.graph.by_name and name.rpartition("_")[0] in WORKSPACE:
            return name
        if name in WORKSPACE and name not in self.graph.by_name:
            return name
        text = name
        if self.lies(name):
            text = self.names.variable(self.base(name))
        taken = {*RESERVED, *OWN, *self.graph.symbols, "tensors", "numbers", "room", "frozen"}
        text = re.sub(r"\W", "_", text)
        return f"{text}_" if text in taken else text


def _either_way(guard: Guard, taken: bool) -> Guard:
    """A limit that holds, or does not hold, whether a weight is frozen or not."""
    if not guard.frozen:
        return guard
    strict = max if (guard.kind == ">=") == taken else min
    return replace(guard, frozen="", limit=strict(guard.limit, guard.frozen_limit))


def _bytes(buffer: Buffer) -> str:
    count = product(buffer.shape)
    size = count * buffer.dtype.itemsize
    text = dim(size if isinstance(size, int) else sympy.sympify(size), "")
    return text.removeprefix("(").removesuffix(")") if text.count("(") == 1 else text


def _wrapped(line: str) -> list[str]:
    """A call whose arguments may need several lines."""
    return fit(line, 100)
