"""Blocks of a Swin transformer: windows, every second block shifted, a relative position bias."""

import torch
from torch import nn

VARIANTS = {
    "swin": dict(batch=16, layers=4, width=192, heads=6, side=28, window=7),
    "small": dict(batch=2, layers=2, width=16, heads=2, side=8, window=4),
}
CHOSEN = "swin"
sizes = VARIANTS[CHOSEN]


def windows_of(x, window):
    """(batch, side, side, width) to (windows, tokens, width)."""
    batch, side, _, width = x.shape
    count = side // window
    x = x.view(batch, count, window, count, window, width)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, width)


def whole_of(x, window, side):
    """Windows back to (batch, side, side, width)."""
    count = side // window
    x = x.view(-1, count, count, window, window, x.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, side, side, x.shape[-1])


def relative_index(window):
    places = torch.stack(
        torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
    ).flatten(1)
    offsets = places[:, :, None] - places[:, None, :] + window - 1
    return offsets[0] * (2 * window - 1) + offsets[1]


def shifted_mask(side, window, shift):
    """0 where two tokens of a window were neighbours before the shift, else -100."""
    labels = torch.zeros(1, side, side, 1)
    parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for i, rows in enumerate(parts):
        for j, columns in enumerate(parts):
            labels[:, rows, columns] = 3 * i + j
    of_window = windows_of(labels, window).squeeze(-1)
    differ = of_window[:, None, :] != of_window[:, :, None]
    return differ.float() * -100.0


class WindowAttention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.bias_table = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        self.register_buffer("index", relative_index(window))

    def forward(self, x, mask):
        count, tokens, width = x.shape
        qkv = self.qkv(x).reshape(count, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q * self.scale @ k.transpose(-2, -1)
        bias = self.bias_table[self.index.view(-1)].view(tokens, tokens, self.heads)
        scores = scores + bias.permute(2, 0, 1).unsqueeze(0)
        if mask is not None:
            scores = scores.view(-1, mask.shape[0], self.heads, tokens, tokens)
            scores = scores + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.heads, tokens, tokens)
        mixed = scores.softmax(dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(count, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads, side, window, shift):
        super().__init__()
        self.side, self.window, self.shift = side, window, shift
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, heads, window)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("mask", shifted_mask(side, window, shift) if shift else None)

    def forward(self, x):
        batch, tokens, width = x.shape
        image = self.norm1(x).view(batch, self.side, self.side, width)
        if self.shift:
            image = torch.roll(image, shifts=(-self.shift, -self.shift), dims=(1, 2))
        image = whole_of(
            self.attn(windows_of(image, self.window), self.mask), self.window, self.side
        )
        if self.shift:
            image = torch.roll(image, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + image.view(batch, tokens, width)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, layers, width, heads, side, window):
        super().__init__()
        self.blocks = nn.Sequential(
            *(Block(width, heads, side, window, (i % 2) * (window // 2)) for i in range(layers))
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(self.blocks(x)).mean(dim=1)


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["side"] ** 2, sizes["width"])]


def get_init_inputs():
    return [sizes[name] for name in ("layers", "width", "heads", "side", "window")]
