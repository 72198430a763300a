"""Some tiles of every family, drawn: those that a default choice takes are few of them."""

from __future__ import annotations

import pytest
import tile_families
import torch

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="these kernels need compute capability 9.0")


@pytest.mark.parametrize("loops", [("float16", "bfloat16"), ("split", "rounded")], ids="-".join)
def test_tiles_around_their_sizes(loops: tuple[str, ...]) -> None:
    tally = tile_families.run(60, 1, loops)
    assert tally.cases == 60 and len(tally.families) > 20
    assert not tally.wrong, "\n".join(f"{case}: {why}" for case, why in tally.wrong.items())
