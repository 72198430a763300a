"""Names that an emitted file must survive: keywords, its own words, methods of nn.Module."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, x, xs


class Keywords(nn.Module):
    """Submodules and parameters whose names are keywords of Python and C++."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("class", nn.Linear(6, 6))
        self.add_module("lambda", nn.LayerNorm(6))
        self.register_parameter("def", nn.Parameter(torch.randn(6)))
        self.register_buffer("for", torch.randn(6))
        self.register_parameter("operator", nn.Parameter(torch.randn(6)))

    def forward(self, x: Tensor) -> Tensor:
        x = getattr(self, "lambda")(getattr(self, "class")(x))
        return F.relu(x * getattr(self, "def") + getattr(self, "for")) * self.operator


class EmittedNames(nn.Module):
    """Layers named as the emitted file names its own things."""

    def __init__(self) -> None:
        super().__init__()
        self.state_types = nn.Linear(6, 6)
        self.fallbacks = nn.LayerNorm(6)
        self.KERNELS = nn.Parameter(torch.randn(6))
        self.ModelNew = nn.Linear(6, 4)
        self._launch = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = self.fallbacks(self.state_types(x)) * self.KERNELS
        return self._launch(self.ModelNew(x)) * 2.0


class EmittedMethods(nn.Module):
    """Methods and plain attributes named as those of an emitted class."""

    _outside = 0.5
    state_types = (1.0, 2.0)

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.fallbacks = [2.0]
        self.freeze_weights = True

    def _fall_back(self, x: Tensor) -> Tensor:
        return x * self.fallbacks[0] + self._outside

    def freeze(self) -> None:
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self._fall_back(torch.relu(self.fc(x))) + self.state_types[1]


class Methods(nn.Module):
    """Plain attributes that hide methods of nn.Module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.type = "gelu"
        self.half = 0.5
        self.compile = 3.0

    def forward(self, x: Tensor) -> Tensor:
        return getattr(F, self.type)(self.fc(x)) * self.half + self.compile


class OddForwards(nn.Module):
    """Helpers and attributes that look like forward."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_ = nn.Linear(6, 6)
        self._forward = nn.LayerNorm(6)
        self.forward_impl_scale = 0.5

    def forward_features(self, x: Tensor) -> Tensor:
        return self._forward(self.forward_(x))

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.forward_features(x)) * self.forward_impl_scale


class Arguments(nn.Module):
    """Arguments of forward named as globals and locals of the emitted file."""

    def forward(self, KERNELS: Tensor, os: Tensor, state: Tensor, batch: Tensor) -> Tensor:
        return torch.tanh(KERNELS * os) + state.exp() * batch


class MoreArguments(nn.Module):
    def forward(self, _launch: Tensor, sys: Tensor, ModelNew: Tensor, cause: Tensor) -> Tensor:
        return F.relu(_launch - sys) * ModelNew + cause


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("0", nn.Linear(6, 6))
        self.add_module("1x", nn.LayerNorm(6))
        self.register_parameter("2", nn.Parameter(torch.randn(6)))

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(getattr(self, "1x")(getattr(self, "0")(x))) * getattr(self, "2")


class Unicode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.größe = nn.Parameter(torch.randn(6))
        self.λ = nn.Parameter(torch.tensor(0.3))
        self.layers = nn.ModuleDict({"a-b": nn.Linear(6, 4), "ü x": nn.LayerNorm(4)})

    def forward(self, données: Tensor) -> Tensor:
        y = self.layers["ü x"](self.layers["a-b"](données * self.größe))
        return torch.exp(-self.λ * y.abs())


class ModelNew(nn.Module):
    """A user's class may bear this very name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x), dim=-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(6, 4)

    def forward(self, model: Tensor) -> Tensor:
        return torch.sigmoid(self.model(model))


class Globals(nn.Module):
    """Parameters called like the modules that an emitted file imports."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("torch", "os", "sys", "struct", "ctypes", "warnings", "collections", "self"):
            self.register_parameter(name, nn.Parameter(torch.randn(6)))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.torch + self.os * self.sys
        x = torch.tanh(x) * self.struct + self.ctypes
        return F.relu(x * self.warnings + self.collections) * self.self


CASES = [
    Case("names_keywords", Keywords, x(6)),
    Case("names_of_the_emitted_file", EmittedNames, x(6)),
    Case("names_of_emitted_methods", EmittedMethods, x(6)),
    Case("names_of_module_methods", Methods, x(6)),
    Case("names_like_forward", OddForwards, x(6)),
    Case("names_of_arguments", Arguments, xs((6,), (6,), (6,), (6,))),
    Case("names_of_more_arguments", MoreArguments, xs((6,), (6,), (6,), (6,))),
    Case("names_numbered", Numbered, x(6)),
    Case("names_unicode", Unicode, x(6)),
    Case("names_model_new", ModelNew, x(6)),
    Case("names_model", Model, x(6)),
    Case("names_of_imports", Globals, x(6)),
]  # fmt: skip
