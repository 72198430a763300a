"""Routines as Python functions, and the lines that call them.

In: the routines of a model, and who invokes them. Out: a function for each. What all of its users
call the same keeps that name inside of it. Anything else is called by what it is to the routine:
`x` for a value, `weight` for a parameter, `out` for what it leaves.
"""

from __future__ import annotations

import builtins
import keyword
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.emit import paste
from kernelwright.emit.arguments import GLOBALS
from kernelwright.emit.device_steps import printer_for
from kernelwright.emit.freed import freed
from kernelwright.emit.lines import docstring, filled, indented
from kernelwright.emit.names import Names
from kernelwright.emit.steps import BODY
from kernelwright.emit.values import python
from kernelwright.graph import fresh_name
from kernelwright.lower.lowered import Lowered
from kernelwright.lower.routines import Routine
from kernelwright.lower.steps import Invoke

WIDTH, INSIDE = 92, " " * 4  # of the lines of a docstring, and where they begin

VALUES = "xyz"
PREFIX = len("_kw")  # what a name of the file is longer by in the end


@dataclass(frozen=True)
class Function:
    """A routine in Python: its name, what all of it shares, the places of targets that differ."""

    name: str
    shared: tuple[str, ...]
    differing: tuple[int, ...]
    lines: tuple[str, ...]


NONE: Mapping[str, Function] = MappingProxyType({})


class RoutineWriter:
    """Prints the routines of one graph and the lines that call them.

    Those that were `printed` for another graph are not printed again where they are the same.
    """

    def __init__(
        self, names: Names, lowered: Lowered, printed: Mapping[str, Function] = NONE
    ) -> None:
        self.names, self.graph = names, names.graph
        self.users: dict[str, list[Invoke]] = {r.name: [] for r in lowered.routines}
        for step in lowered.steps:
            if isinstance(step, Invoke):
                self.users[step.routine].append(step)
        taken = {*GLOBALS, *names.every(), *paste.names(names.device)}
        called = {r.name: fresh_name(f"_{r.name}", taken) for r in lowered.routines}
        taken |= printed.keys()
        self.functions = {r.name: self.function(r, called[r.name]) for r in lowered.routines}
        for routine in lowered.routines:
            own = self.functions[routine.name]
            if printed.get(own.name, own) != own:
                other = fresh_name(own.name, taken)
                self.functions[routine.name] = self.function(routine, other)
        self.printed = {**printed, **{f.name: f for f in self.functions.values()}}
        self.own = [f for f in self.functions.values() if f.name not in printed]

    def __iter__(self) -> Iterator[Function]:
        return iter(self.own)

    def invoke(self, step: Invoke) -> list[str]:
        function = self.functions[step.routine]
        targets = [python(step.targets[i]) for i in function.differing]
        given = [*function.shared, *map(self.names.value, step.given), *targets]
        made = ", ".join(map(self.names.variable, step.results))
        left = f"{made} = " if made else ""
        return filled(f"{left}{function.name}(", given, ")", margin=BODY + PREFIX)

    def function(self, routine: Routine, name: str) -> Function:
        users = self.users[routine.name]
        slots, inside = self.slots(routine, users)
        differing = [i for i, same in enumerate(zip(*(u.targets for u in users), strict=True))
                     if len(set(same)) > 1]  # fmt: skip
        targets = {routine.targets[i]: fresh_name("target", inside) for i in differing}
        with self.names.within(slots):
            printer = printer_for(self.names, targets)
            body = [line for step in routine.steps for line in printer.step(step)]
            given = [self.names.value(p) for p in routine.parameters]
            results = ", ".join(self.names.variable(r) for r in routine.results)
            left = [f"return {results}"] if results else []
        locals = [self.names.local[word] for word in (*self.graph.symbols, "device", "kept")]
        shared = [name for name in locals if re.search(rf"\b{name}\b", "\n".join(body))]
        given = [*shared, *given, *targets.values()]
        head = filled(f"def {name}(", given, "):", margin=PREFIX)
        lines = [*head, *indented([self.about(routine), *body, *left])]
        return Function(name, tuple(shared), tuple(differing), tuple(freed(lines)))

    def about(self, routine: Routine) -> str:
        text = textwrap.wrap(self.summary(routine), WIDTH, subsequent_indent=INSIDE)
        return docstring("\n".join(text), end="")

    def summary(self, routine: Routine) -> str:
        """What it computes for the first of its users, in the words of the user's program."""
        made = routine.results or routine.temporaries
        known = [self.graph[name].origin for name in made if name in self.graph.by_name]
        others = len(self.users[routine.name]) - 1
        more = f", and {others} more like it" if others else ""
        return f"{', '.join(dict.fromkeys(map(str, known)))}{more}."

    # ---- names -------------------------------------------------------------------------------

    def slots(self, routine: Routine, users: list[Invoke]) -> tuple[dict[str, str], set[str]]:
        """What values are called inside of the routine, and all names that are in use there."""
        inside = {*GLOBALS, *self.names.local.values(), *dir(builtins), *keyword.kwlist}
        found: dict[str, str] = {}
        given = zip(routine.parameters, zip(*(u.given for u in users), strict=True), strict=True)
        for own, theirs in given:
            plain = next((letter for letter in VALUES if letter not in inside), "value")
            found[own] = fresh_name(self.role(theirs) or plain, inside)
        left = zip(routine.results, zip(*(u.results for u in users), strict=True), strict=True)
        for own, theirs in left:
            found[own] = fresh_name(self.common(theirs) or "out", inside)
        if len(users) > 1:
            for own in routine.temporaries:
                found[own] = fresh_name(_last_word(own), inside)
        return found, inside

    def common(self, names: tuple[str, ...]) -> str | None:
        """What all users call a value, if they agree."""
        called = {self.names.value(name) for name in names}
        return called.pop() if len(called) == 1 else None

    def role(self, names: tuple[str, ...]) -> str | None:
        """What all users call it, or the attribute that it is of every user's module."""
        targets = {self.graph.targets.get(name, "").rpartition(".")[2] for name in names}
        attribute = targets.pop() if len(targets) == 1 else ""
        return self.common(names) or (attribute if attribute.isidentifier() else None)


def _last_word(name: str) -> str:
    word = name.rpartition("_")[2]
    return word if word.isidentifier() else "part"
