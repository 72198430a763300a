"""What a compiler says of a generated unit, with the line of the Python file that holds its text.

In: the words of gcc, clang or nvcc, and the file. Out: the first errors, each as `file.py:120:` and
below it the compiler's own lines. A unit is put together from texts that stand in the file, so the
line that the compiler quotes is found there again; where it occurs more than once, the occurrence
as far from its place in the unit as other errors' lines are from theirs is the one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

ERROR = re.compile(
    r"(?P<unit>[^\s:()][^:()]*)(?:\((?P<nvcc>\d+)\)|:(?P<gcc>\d+)(?::\d+)?): (?:fatal )?error\b"
)
QUOTED = re.compile(r"\s*(?:\d+ \| ?)?(?P<text>.*)")
SHOWN = 3


@dataclass
class Diagnosis:
    """One error: the compiler's lines, where it is in its unit, and the line that it quotes."""

    unit: str
    number: int
    lines: list[str]
    found: list[int] = field(default_factory=list)

    @property
    def quoted(self) -> str:
        match = QUOTED.fullmatch(self.lines[1]) if len(self.lines) > 1 else None
        return match["text"].strip() if match else ""


def in_file(said: str, name: str, text: str) -> str | None:
    """The first errors with their lines in a file of this text; None if there are none in it."""
    errors = _errors(said.splitlines())
    places = defaultdict(list)
    for number, line in enumerate(text.splitlines(), 1):
        places[line.strip()].append(number)
    for error in errors:
        error.found = places[error.quoted] if error.quoted else []
    shifts = _shifts(errors)
    known = [error for error in errors if error.found]
    shown = [_shown(error, _nearest(error, shifts), name) for error in known[:SHOWN]]
    more = [f"and {len(known) - SHOWN} more errors"] if len(known) > SHOWN else []
    return "\n".join([*shown, *more]) or None


def _errors(lines: Sequence[str]) -> list[Diagnosis]:
    """Each with the two lines behind it, the line that it quotes and the mark below that."""
    found = []
    for i, line in enumerate(lines):
        if match := ERROR.match(line):
            behind = [text for text in lines[i + 1 : i + 3] if not ERROR.match(text)]
            number = int(match["nvcc"] or match["gcc"])
            found.append(Diagnosis(match["unit"], number, [line, *behind]))
    return found


def _shifts(errors: Sequence[Diagnosis]) -> dict[str, Counter[int]]:
    """How far lines of a unit are from their places in the file, where there is but one."""
    shifts: dict[str, Counter[int]] = defaultdict(Counter)
    for error in errors:
        if len(error.found) == 1:
            shifts[error.unit][error.found[0] - error.number] += 1
    return shifts


def _nearest(error: Diagnosis, shifts: dict[str, Counter[int]]) -> int:
    known = shifts[error.unit]
    return max(error.found, key=lambda n: (known[n - error.number], -n))


def _shown(error: Diagnosis, number: int, name: str) -> str:
    told = error.lines[0][error.lines[0].index("error") :]
    return "\n".join([f"{name}:{number}: {told}", *(f"  {line}" for line in error.lines)])
