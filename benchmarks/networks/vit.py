"""A vision transformer: patches by a convolution, a class token, pre-norm blocks."""

import torch
from torch import nn

VARIANTS = {
    "vit": dict(batch=16, layers=12, width=768, heads=12, image=224, patch=16, classes=1000),
    "small": dict(batch=3, layers=2, width=16, heads=2, image=8, patch=4, classes=5),
}
CHOSEN = "vit"
sizes = VARIANTS[CHOSEN]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, layers, width, heads, image, patch, classes):
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image):
        x = self.embed(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def get_inputs():
    return [torch.randn(sizes["batch"], 3, sizes["image"], sizes["image"])]


def get_init_inputs():
    return [sizes[name] for name in ("layers", "width", "heads", "image", "patch", "classes")]
