"""doctor for real: its trials build, run, certify and time a model on this machine's CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright import doctor


def test_the_trials_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(doctor.MODEL)
    patient = doctor._Patient(tmp_path, "cpu", doctor.TIME_LIMIT, lambda *words: None)
    kernels = patient.kernels("cpu")
    assert kernels.works, kernels
    assert list((tmp_path / "builds").glob("kw_*/*.so"))
    for trial in ("verify", "bench"):
        ability = patient.trial(trial, trial, "cpu")
        assert ability.works, ability


def test_a_compiler_that_refuses_is_no_ability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(doctor.MODEL)
    monkeypatch.setenv("CXX", "false")
    patient = doctor._Patient(tmp_path, "cpu", doctor.TIME_LIMIT, lambda *words: None)
    ability = patient.kernels("cpu")
    assert ability.works is False and ability.advice
