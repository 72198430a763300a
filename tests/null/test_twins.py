"""Twins of modules: what is done to one is not seen in the other, but for values of tensors."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

from kernelwright.borrowed import as_original
from kernelwright.twins import twin


@dataclasses.dataclass
class Settings:
    scale: float
    table: Tensor
    layers: list[nn.Module]


class Slotted:
    __slots__ = ("__dict__", "layer", "number")

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.number, self.other = layer, [1], [2]


class Records:
    """A hook that is waiting for calls."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.seen.append(output)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.linear(x)))  # type: ignore[no-any-return]


class Model(nn.Module):
    """Modules and tensors in every place where people keep them."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.again = self.block
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.block.linear.weight
        self.hidden = [nn.Linear(4, 4), {"a": (nn.Tanh(), self.block)}]
        self.settings = Settings(2.0, torch.ones(4), [self.block, nn.ReLU()])
        self.helper = Slotted(self.block)
        self.ordered = collections.OrderedDict(b=[1], a=[2])
        self.recent = collections.deque([self.block, [3]], maxlen=3)
        self.counted = collections.defaultdict(list, x=[4])
        self.names = {"x", "y"}
        self.cyclic: list[Any] = [self]
        self.cyclic.append(self.cyclic)
        self.parent = weakref.ref(self)
        self.method = self.block.forward
        self.partial = functools.partial(Model.scaled, self, by=3)
        self.closure = lambda x: self.block.drop(x)
        self.wrapped = functools.wraps(self.closure)(lambda x: self.closure(x) + 1)
        self.function = torch.relu
        self.lock = threading.Lock()
        self.stream = (x for x in range(3))
        self.generator = torch.Generator().manual_seed(1)
        self.derived = self.tied.weight * 2  # no leaf: deepcopy refuses it
        self.register_buffer("steps", torch.zeros(()))
        self.slot = [5]
        self.handle = self.block.register_forward_hook(lambda m, args, y: self.settings.scale * y)

    def scaled(self, x: Tensor, by: float) -> Tensor:
        return x * by * self.settings.scale

    def forward(self, x: Tensor) -> Tensor:
        y = self.partial(self.again(x)) + self.method(x) + self.closure(x) + self.wrapped(x)
        y = y + self.hidden[0](x) + self.settings.layers[0](x) + self.recent[0](x)
        return y + self.tied(x) + self.helper.layer(x) + self.derived.sum() + self.settings.table


@pytest.fixture
def both() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = Model()
    return model, twin(model, Model)


def modules(model: Any) -> list[nn.Module]:
    return [*model.modules(), model.hidden[0], model.hidden[1]["a"][0], *model.settings.layers]


def test_tensors_are_the_same_and_modules_are_not(both: tuple[Any, Any]) -> None:
    model, new = both
    old, named = dict(model.named_parameters(remove_duplicate=False)), new.named_parameters
    assert all(x is old[name] for name, x in named(remove_duplicate=False))
    assert all(x is y for x, y in zip(model.buffers(), new.buffers(), strict=True))
    assert [type(m) for m in modules(model)] == [type(m) for m in modules(new)]
    assert not {id(m) for m in modules(model)} & {id(m) for m in modules(new)}
    for name in ("derived",):
        assert getattr(new, name) is getattr(model, name)
    assert new.settings.table is model.settings.table and new.lock is model.lock


def test_what_is_one_object_stays_one(both: tuple[Any, Any]) -> None:
    _, new = both
    assert new.again is new.block is new.hidden[1]["a"][1] is new.settings.layers[0]
    assert new.helper.layer is new.recent[0] is new.block and new.recent.maxlen == 3
    assert new.cyclic[0] is new and new.cyclic[1] is new.cyclic
    assert new.parent() is new and new.method.__self__ is new.block
    assert new.partial.args[0] is new and new.partial.keywords == {"by": 3}
    assert new.closure.__closure__[0].cell_contents is new
    assert new.wrapped.__wrapped__ is not None and new.function is torch.relu
    assert list(new.ordered) == ["b", "a"] and new.counted["y"] == []
    assert new.handle.hooks_dict_ref() is new.block._forward_hooks


def test_both_compute_the_same_and_share_running_statistics(both: tuple[Any, Any]) -> None:
    model, new = both
    x = torch.randn(8, 4)
    for module in both:
        module.train()
        torch.manual_seed(1)
        module(x)
    assert model.block.norm.num_batches_tracked == 10  # five calls of the block in each
    assert torch.equal(model.eval()(x), new.eval()(x))


def changed_hook(new: Any) -> None:
    new.block.linear.register_forward_hook(lambda m, args, y: y + 1)


def changed_own_hook(new: Any) -> None:
    new.register_forward_pre_hook(lambda m, args: (args[0] + 1,))


CHANGES: dict[str, Callable[[Any], object]] = {
    "a hook": changed_hook,
    "a hook of its own": changed_own_hook,
    "a hook removed": lambda new: new.handle.remove(),
    "a mode": lambda new: new.train(),
    "a mode of a part": lambda new: new.block.drop.train(),
    "a replaced layer": lambda new: setattr(new.block, "linear", nn.Linear(4, 4)),
    "a replaced layer at the top": lambda new: setattr(new, "tied", nn.Linear(4, 4)),
    "an added layer": lambda new: new.block.add_module("more", nn.Linear(4, 4)),
    "a layer in a list": lambda new: new.hidden.__setitem__(0, nn.Identity()),
    "a removed layer": lambda new: delattr(new.block, "drop"),
    "an attribute": lambda new: setattr(new.block.norm, "eps", 1.0),
    "an attribute of an attribute": lambda new: setattr(new.settings, "scale", 5.0),
    "an attribute in a slot": lambda new: new.slot.append(6),
    "a helper in slots": lambda new: new.helper.number.append(6),
    "a helper's other fields": lambda new: new.helper.other.append(6),
    "a dict": lambda new: new.ordered["b"].append(6),
    "a set": lambda new: new.names.add("z"),
    "a parameter": lambda new: setattr(new.block.linear, "weight", nn.Parameter(torch.zeros(4, 4))),
    "a parameter's place": lambda new: new.block.linear.register_parameter("bias", None),
    "a buffer": lambda new: new.register_buffer("more", torch.ones(4)),
    "another buffer": lambda new: setattr(new.block.norm, "running_mean", torch.ones(4)),
    "weights assigned": lambda new: new.load_state_dict(
        {k: torch.ones_like(v) for k, v in new.state_dict().items()}, assign=True
    ),
    "weight_norm": lambda new: weight_norm(new.block.linear),
    "a parametrization": lambda new: parametrizations.spectral_norm(new.block.linear),
    "pruning": lambda new: prune.l1_unstructured(new.block.linear, "weight", amount=0.5),
    "a generator": lambda new: torch.rand(3, generator=new.generator),
}


def visible(model: Any) -> Any:
    """What can be told of a model, its result included."""
    torch.manual_seed(2)
    said = copy.deepcopy([model.slot, model.helper.number, model.helper.other, model.ordered])
    said += [str(model), repr(model.settings), sorted(model.names), sorted(model.state_dict())]
    said += [[m.training for m in model.modules()], list(model.generator.get_state())]
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        said.append(model(torch.ones(3, 4)).tolist())
    model.load_state_dict(kept)
    return said


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_is_none_of_the_other(change: str, both: tuple[Any, Any]) -> None:
    model, new = both
    for changed, other in ((new, model), (model, twin(model.eval(), Model))):
        other.eval(), changed.eval()
        before = visible(other)
        CHANGES[change](changed)
        assert visible(other) == before


def test_hooks_of_the_user_are_called_by_both() -> None:
    model, records = nn.Sequential(nn.Linear(2, 2)), Records()
    model[0].register_forward_hook(records)
    model[0].register_forward_hook(functools.partial(Records.__call__, records))
    new = twin(model, nn.Sequential)
    new(torch.ones(1, 2))
    assert len(records.seen) == 2


@pytest.mark.parametrize(
    "normed", [weight_norm, parametrizations.weight_norm, parametrizations.spectral_norm]
)
def test_reparametrisations(normed: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(normed(nn.Linear(4, 4)))
    new, x = twin(model, nn.Sequential), torch.randn(2, 4)
    model.eval(), new.eval()
    with torch.no_grad():
        next(model.parameters()).mul_(2)
        for parameter in model.parameters():
            parameter.mul_(3)
    assert torch.equal(model(x), new(x))
    if parametrize.is_parametrized(new[0]):
        parametrize.remove_parametrizations(new[0], "weight")
        assert parametrize.is_parametrized(model[0])


class ModelNew(Block):
    """As an emitted class is named."""


def test_what_is_fused_again_is_no_part_of_what_was_fused() -> None:
    block = Block()
    fused = twin(block, ModelNew)
    vars(fused)["_kernelwright"] = None
    fused.own = fused.forward
    original: Any = as_original(fused)
    assert type(original) is Block and "_kernelwright" not in vars(original)
    assert original.own.__self__ is original and original.linear is not fused.linear
    assert original.linear.weight is block.linear.weight


def test_no_tensor_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a tensor was copied")

    model = Model()
    for kind in (Tensor, nn.Parameter):
        monkeypatch.setattr(kind, "__deepcopy__", refuse)
    monkeypatch.setattr(Tensor, "__reduce_ex__", refuse)
    assert twin(model, Model) is not model
