"""More than 2^31 elements: indices must not wrap."""

from __future__ import annotations

from pathlib import Path

import checking
import pytest
import torch

ELEMENTS = (1 << 31) + 1024
COLUMNS = 1024

SOURCE = f"""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0 + 1.0


def get_inputs():
    return [torch.randn(16, {COLUMNS}).half()]


def get_init_inputs():
    return []
"""


def test_more_than_two_to_the_31_elements(tmp_path: Path, extensions: Path) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 4 * ELEMENTS * 2 + (4 << 30):
        pytest.skip("needs 20 GiB of free GPU memory")
    path = tmp_path / "large.py"
    path.write_text(SOURCE)
    subject = checking.subject(path, tmp_path, "cuda")
    model = subject.new_class()
    x = torch.arange(ELEMENTS // COLUMNS, device="cuda").remainder(7).sub(3).half()
    x = x[:, None].expand(-1, COLUMNS).contiguous()
    ours = checking.run(model, (x,))
    for start in range(0, x.shape[0], 1 << 18):
        part = slice(start, start + (1 << 18))
        assert torch.equal(ours[part], torch.relu(x[part]) * 2.0 + 1.0)
    assert not subject.fallbacks
