"""A Mamba-like block: a gated, causally convolved state-space scan, computed chunk by chunk.

The scan h_t = exp(a_t) h_{t-1} + b_t x_t, y_t = c_t h_t is taken over chunks: inside a chunk by a
masked product, between chunks by the states at their ends.
"""

import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {
    "mamba": dict(batch=8, tokens=512, width=512, heads=8, states=64, chunk=64),
    "small": dict(batch=2, tokens=8, width=8, heads=2, states=4, chunk=4),
}
CHOSEN = "mamba"
sizes = VARIANTS[CHOSEN]


def decays(a):
    """exp of the sum of a over (j, i], for i >= j, else 0: a lower triangle over the last axis."""
    total = torch.cumsum(a, dim=-1)
    difference = total[..., :, None] - total[..., None, :]
    kept = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool, device=a.device).tril()
    return difference.masked_fill(~kept, float("-inf")).exp()


class Model(nn.Module):
    def __init__(self, width, heads, states, chunk):
        super().__init__()
        self.heads, self.states, self.chunk = heads, states, chunk
        self.norm = nn.LayerNorm(width)
        self.inward = nn.Linear(width, 2 * width + 2 * states + heads, bias=False)
        mixed = width + 2 * states
        self.conv = nn.Conv1d(mixed, mixed, 4, groups=mixed, padding=3)
        self.rate_bias = nn.Parameter(torch.zeros(heads))
        self.decay_log = nn.Parameter(torch.log(torch.arange(1, heads + 1).float()))
        self.skip = nn.Parameter(torch.ones(heads))
        self.gated_norm = nn.RMSNorm(width, eps=1e-5)
        self.outward = nn.Linear(width, width, bias=False)

    def scan(self, x, a, b, c):
        """x (batch, tokens, heads, head), a (batch, tokens, heads), b and c (..., states)."""
        batch, tokens, heads, head = x.shape
        chunks = tokens // self.chunk
        x = x.reshape(batch, chunks, self.chunk, heads, head)
        b = b.reshape(batch, chunks, self.chunk, self.states)
        c = c.reshape(batch, chunks, self.chunk, self.states)
        a = a.reshape(batch, chunks, self.chunk, heads).permute(0, 3, 1, 2)
        total = torch.cumsum(a, dim=-1)
        inside = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, decays(a), x)
        to_end = torch.exp(total[..., -1:] - total)
        ends = torch.einsum("bcln,bhcl,bclhp->bchpn", b, to_end, x)
        between = decays(F.pad(total[..., -1], (1, 0)))
        first = torch.zeros_like(ends[:, :1])
        before = torch.einsum("bhzc,bchpn->bzhpn", between, torch.cat([first, ends], 1))[:, :-1]
        carried = torch.einsum("bcln,bchpn,bhcl->bclhp", c, before, torch.exp(total))
        return (inside + carried).reshape(batch, tokens, heads, head)

    def forward(self, x):
        batch, tokens, width = x.shape
        z, mixed, rate = torch.split(
            self.inward(self.norm(x)), [width, width + 2 * self.states, self.heads], dim=-1
        )
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :tokens].transpose(1, 2))
        u, b, c = torch.split(mixed, [width, self.states, self.states], dim=-1)
        rate = F.softplus(rate + self.rate_bias)
        u = u.reshape(batch, tokens, self.heads, width // self.heads)
        a = -torch.exp(self.decay_log) * rate
        y = self.scan(u * rate.unsqueeze(-1), a, b, c) + self.skip[:, None] * u
        y = self.gated_norm(y.reshape(batch, tokens, width) * F.silu(z))
        return x + self.outward(y)


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["tokens"], sizes["width"])]


def get_init_inputs():
    return [sizes[name] for name in ("width", "heads", "states", "chunk")]
