"""The generated files under examples/ are what the compiler emits today."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import regenerate


def test_the_generated_examples_are_current() -> None:
    emitted = regenerate.emitted()
    assert len(emitted) == 6
    stale = [str(p) for p, text in emitted.items() if not p.is_file() or p.read_text() != text]
    assert not stale, f"run `python examples/regenerate.py` and review: {stale}"
