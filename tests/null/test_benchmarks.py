"""The documented command prints the tables of docs/figures.md: the same columns and rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import founding  # noqa: E402
from sheet import Sheet  # noqa: E402

FIGURES = (ROOT / "docs" / "figures.md").read_text()


@pytest.mark.parametrize(
    ("part", "precisions"), [("gpu", founding.PRECISIONS["cuda"]), ("calls", founding.CALLED)]
)
def test_the_figures_have_the_tables_of_the_harness(part: str, precisions: list[str]) -> None:
    sheet = Sheet("", ("model", "precision", *founding.PARTS[part][2]), 2)
    head = "\n".join(sheet.markdown().splitlines()[2:4])
    assert head in FIGURES
    rows = FIGURES.split(head)[1].split("\n\n")[0].splitlines()[1:]
    found = [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in rows]
    assert found == [(model, p) for p in precisions for model in founding.MODELS]


def test_a_missing_figure_is_an_empty_cell_and_ours_are_bold() -> None:
    ms = {"eager": 3.0821, "torch.compile": 2.7381, "kernelwright": 0.6319}
    assert founding.milliseconds(ms) == ["3.082", "2.738", "**0.632**", ""]


def test_every_founding_model_is_measured() -> None:
    assert sorted(founding.MODELS) == sorted(
        path.parent.name for path in (ROOT / "examples").glob("*/model.py")
    )
