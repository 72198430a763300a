"""A decoder: causal self-attention with a mask, dropout, and a feed-forward part in each block.

`mask` says where the causal mask comes from: a buffer, the forward itself, or torch's own function.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "gpt_block": dict(
        batch=8, tokens=512, layers=1, width=768, heads=12, words=0, dropout=0.0, mask="buffer"
    ),
    "gpt": dict(
        batch=8, tokens=512, layers=6, width=768, heads=12, words=8192, dropout=0.1, mask="buffer"
    ),
    "gpt_sdpa": dict(
        batch=8, tokens=512, layers=6, width=768, heads=12, words=8192, dropout=0.0, mask="torch"
    ),
    "small": dict(
        batch=2, tokens=5, layers=2, width=16, heads=2, words=11, dropout=0.1, mask="buffer"
    ),
    "small_forward": dict(
        batch=2, tokens=5, layers=1, width=16, heads=2, words=0, dropout=0.0, mask="forward"
    ),
    "small_torch": dict(
        batch=2, tokens=5, layers=1, width=16, heads=2, words=0, dropout=0.0, mask="torch"
    ),
}
CHOSEN = "gpt_block"
sizes = VARIANTS[CHOSEN]


class CausalAttention(nn.Module):
    def __init__(self, tokens, width, heads, dropout, mask):
        super().__init__()
        self.heads, self.mask, self.dropout = heads, mask, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attn_drop = nn.Dropout(dropout)
        self.drop = nn.Dropout(dropout)
        if mask == "buffer":
            ones = torch.tril(torch.ones(tokens, tokens))
            self.register_buffer("seen", ones.view(1, 1, tokens, tokens), persistent=False)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (
            t.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for t in (q, k, v)
        )
        if self.mask == "torch":
            mixed = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
            )
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
            if self.mask == "buffer":
                scores = scores.masked_fill(self.seen[:, :, :tokens, :tokens] == 0, float("-inf"))
            else:
                future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(future, float("-inf"))
            mixed = self.attn_drop(scores.softmax(dim=-1)) @ v
        return self.drop(self.proj(mixed.transpose(1, 2).contiguous().view(batch, tokens, width)))


class Block(nn.Module):
    def __init__(self, tokens, width, heads, dropout, mask):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = CausalAttention(tokens, width, heads, dropout, mask)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """With a vocabulary: token numbers in, logits out. Without: one activation to another."""

    def __init__(self, tokens, layers, width, heads, words, dropout, mask):
        super().__init__()
        self.words = nn.Embedding(words, width) if words else None
        self.places = nn.Parameter(0.02 * torch.randn(tokens, width)) if words else None
        self.blocks = nn.ModuleList(
            Block(tokens, width, heads, dropout, mask) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False) if words else nn.Identity()

    def forward(self, x):
        if self.words is not None:
            x = self.words(x) + self.places[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def get_inputs():
    shape = sizes["batch"], sizes["tokens"]
    if sizes["words"]:
        return [torch.randint(sizes["words"], shape)]
    return [torch.randn(*shape, sizes["width"])]


def get_init_inputs():
    names = ("tokens", "layers", "width", "heads", "words", "dropout", "mask")
    return [sizes[name] for name in names]
