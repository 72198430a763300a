"""The highest level that holds, what stands against the next, and what passes at which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from museum.models import LINEAR, forward
from verifying import certified, run_some

from kernelwright.verify import Certificate, Check
from kernelwright.verify.certificate import LEVELS
from kernelwright.verify.checks import TABLE

GOOD = [
    Check("oracle", True, ""),
    *(Check(f"{level}'s", True, "", level=level) for level in LEVELS),
]


def certificate(*checks: Check, asked: str = "function") -> Certificate:
    """One in which all is well but for these."""
    names = {check.name for check in checks}
    rest = [check for check in GOOD if check.name not in names]
    return Certificate("m", "c", "cpu", "highest", (*rest, *checks), asked=asked)


def test_every_level_has_checks_and_holds_when_all_are_well() -> None:
    assert {row.level for row in TABLE} == set(LEVELS)
    whole = certificate(asked="drop-in")
    assert (whole.level, whole.passed) == ("drop-in", True)
    assert whole.verdict == "PASSED as a drop-in: 5 checks"


@pytest.mark.parametrize("broken", LEVELS)
@pytest.mark.parametrize("asked", LEVELS)
def test_what_is_wrong_refuses_its_level_and_all_above(broken: str, asked: str) -> None:
    found = certificate(Check(f"{broken}'s", False, "wrong", level=broken), asked=asked)
    place = LEVELS.index(broken)
    assert found.level == (LEVELS[place - 1] if place else None)
    assert found.passed is (LEVELS.index(asked) < place) is bool(found)
    assert f"{broken}'s" in found.verdict
    assert found.verdict.startswith("PASSED" if found.passed else "FAILED")


def test_a_limit_stands_against_its_level_and_a_note_does_not() -> None:
    limit = Check("module's", None, "refuses", level="module", limits=("refuses",))
    assert certificate(limit).level == "gradients"
    assert certificate(limit, asked="module").verdict.startswith("FAILED: 1 of 5 checks (module's)")
    assert certificate(replace(limit, passed=True)).level == "drop-in"
    assert certificate(replace(limit, limits=())).level == "drop-in"


def test_what_had_no_time_stands_against_its_level() -> None:
    unrun = replace(certificate(Check("module's", None, "", level="module")), unrun=("module's",))
    assert unrun.level == "gradients" and unrun.passed
    asked = replace(unrun, asked="module")
    assert not asked.passed and asked.verdict.startswith("NOT CERTIFIED: nothing failed")


def test_weights_may_be_accompanied_at_the_first_level_alone(tmp_path: object) -> None:
    helper = forward(
        "return super().forward(x * self.ones)",
        init="self.register_buffer('ones', torch.ones(16))",
    )
    found = run_some(tmp_path, LINEAR, helper, "weights", "state_dict")  # type: ignore[arg-type]
    assert found["weights"].passed is True and found["state_dict"].passed is False
    assert (found["weights"].level, found["state_dict"].level) == ("function", "module")


def test_a_failing_history_is_short_and_a_script(tmp_path: object) -> None:
    """Weights kept from the first call: a call, a write, a call."""
    kept = forward(
        "w = self.__dict__.setdefault('w', self.linear.weight.detach().clone())\n"
        "return F.silu(F.linear(x, w, self.linear.bias))"
    )
    found = certified(tmp_path, LINEAR, kept, ["uses: function", "uses: module"])  # type: ignore[arg-type]
    wrong, skipped = found.checks[:2]
    assert wrong.passed is False and wrong.detail.startswith("after ")
    assert skipped.passed is None and "already" in skipped.detail
    compile(wrong.log, "script", "exec")
    assert "def history(made, file, names):" in wrong.log and found.uses["call"] and found.pairs
