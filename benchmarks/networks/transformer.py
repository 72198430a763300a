"""torch's own transformer layers: nn.TransformerEncoderLayer, or nn.MultiheadAttention alone."""

import torch
from torch import nn

VARIANTS = {
    "encoder": dict(
        batch=16, tokens=128, layers=4, width=512, heads=8, dropout=0.1, norm_first=False
    ),
    "attention": dict(
        batch=16, tokens=128, layers=0, width=512, heads=8, dropout=0.0, norm_first=False
    ),
    "small": dict(batch=3, tokens=5, layers=2, width=16, heads=2, dropout=0.1, norm_first=True),
    "small_attention": dict(
        batch=3, tokens=5, layers=0, width=16, heads=2, dropout=0.0, norm_first=False
    ),
}
CHOSEN = "encoder"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    """`layers` encoder layers; with none, one attention with a residual connection."""

    def __init__(self, layers, width, heads, dropout, norm_first):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        if layers:
            self.attn = None
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width, heads, 4 * width, dropout, batch_first=True, norm_first=norm_first
                )
                for _ in range(layers)
            )
        else:
            self.attn = nn.MultiheadAttention(width, heads, dropout, batch_first=True)

    def forward(self, x):
        if self.attn is not None:
            mixed, weights = self.attn(x, x, x)
            return self.norm(x + mixed), weights
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["tokens"], sizes["width"])]


def get_init_inputs():
    return [sizes[name] for name in ("layers", "width", "heads", "dropout", "norm_first")]
