"""nn.Sequential of every kind: as the root, nested, named, subclassed, in train mode."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from zoo.case import Case, x


class Classifier(nn.Sequential):
    """A subclass that adds nothing but a constructor."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, classes), nn.LogSoftmax(1))


class ConvNormAct(nn.Sequential):
    """torchvision's way: a Sequential with an activation of choice."""

    def __init__(self, inside: int, outside: int, act: type[nn.Module] = nn.ReLU6) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), act()
        )


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.LayerNorm(8))
        self.head = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class Sliced(nn.Module):
    """Parts of a Sequential by slices and by index."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.body[2:](self.body[:2](x) + x) * self.body[1](x)


def mlp_with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


def named() -> nn.Module:
    layers = [("fc", nn.Linear(6, 8)), ("act", nn.ReLU()), ("norm", nn.LayerNorm(8))]
    return nn.Sequential(OrderedDict(layers))


def nested() -> nn.Module:
    inner = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.GELU(), nn.LayerNorm(8)))
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), inner, nn.Tanh())


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))


def unflattened() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 12), nn.ReLU(), nn.Unflatten(1, (3, 2, 2)), nn.Upsample(scale_factor=2),
        nn.Conv2d(3, 2, 3), nn.Sigmoid(),
    )  # fmt: skip


def frozen_body() -> nn.Module:
    """Transfer learning: only the head is trained."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    model[:3].requires_grad_(False)
    return model


def appended() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5))
    model.append(nn.Hardswish())
    model.add_module("last one", nn.LayerNorm(5))
    return model


def shared_layer() -> nn.Module:
    layer, act = nn.Linear(6, 6), nn.Tanh()
    return nn.Sequential(layer, act, layer, act)


CASES = [
    Case("sequential_mlp", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
         x(6)),
    Case("sequential_batch_norm_train", mlp_with_batch_norm, x(6), mode_matters=True),
    Case("sequential_batch_norm_eval", mlp_with_batch_norm, x(6), mode="eval", mode_matters=True),
    Case("sequential_conv_net_train", conv_net, x(3, 8, 8), mode_matters=True),
    Case("sequential_conv_net_eval", conv_net, x(3, 8, 8), mode="eval", mode_matters=True),
    Case("sequential_named", named, x(6)),
    Case("sequential_nested", nested, x(6)),
    Case("sequential_dropout_eval", with_dropout, x(6), mode="eval", mode_matters=True),
    Case("sequential_dropout_train", with_dropout, x(6), random=True, mode_matters=True),
    Case("sequential_of_one", lambda: nn.Sequential(nn.Softmax(dim=-1)), x(4, 5)),
    Case("sequential_activations", lambda: nn.Sequential(nn.Mish(), nn.Tanh(), nn.Softplus()),
         x(9)),
    Case("sequential_unflatten", unflattened, x(5)),
    Case("sequential_frozen_body", frozen_body, x(6)),
    Case("sequential_appended", appended, x(6)),
    Case("sequential_shared_layer", shared_layer, x(6)),
    Case("sequential_subclass", lambda: Classifier(6, 4), x(6)),
    Case("sequential_conv_norm_act", lambda: ConvNormAct(3, 4), x(3, 5, 5), mode_matters=True),
    Case("sequential_inside", Body, x(6)),
    Case("sequential_sliced", Sliced, x(6)),
]  # fmt: skip
