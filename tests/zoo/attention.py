"""Attention and transformers: torch's own layers and those written by hand; positions and masks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, tokens, x, xs


class CausalSelfAttention(nn.Module):
    """Attention by hand with a triangular mask kept as a buffer."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.heads = heads
        mask = torch.tril(torch.ones(length, length)).view(1, 1, length, length)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.project(y.transpose(1, 2).contiguous().view(b, t, c))


class GPTBlock(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2, length: int = 6) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, length)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(
            {"fc": nn.Linear(width, 4 * width), "project": nn.Linear(4 * width, width)}
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        m = self.mlp
        return x + self.dropout(m.project(F.gelu(m.fc(self.ln_2(x)), approximate="tanh")))


class TinyGPT(nn.Module):
    """Embeddings, one block and a head that is tied to the embedding."""

    def __init__(self, vocabulary: int = 11, width: int = 8, length: int = 6) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.block = GPTBlock(width, 2, length)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, idx: Tensor) -> Tensor:
        positions = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.token(idx) + self.position(positions)
        return self.head(self.norm(self.block(x)))


class ViT(nn.Module):
    """Patches by a strided convolution, a class token, one encoder block."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 2, stride=2)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 5, width))
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.head = nn.Linear(width, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        return self.head(x[:, 0])


class WithWeights(nn.Module):
    """Multi-head attention that returns its weights too, between a norm and a residual."""

    def __init__(self, need: bool, average: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.need, self.average = need, average

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        y, weights = self.attention(
            x, x, x, need_weights=self.need, average_attn_weights=self.average
        )
        return self.norm(x + y), weights


class SequenceFirst(nn.Module):
    """The batch is the second dimension, as nn.MultiheadAttention has it by default."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return F.relu(self.attention(query, key, key)[0])


class PaddedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return torch.tanh(self.attention(x, x, x, key_padding_mask=padding)[0])


class FlashAttention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.silu(y.transpose(1, 2).reshape(b, t, c))


class EinsumAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 4)) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)


class CrossAttention(nn.Module):
    """bmm attention of one sequence to another, with an optional mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(6, 6), nn.Linear(8, 12)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.q(x)
        k, v = self.kv(context).chunk(2, dim=-1)
        scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        return torch.bmm(torch.softmax(scores, dim=-1), v)


class MultiQuery(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 2, 4).transpose(1, 2)
        k, v = self.k(x).unsqueeze(1), self.v(x).unsqueeze(1)
        return (F.softmax(q @ k.mT / 2.0, dim=-1) @ v).transpose(1, 2).flatten(-2)


class LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = torch.einsum("bnd,bne->bde", k, v)
        norm = 1.0 / torch.einsum("bnd,bd->bn", q, k.sum(1))
        return torch.einsum("bnd,bde,bn->bne", q, context, norm)


def rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class Rotary(nn.Module):
    """Rotary embedding with its tables made at construction, as buffers without a state."""

    def __init__(self, width: int = 8, length: int = 6) -> None:
        super().__init__()
        inverse = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
        angles = torch.outer(torch.arange(length).float(), inverse)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = q * self.cos + rotate_half(q) * self.sin
        return q, k * self.cos + rotate_half(k) * self.sin


class RotaryPairs(nn.Module):
    """The other convention: even and odd features are pairs, tables are made in forward."""

    def forward(self, x: Tensor) -> Tensor:
        t, d = x.shape[-2], x.shape[-1]
        rates = 10000.0 ** (-torch.arange(0, d, 2, device=x.device) / d)
        angles = torch.arange(t, device=x.device)[:, None] * rates
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def sinusoids(length: int, width: int) -> Tensor:
    position = torch.arange(length).unsqueeze(1)
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * rates)
    table[:, 1::2] = torch.cos(position * rates)
    return table


class PositionalBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(10, 8).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x * math.sqrt(8) + self.table[:, : x.size(1)])


class PositionalAttribute(nn.Module):
    """The table is a plain tensor attribute, as many tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = sinusoids(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.table[: x.size(1)].to(x.device))


class ALiBi(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25]))

    def forward(self, scores: Tensor) -> Tensor:
        t = scores.shape[-1]
        distance = torch.arange(t, device=scores.device)
        distance = distance[None, :] - distance[:, None]
        return (scores + self.slopes[:, None, None] * distance).softmax(-1)


class RelativeBias(nn.Module):
    """Swin's: a learned table looked up by fixed indices."""

    def __init__(self, length: int = 4) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2 * length - 1, 2))
        index = torch.arange(length)
        self.register_buffer("index", index[:, None] - index[None, :] + length - 1)

    def forward(self, scores: Tensor) -> Tensor:
        bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1).contiguous()
        return torch.softmax(scores + bias.unsqueeze(0), dim=-1)


class CausalByShape(nn.Module):
    """The mask is made in forward from the sizes, with -inf."""

    def forward(self, scores: Tensor) -> Tensor:
        t = scores.size(-1)
        mask = torch.triu(torch.full((t, t), float("-inf"), device=scores.device), diagonal=1)
        return F.softmax(scores + mask, dim=-1)


class AttentionPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.softmax(self.score(x), dim=1) * x).sum(dim=1)


class QueryKeyNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return torch.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1)


def encoder_layer(**options: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options)


def padding(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, 8), torch.arange(5).expand(n, 5) >= 3


CASES = [
    Case("gpt_block", GPTBlock, x(6, 8), mode="eval", mode_matters=True),
    Case("gpt_block_shorter", GPTBlock, x(4, 8), mode="eval", mode_matters=True),
    Case("tiny_gpt_tied", TinyGPT, tokens(6), mode="eval", mode_matters=True),
    Case("vit", ViT, x(3, 4, 4)),
    Case("attention_with_weights", lambda: WithWeights(True), x(5, 8)),
    Case("attention_with_weights_per_head", lambda: WithWeights(True, False), x(5, 8)),
    Case("attention_without_weights", lambda: WithWeights(False), x(5, 8)),
    Case("attention_eval", lambda: WithWeights(True), x(5, 8), mode="eval"),
    Case("attention_sequence_first", SequenceFirst,
         lambda n: (torch.randn(5, n, 8), torch.randn(6, n, 8)),
         falls_back="the batch is the second dimension"),
    Case("attention_key_padding", PaddedAttention, padding,
         strides_by_mode="eager has a way of its own in eval mode without gradients"),
    Case("attention_bare", lambda: nn.MultiheadAttention(8, 2, batch_first=True),
         xs((5, 8), (6, 8), (6, 8))),
    Case("attention_flash", lambda: FlashAttention(False), x(5, 8)),
    Case("attention_flash_causal", lambda: FlashAttention(True), x(5, 8)),
    Case("attention_einsum", EinsumAttention, x(5, 8)),
    Case("attention_cross", CrossAttention, xs((4, 6), (5, 8))),
    Case("attention_cross_masked", CrossAttention,
         lambda n: (torch.randn(n, 4, 6), torch.randn(n, 5, 8), torch.rand(n, 4, 5) > 0.3)),
    Case("attention_cross_mask_keyword", CrossAttention, xs((4, 6), (5, 8)),
         kwargs=lambda n: {"mask": torch.rand(n, 4, 5) > 0.3}),
    Case("attention_cross_mask_none", CrossAttention, xs((4, 6), (5, 8)),
         kwargs=lambda n: {"mask": None}),
    Case("attention_multi_query", MultiQuery, x(5, 8)),
    Case("attention_linear", LinearAttention, x(5, 8),
         falls_back="torch 2.11 traces an einsum for one batch alone"),
    Case("attention_pooling", AttentionPooling, x(5, 6)),
    Case("attention_query_key_norm", QueryKeyNorm, xs((5, 4), (6, 4))),
    Case("attention_causal_by_shape", CausalByShape, x(2, 5, 5)),
    Case("attention_alibi", ALiBi, x(2, 5, 5)),
    Case("attention_relative_bias", RelativeBias, x(2, 4, 4)),
    Case("rotary", Rotary, xs((2, 6, 8), (2, 6, 8))),
    Case("rotary_pairs", RotaryPairs, x(2, 5, 6)),
    Case("positional_buffer", PositionalBuffer, x(6, 8)),
    Case("positional_attribute", PositionalAttribute, x(6, 8)),
    Case("transformer_encoder_layer", lambda: encoder_layer(batch_first=True), x(5, 8)),
    Case("transformer_encoder_layer_eval", lambda: encoder_layer(batch_first=True), x(5, 8),
         mode="eval"),
    Case("transformer_encoder_layer_norm_first",
         lambda: encoder_layer(batch_first=True, norm_first=True), x(5, 8)),
    Case("transformer_encoder",
         lambda: nn.TransformerEncoder(encoder_layer(batch_first=True), 2,
                                       enable_nested_tensor=False), x(5, 8)),
    Case("transformer_decoder_layer",
         lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
         xs((4, 8), (5, 8))),
]  # fmt: skip
