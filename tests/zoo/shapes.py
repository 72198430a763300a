"""Operators on shapes, orders and indices between arithmetic; results in pairs or integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, x, xs


class MinMax(nn.Module):
    """A reduction with indices is returned as it comes."""

    def forward(self, x: Tensor) -> Any:
        return torch.max(x * 2.0, dim=1), torch.min(x, dim=-1, keepdim=True).values


class TopK(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.topk(torch.tanh(x), 3, dim=1)


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = torch.sort(F.softplus(x), dim=-1, descending=True)
        return values + 1.0, order


class Predict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(self.fc(x), dim=1)
        return p.argmax(dim=1), p.amax(dim=1)


class Clip(nn.Module):
    """Element by element minimum and maximum with a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.max(torch.min(x, self.high), self.low) * 2.0


class Chunks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b, c = x.chunk(3, dim=1)
        return torch.sigmoid(a) * torch.tanh(b) + c


class Splits(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.split(F.gelu(x), [2, 4], dim=-1)
        return a * 2.0, b.sum(-1)


class Unbound(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b, c = x.unbind(dim=1)
        return torch.stack([a * b, b * c, c * a], dim=1).relu()


class Concatenated(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(torch.cat([x, y * 2.0, x], dim=-1))


class Slices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 1:] * x[:, :-1] + x[:, ::2].sum(1, keepdim=True) + x[..., -1:]


class Selected(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x[:, 0]) + x.select(1, 2) * x.narrow(1, 1, 1).squeeze(1)


class Rolled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x - torch.roll(x, 1, dims=1)) + x.flip(-1)


class Squeezes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) * torch.tanh(x).unsqueeze(2)
        return x.sum(-1).unsqueeze(-1).squeeze(-1)


class PerSample(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x)
        return y / x.shape[0] + y.sum() / x.size(1)


class Item(nn.Module):
    """A buffer's value is read into Python."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limit", torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * self.limit.item()


class Repeated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        tiled = x.repeat(1, 2) + x.repeat_interleave(2, dim=1)
        return tiled * x[:, :1].expand(-1, 12)


class Permuted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x.permute(0, 2, 1) * 2.0, dim=-1)


class Transposed(nn.Module):
    """The result is a transposed view: its strides are not dense."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x).transpose(1, 2)


class Reshaped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        return F.layer_norm(x.reshape(b, -1), (12,)).view(b, 3, 4).mean(dim=-1)


class Padded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(torch.exp(x), (1, 2), value=0.5) + 1.0


class Where(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.where((x > y) & (y > -1.0), x * y, x.abs().sqrt())


class Masked(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1], device=x.device)[None, :] < lengths[:, None]
        total = (x * mask.unsqueeze(-1)).sum(1)
        return total / lengths.clamp(min=1).unsqueeze(1)


class Gathered(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return torch.log_softmax(x, dim=1).gather(1, index).squeeze(1)


class OneHot(nn.Module):
    def forward(self, index: Tensor) -> Tensor:
        return F.one_hot(index, 5).float() * 0.9 + 0.02


class Outer(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x[:, :, None] * y[:, None, :])


class Distances(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, y))


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bi,ijk,bj->bk", x, self.core, y).relu()


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(x @ self.right, x, (self.right * 2).expand(x.shape[0], -1, -1)).tanh()


class AddMM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(torch.addmm(self.bias, x, self.weight, beta=0.5, alpha=2.0))


class Reductions(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "mean": x.mean(),
            "sum": x.sum(dim=(1, 2)),
            "var": x.var(dim=-1),
            "std": x.std(dim=1, correction=0),
            "norm": x.norm(dim=-1),
            "amax": x.amax(dim=(1, 2), keepdim=True),
            "prod": x.prod(dim=-1),
            "logsumexp": x.logsumexp(dim=1),
        }


class Tests(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (x > 0).any(dim=1), (x > -3).all(dim=1), (x > 0).sum(dim=1)


class Constants(nn.Module):
    """Infinite constants in forward: a running maximum starts at -inf."""

    def forward(self, x: Tensor) -> Tensor:
        best = torch.full_like(x[:, 0], float("-inf"))
        for t in range(x.shape[1]):
            best = torch.maximum(best, x[:, t])
        return torch.where(x > 0.5, x, float("-inf")).softmax(-1).nan_to_num(0.25) + best[:, None]


class Triangles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tril(x.exp()) + torch.triu(x, diagonal=1) * 0.5


class Diagonal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gram = x @ x.mT
        return torch.diagonal(gram, dim1=-2, dim2=-1).sqrt() + gram.amax((-1, -2))[:, None]


class Windows(nn.Module):
    """Swin's window partition and back."""

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.view(b, h // 2, 2, w // 2, 2, c)
        windows = x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, c)
        windows = F.softmax(windows, dim=1)
        x = windows.view(b, h // 2, w // 2, 2, 2, c)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, -1)


class Unfolded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 18))

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 3, padding=1)
        return torch.relu(self.weight @ patches).view(x.shape[0], 2, *x.shape[2:])


class OfFunction(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def lengths(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, 3), torch.randint(1, 6, (n,))


def picks(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5), torch.randint(5, (n, 1))


CASES = [
    Case("min_max_returned", MinMax, x(6)),
    Case("topk_returned", TopK, x(6)),
    Case("sort_returned", Sorted, x(6)),
    Case("argmax_prediction", Predict, x(6)),
    Case("elementwise_min_max", Clip, x(6)),
    Case("chunk", Chunks, x(6)),
    Case("split", Splits, x(6)),
    Case("unbind_stack", Unbound, x(3, 4)),
    Case("concatenate", Concatenated, xs((3,), (4,))),
    Case("slices", Slices, x(6)),
    Case("select_narrow", Selected, x(4)),
    Case("roll_flip", Rolled, x(6)),
    Case("squeeze_unsqueeze", Squeezes, x(5)),
    Case("divide_by_batch", PerSample, x(6)),
    Case("item", Item, x(6)),
    Case("repeat_expand", Repeated, x(6)),
    Case("permute_softmax", Permuted, x(3, 4)),
    Case("transposed_output", Transposed, x(3, 4)),
    Case("reshape_layer_norm", Reshaped, x(4, 3)),
    Case("pad", Padded, x(6)),
    Case("where", Where, xs((6,), (6,))),
    Case("masked_mean", Masked, lengths),
    Case("gather", Gathered, picks),
    Case("one_hot", OneHot, lambda n: (torch.randint(5, (n,)),)),
    Case("outer_product", Outer, xs((3,), (4,))),
    Case("pairwise_distances", Distances, xs((4, 3), (5, 3))),
    Case("einsum_bilinear", Einsum, xs((3,), (4,)),
         falls_back="torch 2.11 traces an einsum for one batch alone"),
    Case("matmul_baddbmm", Products, x(4, 5)),
    Case("addmm", AddMM, x(6)),
    Case("reductions", Reductions, x(3, 4)),
    Case("any_all_count", Tests, x(6)),
    Case("infinite_constants", Constants, x(6)),
    Case("triangles", Triangles, x(4, 4)),
    Case("diagonal", Diagonal, x(4, 3)),
    Case("window_partition", Windows, x(4, 4, 3)),
    Case("unfold", Unfolded, x(2, 4, 4)),
    Case("view_only", lambda: nn.Flatten(), x(3, 4), only_aten="a view computes nothing"),
    Case("spectrum", lambda: OfFunction(lambda v: torch.fft.rfft(v).abs().log1p()), x(8)),
    Case("cumulative_product", lambda: OfFunction(lambda v: torch.cumprod(v.sigmoid(), 1) * 2.0),
         x(6)),
]  # fmt: skip
