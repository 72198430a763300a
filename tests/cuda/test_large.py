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


VECTORS = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return x.sum(), torch.softmax(x, 0), x.var(), F.huber_loss(x, y)


def get_inputs():
    return [torch.randn(1000), torch.randn(1000)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("size", [1, 1000, 131072, 131073, (1 << 20) + 3, 1 << 24])
def test_a_vector_becomes_one_number(size: int, tmp_path: Path, extensions: Path) -> None:
    """In however many parts: the same bits in every call, and close to float64."""
    path = tmp_path / "vectors.py"
    path.write_text(VECTORS)
    subject = checking.subject(path, tmp_path, "cuda")
    model = subject.new_class()
    x, y = (torch.randn(size, device="cuda") for _ in range(2))
    ours, again = checking.run(model, (x, y)), checking.run(model, (x, y))
    exact = checking.run(subject.user.Model(), (x.double(), y.double()))
    for got, repeated, wanted in zip(ours, again, exact, strict=True):
        assert torch.equal(got, repeated) or bool(got.isnan().all() and wanted.isnan().all())
        torch.testing.assert_close(
            got.double(), wanted, rtol=1e-5, atol=1e-6 * size**0.5, equal_nan=True
        )
    assert not subject.fallbacks
