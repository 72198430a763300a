"""A handful of the models of benchmarks/hub.py, each in a step of its daily use."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import hub

pytestmark = pytest.mark.usefixtures("extensions")
CASES = {
    "BERT": ("forward", "autocast"),
    "GPT-2": ("generate", "copies"),
    "Llama": ("forward", "backward"),
    "T5": ("forward", "backward"),
    "ViT": ("forward", "sizes"),
    "VQModel": ("forward",),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_as_it_comes(name: str) -> None:
    model = hub.BY_NAME[name]
    pytest.importorskip(model.library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = hub.judge(model, list(CASES[name]))
    assert {step: tuple(cell[:2]) for step, cell in found["steps"].items()} == dict.fromkeys(
        CASES[name], (hub.HOLDS, "")
    )
