"""Some chains of the corpus with the tiles that a GPU gets (corpus_tiles.py has all of them)."""

from __future__ import annotations

import shutil
from pathlib import Path

import conv_host
import pytest
from corpus_tiles import BOUND, error_of, errors_of_file

pytestmark = pytest.mark.skipif(
    shutil.which(conv_host.CXX) is None, reason=f"the C++ compiler {conv_host.CXX} is not here"
)


@pytest.mark.parametrize(
    ("chain", "eager"),
    [
        ("conv2d_grouped_group_norm_silu", "rounded"),  # groups of a norm wider than a slice
        ("conv_transpose2d_log_softmax_scale", "rounded"),  # slices of one row's phases
        ("conv_transpose3d_grouped_log_sum_exp_tanh", "exact"),  # of one plane's
        ("conv3d_instance_norm_softplus_max_channels", "exact"),
        ("conv2d_log_sum_exp_gelu_bias", "rounded"),  # those of tiles in doubt alone
        ("conv2d_overlapping_max_pool_square", "rounded"),  # tiles that overlap
        ("conv2d_dropout_relu_max_pool", "exact"),  # a mask of truth values beside the tile
        ("conv2d_average_pool_elu", "rounded"),  # means of results, of stride 4
        ("conv2d_relu_conv2d_average_pool", "exact"),
        ("conv_transpose2d_average_pool_selu", "rounded"),
        ("conv_transpose3d_average_pool_tanh_min_channels", "exact"),
    ],
)
def test_tiles_of_full_size(chain: str, eager: str) -> None:
    error = error_of(chain, training=True, eager=eager)
    assert error is not None and error <= BOUND


# Tiles of four rows, of which vectors of four go through one after the other; two lie beyond the
# output's last row, and a vector would be in both.
ODD_ROWS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 32, 3, dilation=2, padding=2)
        self.norm = nn.InstanceNorm2d(32, affine=True)

    def forward(self, x):
        return self.norm(self.conv(x))

def get_inputs():
    return [torch.randn(64, 6, 46, 51)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("eager", ["rounded", "exact"])
def test_rows_of_odd_length_at_an_edge(eager: str, tmp_path: Path) -> None:
    source = tmp_path / "odd_rows.py"
    source.write_text(ODD_ROWS)
    errors = errors_of_file(source, training=True, eager=eager)
    assert errors is not None and errors[0] <= BOUND
