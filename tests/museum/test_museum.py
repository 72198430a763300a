"""Every wrong candidate is caught by its check or at its level, and no right one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from verifying import certified

from kernelwright.verify.certificate import LEVELS
from kernelwright.verify.checks import ROWS
from museum.right import RIGHT, Right
from museum.uses import ABLE, MISUSED, Able, Misused
from museum.wrong import WRONG, Wrong


def test_the_museum_is_large_enough() -> None:
    assert len(WRONG) >= 80 and len(RIGHT) >= 20
    assert len({wrong.name for wrong in WRONG}) == len(WRONG)
    assert {wrong.check for wrong in WRONG} <= {*ROWS, "the file"}
    assert len(MISUSED) >= 60 and len(ABLE) >= 17
    assert len({x.name for x in (*MISUSED, *ABLE)}) == len(MISUSED) + len(ABLE)


def test_every_check_has_something_to_catch() -> None:
    """But those that need a GPU, tell a limit, or judge the problem instead of the candidate."""
    on_a_gpu = {"stream", "stream: unsynchronised", "graph replay", "second device"}
    on_a_gpu |= {"sizes: more than 2^31"}
    limits = {"submodules", "hooks: sublayers", "sizes: number of dimensions"}
    in_use = {"uses: drop-in", "files", "another process"}  # MISUSED
    spared = {"null models", *limits, *on_a_gpu, *in_use}
    assert ROWS.keys() - {wrong.check for wrong in WRONG} == spared


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_candidate_is_caught(wrong: Wrong, tmp_path: Path) -> None:
    names = ("runs", wrong.check) if wrong.check == "the file" else (wrong.check,)
    certificate = certified(tmp_path, wrong.model, wrong.source, [n for n in names if n in ROWS])
    assert not certificate.passed
    found = {check.name: check for check in certificate.checks}[wrong.check]
    assert found.passed is False, found
    assert all(character >= " " or character == "\n" for character in str(certificate))


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_right_candidate_is_certified(right: Right, tmp_path: Path) -> None:
    certificate = certified(tmp_path, right.model, right.source)
    assert certificate.passed and not certificate.failures, certificate


def height(level: str | None) -> int:
    return -1 if level is None else LEVELS.index(level)


@pytest.mark.parametrize("misused", MISUSED, ids=lambda misused: misused.name)
def test_what_is_wrong_in_some_use_does_not_hold_there(misused: Misused, tmp_path: Path) -> None:
    found = certified(tmp_path, misused.model, misused.source)
    assert height(found.level) < height(misused.level), found


@pytest.mark.parametrize("able", ABLE, ids=lambda able: able.name)
def test_what_is_right_at_a_level_holds_there(able: Able, tmp_path: Path) -> None:
    found = certified(tmp_path, able.model, able.source)
    assert height(found.level) >= height(able.level), found
