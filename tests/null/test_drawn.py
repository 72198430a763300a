"""Which cases an ordinary run draws: a part of some files, all of others, and the same again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import drawn
import pytest


@dataclass
class Case:
    """What drawn.py asks of a test."""

    nodeid: str

    @property
    def path(self) -> Path:
        return drawn.TESTS.parent / self.nodeid.partition("::")[0]


def cases(test: str, count: int) -> list[pytest.Item]:
    return [cast(pytest.Item, Case(f"tests/{test}[{i}]")) for i in range(count)]


@pytest.mark.parametrize("name", drawn.ONE_OF)
def test_all_that_is_named_exists(name: str) -> None:
    file, _, test = name.partition("::")
    text = (drawn.TESTS / file).read_text()
    assert not test or re.search(rf"^def {test}\(", text, re.MULTILINE)


def test_one_of_so_many_is_taken_and_the_same_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "ONE_OF", {"cpu/a.py": 4, "cpu/b.py::test_x": 5})
    items = [*cases("cpu/a.py::test_x", 30), *cases("cpu/a.py::test_y", 10)]
    items += [*cases("cpu/b.py::test_x", 20), *cases("cpu/b.py::test_y", 7)]
    left = drawn.left_out(items, ["tests"])
    kept = [case.nodeid for case in items if case not in left]
    count = {file: sum(file in case for case in kept) for file in ("a.py", "b.py::test_x")}
    assert count["a.py"] in (10, 11) and count["b.py::test_x"] in (4, 5)
    assert sum("b.py::test_y" in case for case in kept) == 7
    assert drawn.left_out(items, ["tests"]) == left


def test_other_sources_draw_other_cases_until_all_have_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawn, "ONE_OF", {"cpu/a.py": 10, "cpu/b.py": 3})
    items = [*cases("cpu/a.py::test_x", 20), *cases("cpu/b.py::test_x", 1)]
    taken: set[str] = set()
    for source in range(200):
        monkeypatch.setattr(drawn, "draw", lambda source=source: str(source))
        left = drawn.left_out(items, ["tests"])
        taken |= {case.nodeid for case in items if case not in left}
    assert len(taken) == 21


def test_what_is_named_on_the_command_line_is_taken_whole() -> None:
    file = "cpu/test_zoo.py"
    items = cases(f"{file}::test_zoo", 50)
    for argument in (f"tests/{file}", f"tests/{file}::test_zoo[3]"):
        assert drawn.left_out(items, [str(drawn.TESTS.parent / argument)]) == []
    assert len(drawn.left_out(items, [str(drawn.TESTS)])) > 40
