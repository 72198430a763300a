"""torch.compile(model, backend="kernelwright"): graphs by kernels, in situations as people have."""

from __future__ import annotations

from pathlib import Path

import pytest
from situations import control, state, tensors  # noqa: F401
from situations.parts import SITUATIONS
from situations.programs import program
from situations.watching import difference, watched


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_is_as_in_eager(name: str, extensions: Path) -> None:
    situation = SITUATIONS[name]
    ours, theirs, compiling, _ = watched(situation.run)
    assert difference(ours, theirs) is None
    if situation.because is None:
        assert compiling.reasons == []
    else:
        assert any(situation.because in why for why in compiling.reasons)
    assert any(served.kinds for served in compiling.served) is situation.compiles


@pytest.mark.parametrize("seed", range(40))
def test_a_random_program_is_as_in_eager(seed: int, extensions: Path) -> None:
    found = program(seed)
    ours, theirs, compiling, _ = watched(found.run)
    assert difference(ours, theirs) is None, found.text
    # A dropout whose numbers nobody reads is drawn all the same: eager alone does that.
    assert [why for why in compiling.reasons if "nobody reads" not in why] == []
