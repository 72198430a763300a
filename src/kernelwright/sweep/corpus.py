"""A folder of problems, and perhaps one of candidates, becomes tasks, one at a time.

In: paths. Out: Tasks, in the order of their names. Nothing of a file is run. A candidate belongs to
the problem whose name its folder or its own name has:

    CANDIDATES/PROBLEM/anything.py       many of one problem
    CANDIDATES/PROBLEM.py                one of it; also PROBLEM_2.py, PROBLEM-fast.py
    CANDIDATES/level_1_problem_2_sample_0_kernel.py   KernelBench's: of level1/2_*.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kernelwright import __version__
from kernelwright.errors import InputError
from kernelwright.formats import Format, Posed, answer_files, found, read
from kernelwright.sweep.task import Options, Task

NUMBERED = re.compile(r"level_(\d+)_problem_(\d+)_sample_\d+_kernel")
SUFFIXES = (".py", ".json")


@dataclass(frozen=True)
class Corpus:
    """What a sweep goes through: problems, and the candidates that are judged, if any."""

    problems: Path
    candidates: Path | None = None
    options: Options = field(default_factory=Options)

    def __iter__(self) -> Iterator[Task]:
        for form, path in found(self.problems):
            name, family = self._named(path)
            problem, refused = _posed(form, path, name)
            if self.candidates is None:
                yield self._task(problem, family, refused=refused)
                continue
            for answer in self._of(path, name):
                shown = answer.relative_to(self.candidates).as_posix()
                yield self._judged(problem, family, answer, shown, refused)

    def count(self) -> int:
        """How many tasks there are, without reading them."""
        paths = (path for _, path in found(self.problems))
        if self.candidates is None:
            return sum(1 for _ in paths)
        return sum(len(self._of(path, self._named(path)[0])) for path in paths)

    def _judged(self, problem: Posed, family: str, answer: Path, shown: str, refused: str) -> Task:
        try:
            files = answer_files(answer)
        except InputError as error:
            files, refused = {}, refused or str(error)
        return self._task(problem, family, candidate=shown, answer=files, refused=refused)

    def _task(self, problem: Posed, family: str, **found: object) -> Task:
        made = {"options": self.options, "version": __version__, **found}
        return Task(problem, family, **made)  # type: ignore[arg-type]

    def _named(self, path: Path) -> tuple[str, str]:
        """The name below the folder, and the class: the folder in which it stands."""
        if path == self.problems:
            return path.stem, "."
        below = path.relative_to(self.problems)
        name = below if path.is_dir() else below.with_suffix("")
        return name.as_posix(), below.parent.as_posix()

    def _of(self, path: Path, name: str) -> list[Path]:
        assert self.candidates is not None
        found: list[Path] = []
        for folder in dict.fromkeys((self.candidates / name, self.candidates / Path(name).name)):
            if folder.is_dir():
                found += [Path(entry.path) for entry in _sorted(folder) if _is_answer(entry)]
        stem = Path(name).name
        found += [p for p in self._loose.get(stem, []) if p not in found]
        level, number = re.search(r"level_?(\d+)", name), re.match(r"(\d+)_", stem)
        if number:
            found += self._numbered.get((level[1] if level else "1", number[1]), [])
        return found

    @cached_property
    def _loose(self) -> dict[str, list[Path]]:
        """The files at the top of the folder, by the problems whose names they begin with."""
        assert self.candidates is not None
        stems = {Path(self._named(path)[0]).name for _, path in found(self.problems)}
        loose: dict[str, list[Path]] = {}
        for entry in _sorted(self.candidates):
            stem = Path(entry.name).stem
            ends = [len(stem), *(m.start() for m in re.finditer(r"[_.-]", stem))]
            owner = next((stem[:end] for end in sorted(ends)[::-1] if stem[:end] in stems), None)
            if _is_answer(entry) and owner is not None and not NUMBERED.fullmatch(stem):
                loose.setdefault(owner, []).append(Path(entry.path))
        return loose

    @cached_property
    def _numbered(self) -> dict[tuple[str, str], list[Path]]:
        assert self.candidates is not None
        numbered: dict[tuple[str, str], list[Path]] = {}
        for entry in _sorted(self.candidates):
            if match := NUMBERED.fullmatch(Path(entry.name).stem):
                numbered.setdefault((match[1], match[2]), []).append(Path(entry.path))
        return numbered


def _posed(form: Format, path: Path, name: str) -> tuple[Posed, str]:
    """A problem, or the name of one and why its files cannot be read."""
    try:
        return read(form, path, name), ""
    except InputError as error:
        return Posed(name, form.name, form.main(path), {}), str(error)


def _sorted(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"The folder {folder} cannot be read: {error.strerror}.") from error


def _is_answer(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(SUFFIXES) and not entry.name.startswith((".", "_"))
