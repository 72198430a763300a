"""What people change in a module after they have compiled it: attributes and sublayers.

In: a module, inputs, and a change by name. Out: the result with the change, and after it was undone
by `preserved`. The same change is made to candidate, original and oracle. What can be changed in a
model is listed here too, for the process that has the original.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from kernelwright.verify.acts.here import Here
from kernelwright.verify.attributes import INTERNAL, preserved
from kernelwright.verify.inputs import Inputs, Named, copied, forward, map_floating
from kernelwright.verify.variations import literals, others

RANK = 2
AMOUNT = 0.4  # of the weights that pruning takes


def with_attribute(
    module: nn.Module, inputs: Inputs, here: Here, path: str, name: str, value: Any, scaled: bool
) -> Named:
    """An attribute set to another value; a tensor scaled instead."""

    def change() -> None:
        child = module.get_submodule(path)
        setattr(child, name, _scaled(getattr(child, name)) if scaled else value)

    return _changed(module, inputs, change)


def with_sublayer(module: nn.Module, inputs: Inputs, here: Here, path: str, kind: str) -> Named:
    """A sublayer replaced, wrapped, without bias, pruned or parametrized."""
    return _changed(module, inputs, lambda: REPLACEMENTS[kind][1](module, path))


def _changed(module: nn.Module, inputs: Inputs, change: Callable[[], None]) -> Named:
    with preserved(module):
        change()
        changed = forward(module, copied(inputs))
    after = forward(module, inputs)
    return Named({"the result": changed, "the result after it was undone": after})


# What there is to change


def attributes(module: nn.Module) -> list[dict[str, Any]]:
    """Path, name and another value of every attribute that has one, the rare ones first."""
    return _by_rarity(_attributes(module))


def sublayers(module: nn.Module) -> list[dict[str, str]]:
    """Path and kind of every replacement, for at most two sublayers of each type."""
    found = []
    for kind, (fits, _) in REPLACEMENTS.items():
        seen: dict[type, int] = {}
        for path, child in module.named_modules():
            if fits(child, path) and seen.get(type(child), 0) < 2:
                seen[type(child)] = seen.get(type(child), 0) + 1
                found.append({"path": path, "kind": kind})
    return found


def _attributes(module: nn.Module) -> Iterator[dict[str, Any]]:
    for path, child in module.named_modules():
        for name, value in own_attributes(child).items():
            at = {"path": path, "name": name}
            if isinstance(value, Tensor):
                if value.is_floating_point() and not isinstance(value, nn.Parameter):
                    yield {**at, "value": None, "scaled": True}
                continue
            texts = literals(type(child), name) if isinstance(value, str) else []
            for other in others(value, texts)[: 1 if isinstance(value, float) else 2]:
                yield {**at, "value": other, "scaled": False}


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Those of the instance, and those of the user's classes."""
    found: dict[str, Any] = {}
    for base in reversed(type(module).__mro__):
        if base is not object and not base.__module__.startswith("torch."):
            found.update(vars(base))
    found.update(vars(module))
    return {k: v for k, v in found.items() if k not in INTERNAL and not k.startswith("_")}


def _scaled(value: Tensor) -> Tensor:
    factors = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype, device=value.device)
    return value * factors.view(value.shape)


def _by_rarity(found: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of each name before the second of any: a deep model repeats itself."""
    seen: dict[str, int] = {}
    ordered: list[tuple[int, dict[str, Any]]] = []
    for item in found:
        seen[item["name"]] = seen.get(item["name"], 0) + 1
        ordered.append((seen[item["name"]], item))
    return [item for _, item in sorted(ordered, key=lambda pair: pair[0])]


# Submodules


def _replace(module: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    new.train(module.get_submodule(path).training)
    module.get_submodule(parent)._modules[name] = new


def _to_identity(module: nn.Module, path: str) -> None:
    _replace(module, path, nn.Identity())


def _to_subclass(module: nn.Module, path: str) -> None:
    """The same layer as an instance of a subclass that computes something else."""
    old = module.get_submodule(path)
    new = copy.copy(old)

    def halved(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return map_floating(lambda x: x * 0.5, type(old).forward(self, *args, **kwargs))

    new.__class__ = type(f"Halved{type(old).__name__}", (type(old),), {"forward": halved})
    _replace(module, path, new)


class LowRank(nn.Module):
    """A Linear with a low-rank term added, as adapters do it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        generator = torch.Generator().manual_seed(0)
        shapes = (RANK, base.in_features), (base.out_features, RANK)
        down, up = (_drawn(shape, generator) * 0.3 for shape in shapes)
        self.down = nn.Parameter(down.to(base.weight))
        self.up = nn.Parameter(up.to(base.weight))

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + x @ self.down.t() @ self.up.t()
        return adapted


def _drawn(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """In float32 whatever the default is: float64 draws other numbers."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _to_low_rank(module: nn.Module, path: str) -> None:
    base = module.get_submodule(path)
    assert isinstance(base, nn.Linear)
    _replace(module, path, LowRank(base))


def _without_bias(module: nn.Module, path: str) -> None:
    setattr(module.get_submodule(path), "bias", None)  # noqa: B010


def _pruned(module: nn.Module, path: str) -> None:
    child = module.get_submodule(path)
    name = next(iter(child._parameters))
    kept = torch.arange(child._parameters[name].numel()).remainder(7) >= 7 * AMOUNT  # type: ignore[union-attr]
    mask = kept.view_as(getattr(child, name)).to(getattr(child, name))
    prune.custom_from_mask(child, name, mask)  # type: ignore[no-untyped-call]


def _weight_normed(module: nn.Module, path: str) -> None:
    """weight_norm with doubled lengths: without that it computes the same as before."""
    child = module.get_submodule(path)
    parametrizations.weight_norm(child)
    with torch.no_grad():
        child.get_parameter("parametrizations.weight.original0").mul_(2.0)


def _is_inner(module: nn.Module, path: str) -> bool:
    return bool(path)


def _is_linear(module: nn.Module, path: str) -> bool:
    return bool(path) and type(module) is nn.Linear


def _has_bias(module: nn.Module, path: str) -> bool:
    return module._parameters.get("bias") is not None


def _has_parameters(module: nn.Module, path: str) -> bool:
    return next(iter(module._parameters.values()), None) is not None


def _has_matrix(module: nn.Module, path: str) -> bool:
    weight = module._parameters.get("weight")
    return bool(path) and weight is not None and weight.ndim >= 2


REPLACEMENTS: dict[str, tuple[Callable[[nn.Module, str], bool], Callable[..., None]]] = {
    "replaced by an Identity": (_is_inner, _to_identity),
    "replaced by a subclass with another forward": (_is_inner, _to_subclass),
    "wrapped with a low-rank term": (_is_linear, _to_low_rank),
    "without its bias": (_has_bias, _without_bias),
    "pruned": (_has_parameters, _pruned),
    "under weight_norm": (_has_matrix, _weight_normed),
}
