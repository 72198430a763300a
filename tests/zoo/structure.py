"""How modules are put together: containers, ties, outputs and inputs of every structure, state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, x, xs

SCALE = 1.7


class ListOfLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()])

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x) if i % 2 else layer(x) + x
        return x


class DictOfLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({"left": nn.Linear(6, 4), "right": nn.Linear(6, 4)})
        self.acts = nn.ModuleDict([["relu", nn.ReLU()], ["gelu", nn.GELU()]])

    def forward(self, x: Tensor) -> Tensor:
        left = self.acts["relu"](self.branches["left"](x))
        return left * self.acts["gelu"](self.branches["right"](x))


class NestedLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grid = nn.ModuleList(
            nn.ModuleList(nn.Linear(6, 6) for _ in range(2)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for row in self.grid:
            x = sum(F.relu(layer(x)) for layer in row)
        return x


class Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.randn(6), torch.randn(6)])
        self.named = nn.ParameterDict({"gain": torch.randn(6), "shift": torch.randn(1)})

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = torch.tanh(x * scale)
        return x * self.named["gain"] + self.named["shift"]


class Tied(nn.Module):
    """The decoder is the encoder's weight, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 3)
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(F.relu(self.encoder(x)), self.encoder.weight.t(), self.bias))


class TwoNamesOneParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.second(F.silu(self.first(x))))


class Siamese(nn.Module):
    """One body, used for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LayerNorm(5))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.norm(self.body(a) - self.body(b), dim=1)


class Base(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.fc(x))

    def activate(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Derived(Base):
    def activate(self, x: Tensor) -> Tensor:
        return F.mish(x) * SCALE

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class Config(NamedTuple):
    norm: str = "layer"
    act: str | None = "gelu"
    depth: int = 2
    residual: bool = True


class Configured(nn.Module):
    """Control flow on a Python configuration."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        norm = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
        self.norms = nn.ModuleList(norm(6) for _ in range(config.depth))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(config.depth))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            y = layer(norm(x))
            if self.config.act is not None:
                y = getattr(F, self.config.act)(y)
            x = x + y if self.config.residual else y
        return x


class Outputs(nn.Module):
    """The same two values in a structure of choice."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.pack = pack

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return self.pack(torch.relu(y), y.exp().sum(-1))


class Pair(NamedTuple):
    hidden: Tensor
    total: Tensor


@dataclass
class ModelOutput:
    hidden: Tensor
    total: Tensor | None = None


def as_tuple(a: Tensor, b: Tensor) -> Any:
    return a, b


def as_list(a: Tensor, b: Tensor) -> Any:
    return [a, b]


def as_dict(a: Tensor, b: Tensor) -> Any:
    return {"hidden": a, "total": b}


def as_nested(a: Tensor, b: Tensor) -> Any:
    return {"states": [a, (a * 2, None)], "total": b, "name": "zoo", "count": 3}


def as_dataclass(a: Tensor, b: Tensor) -> Any:
    return ModelOutput(hidden=a, total=b)


class TupleOfOne(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (torch.softmax(x, -1),)


class WithInput(nn.Module):
    """The input itself is among the outputs, and a view of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x.view(-1, 2, 3), F.softplus(x)


class SameTwice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x)
        return y, y


class DictInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = F.relu(self.fc(batch["features"])) * batch["scale"]
        return {"hidden": hidden, "mean": hidden.mean(-1)}


class ListInput(nn.Module):
    def forward(self, features: list[Tensor], scale: float = 0.5) -> Tensor:
        return torch.sigmoid(functools.reduce(torch.add, features) * scale)


class NestedInput(nn.Module):
    def forward(self, pair: tuple[Tensor, dict[str, list[Tensor]]]) -> Tensor:
        x, rest = pair
        return torch.softmax(x + rest["more"][0] * rest["more"][1], dim=-1)


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor, *, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        y = torch.tanh(self.fc(x)) * scale
        return y if shift is None else y + shift


class OptionalMask(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:
        x = x / temperature
        if mask is not None:
            x = x.masked_fill(mask, float("-inf"))
        return torch.softmax(x, dim=-1)


class Variadic(nn.Module):
    def forward(self, *values: Tensor) -> Tensor:
        total = values[0]
        for value in values[1:]:
            total = torch.maximum(total, value) * 0.5
        return total.exp()


class MovingStatistics(nn.Module):
    """A buffer that forward updates in training: an exponential moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))
        self.decay = 0.9

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.average.mul_(self.decay).add_(x.mean(0), alpha=1 - self.decay)
        return torch.tanh(x - self.average)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return F.silu(x) * 2


class ScalarParameters(nn.Module):
    """ReZero: a 0-dimensional scale that starts a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.alpha = nn.Parameter(torch.zeros(()))
        self.register_buffer("offset", torch.tensor(0.25))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * F.relu(self.fc(x)) - self.offset


class PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.linspace(-1.0, 2.0, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.w.to(x.device))


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y += 1.0
        y.mul_(0.5).clamp_(min=0.0)
        y[:, 0] = 2.0
        return y.sqrt_()


class StopGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            target = F.normalize(self.target(b), dim=-1)
        online = F.normalize(self.online(a), dim=-1)
        return 2 - 2 * (online * target.detach()).sum(-1)


class StraightThrough(nn.Module):
    """Rounded forward, identity backward."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        return y + (torch.round(y) - y).detach()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6))

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.body, x, use_reentrant=False)


class ByProperty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.randn(6))

    @property
    def positive(self) -> Tensor:
        return F.softplus(self.raw)

    def forward(self, x: Tensor) -> Tensor:
        return x / self.positive + torch.log1p(self.positive)


class ComputedWeight(nn.Module):
    """A weight that is a function of parameters: a masked linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("mask", torch.arange(24).view(4, 6) % 3 != 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x, self.weight * self.mask))


class BufferOnly(nn.Module):
    """Input normalisation: no parameter at all."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.3, 0.25]).view(-1, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std


def local_class() -> nn.Module:
    """A class that exists only inside of a function and closes over one of its values."""
    factor = 3.0

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.fc(x)) * factor

    return Local()


class Outer:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.logsumexp(x, dim=1)


def feature_dict(n: int) -> tuple[dict[str, Tensor]]:
    return ({"features": torch.randn(n, 6), "scale": torch.randn(n, 1)},)


def nested_pair(n: int) -> tuple[Any]:
    return ((torch.randn(n, 6), {"more": [torch.randn(n, 6), torch.randn(n, 6)]}),)


def feature_list(n: int) -> tuple[Any]:
    return ([torch.randn(n, 6) for _ in range(3)],)


CASES = [
    Case("module_list", ListOfLayers, x(6)),
    Case("module_dict", DictOfLayers, x(6)),
    Case("module_lists_nested", NestedLists, x(6)),
    Case("parameter_containers", Parameters, x(6)),
    Case("tied_transposed", Tied, x(8)),
    Case("tied_parameter", TwoNamesOneParameter, x(6)),
    Case("siamese", Siamese, xs((6,), (6,))),
    Case("inherited_forward", lambda: Derived(6), x(6)),
    Case("configured", lambda: Configured(Config()), x(6)),
    Case("configured_otherwise", lambda: Configured(Config("rms", None, 1, False)), x(6)),
    Case("output_tuple", lambda: Outputs(as_tuple), x(6)),
    Case("output_list", lambda: Outputs(as_list), x(6)),
    Case("output_dict", lambda: Outputs(as_dict), x(6)),
    Case("output_nested", lambda: Outputs(as_nested), x(6)),
    Case("output_named_tuple", lambda: Outputs(Pair), x(6)),
    Case("output_dataclass", lambda: Outputs(as_dataclass), x(6)),
    Case("output_tuple_of_one", TupleOfOne, x(6)),
    Case("output_with_input", WithInput, x(6)),
    Case("output_same_twice", SameTwice, x(6)),
    Case("input_dict", DictInput, feature_dict),
    Case("input_list", ListInput, feature_list),
    Case("input_nested", NestedInput, nested_pair),
    Case("input_keyword_only", Keywords, x(6), kwargs=lambda n: {"scale": torch.randn(n, 4)}),
    Case("input_keywords", Keywords, x(6),
         kwargs=lambda n: {"scale": torch.randn(n, 4), "shift": torch.randn(4)}),
    Case("input_all_by_keyword", nn.Tanhshrink, lambda n: (),
         kwargs=lambda n: {"input": torch.randn(n, 5)}),
    Case("input_number", OptionalMask, lambda n: (torch.randn(n, 5), None, 2.0)),
    Case("input_mask_none", OptionalMask, lambda n: (torch.randn(n, 5), None)),
    Case("input_mask", OptionalMask, lambda n: (torch.randn(n, 5), torch.arange(5) > 3)),
    Case("input_variadic", Variadic, xs((6,), (6,), (6,))),
    Case("buffer_moving_average", MovingStatistics, x(6), mode_matters=True),
    Case("buffer_counter", Counter, x(6)),
    Case("buffer_only", BufferOnly, x(3, 4, 4)),
    Case("scalar_parameters", ScalarParameters, x(6)),
    Case("plain_tensor_attribute", PlainTensor, x(6)),
    Case("function_attribute", lambda: Lambda(functools.partial(F.leaky_relu, negative_slope=0.3)),
         x(6)),
    Case("lambda_attribute", lambda: Lambda(lambda x: x * torch.sigmoid(x) + 1), x(6)),
    Case("in_place", InPlace, x(6)),
    Case("stop_gradient", StopGradient, xs((6,), (6,))),
    Case("straight_through", StraightThrough, x(6)),
    Case("checkpoint_inside", Checkpointed, x(6)),
    Case("property", ByProperty, x(6)),
    Case("masked_weight", ComputedWeight, x(6)),
    Case("local_class", local_class, x(6)),
    Case("inner_class", Outer.Inner, x(6)),
]  # fmt: skip
