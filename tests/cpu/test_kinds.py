"""A live result makes kinds for calls that its first kernels do not cover, and eager's results."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from alike import difference, tensors
from torch import Tensor, nn

import kernelwright
from kernelwright import kinds
from kernelwright.errors import InputError, UnsupportedError
from kernelwright.live import further_of

pytestmark = pytest.mark.usefixtures("extensions")


class Row:
    """One layer of a cache, as libraries of models write them."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.seen = 0


class Cache:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def update(self, x: Tensor) -> Tensor:
        if not self.rows:
            self.rows.append(Row())
        row = self.rows[0]
        row.keys = x if row.keys is None else torch.cat([row.keys, x], 1)
        row.seen += x.shape[1]
        return row.keys


class Board:
    """State of a fixed size, which a call writes into."""

    def __init__(self, width: int) -> None:
        self.held = torch.zeros(width, 8)

    def write(self, x: Tensor) -> Tensor:
        self.held[:2].copy_(x[:2])
        return self.held


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


@dataclass
class Output:
    hidden: Tensor
    pair: Pair
    nothing: None = None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Output:
        y = self.norm(torch.relu(self.linear(x))) * scale
        y = y if mask is None else y * mask
        return Output(self.drop(y), Pair(y.exp(), None))


class Remembering(Net):
    def forward(self, x: Tensor, cache: Any = None) -> Any:  # type: ignore[override]
        y = self.norm(torch.relu(self.linear(x)))
        if isinstance(cache, Board):
            return {"y": y.sum(0) + cache.write(y).mean(0), "cache": cache}
        cache = Cache() if cache is None else cache
        return {"y": y + cache.update(y).mean(1, keepdim=True), "cache": cache}


@pytest.fixture
def made() -> Iterator[list[str]]:
    """Warnings that a test does not ask for are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield []


def batch(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def pair_of(module: nn.Module, *example: Any, **options: Any) -> tuple[Any, nn.Module]:
    return kernelwright.optimize(copy.deepcopy(module), example, **options), module


def same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    assert difference(ours, theirs, laid_out=False) is None
    for a, b in zip(tensors(ours), tensors(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def listed(fused: nn.Module) -> list[kinds.Kind]:
    further: Any = further_of(fused)
    return list(further())


def test_kinds_of_structure_size_mode_and_autocast(made: list[str]) -> None:
    fused, eager = pair_of(Net().eval(), batch(4, 5, 8))
    with torch.no_grad():
        same(fused(batch(4, 5, 8)), eager(batch(4, 5, 8)))
        assert not listed(fused)
        for length in (3, 9, 6):  # one kind for all of them
            same(fused(batch(4, length, 8)), eager(batch(4, length, 8)))
        assert len(listed(fused)) == 1 and "4, *, 8" in str(listed(fused)[0])
        mask = (batch(4, 5, 1) > 0).float()
        same(fused(x=batch(4, 5, 8), mask=mask), eager(batch(4, 5, 8), mask))
        same(fused(batch(4, 5, 8), scale=2.0), eager(batch(4, 5, 8), scale=2.0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours, theirs = fused(batch(4, 5, 8)), eager(batch(4, 5, 8))
        same(ours, theirs, 0.05)
    assert len(listed(fused)) == 4 and not fused.fallbacks
    assert "(4) eval, autocast to bfloat16" in repr(fused)


def test_gradients_of_a_kind_are_eagers(made: list[str]) -> None:
    fused, eager = pair_of(Net().eval(), batch(4, 5, 8))
    for context in (torch.autocast("cpu", enabled=False), torch.autocast("cpu", torch.bfloat16)):
        found = []
        for module in (fused, eager):
            module.zero_grad()
            x = batch(4, 6, 8).requires_grad_()
            with context:
                outputs = module(x)
            results = [outputs.hidden, outputs.pair.first]
            torch.autograd.backward(results, [torch.full_like(y, 0.5) for y in results])
            found.append([x.grad, *(p.grad for p in module.parameters())])
        same(*found)
    assert len(listed(fused)) == 2 and not fused.fallbacks


def test_training_after_eval_is_a_kind(made: list[str]) -> None:
    fused, _ = pair_of(Net().eval(), batch(4, 5, 8))
    fused.train()
    zeros = (fused(batch(4, 5, 8)).hidden == 0).float().mean().item()
    assert 0.3 < zeros < 0.7 and len(listed(fused)) == 1 and not fused.fallbacks
    fused.eval()
    assert not (fused(batch(4, 5, 8)).hidden == 0).all() and len(listed(fused)) == 1


def test_a_cache_is_input_and_output(made: list[str]) -> None:
    """It grows, its numbers too, and the caller's object stays the caller's."""
    fused, eager = pair_of(Remembering().eval(), batch(2, 5, 8))
    with torch.no_grad():
        ours, theirs = fused(batch(2, 5, 8)), eager(batch(2, 5, 8))
        same(ours["y"], theirs["y"])
        held = ours["cache"]
        rows = held.rows
        for _ in range(4):
            ours, theirs = (
                m(batch(2, 1, 8), r["cache"]) for m, r in ((fused, ours), (eager, theirs))
            )
            same(ours["y"], theirs["y"])
            assert ours["cache"] is held and held.rows is rows
            assert held.rows[0].seen == theirs["cache"].rows[0].seen
            same(held.rows[0].keys, theirs["cache"].rows[0].keys)
    assert len(listed(fused)) == 3 and not fused.fallbacks


def test_what_a_call_writes_into_is_written(made: list[str]) -> None:
    fused, eager = pair_of(Remembering().eval(), batch(4, 8), Board(4))
    ours, theirs = Board(4), Board(4)
    held = ours.held
    with torch.no_grad():
        for _ in range(2):
            same(fused(batch(4, 8), ours)["y"], eager(batch(4, 8), theirs)["y"])
    assert ours.held is held and not fused.fallbacks
    same(ours.held, theirs.held)


def test_copies_and_what_is_loaded_have_the_kinds(made: list[str]) -> None:
    fused, eager = pair_of(Net().eval(), batch(4, 5, 8))
    with torch.no_grad():
        fused(batch(4, 7, 8))
        file = io.BytesIO()
        torch.save(fused, file)
        file.seek(0)
        for other in (copy.deepcopy(fused), torch.load(file, weights_only=False)):
            same(other(batch(4, 9, 8)), eager(batch(4, 9, 8)))
            assert len(listed(other)) == 1 and not other.fallbacks


def test_copies_of_a_model_with_state(made: list[str]) -> None:
    fused, eager = pair_of(Remembering().eval(), batch(2, 5, 8))
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    for other in (copy.deepcopy(fused), torch.load(file, weights_only=False)):
        with torch.no_grad():
            same(other(batch(2, 5, 8))["y"], eager(batch(2, 5, 8))["y"])
        assert len(listed(other)) == 1 and isinstance(other, Remembering)
    with pytest.raises(InputError, match=r"torch\.save"):
        fused.save("model.py")


def test_weights_are_those_of_the_module(made: list[str]) -> None:
    fused, eager = pair_of(Net().eval(), batch(4, 5, 8))
    with torch.no_grad():
        fused(batch(4, 7, 8))
        for module in (fused, eager):
            module.linear.weight.mul_(2)  # type: ignore[operator,union-attr]
            module.norm.weight = nn.Parameter(torch.full((8,), 3.0))  # type: ignore[union-attr]
        same(fused(batch(4, 7, 8)), eager(batch(4, 7, 8)))
    assert not fused.fallbacks


def test_a_forward_that_asks_whether_gradients_are_recorded(made: list[str]) -> None:
    class Asking(Net):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            y = torch.relu(self.linear(x))
            return y * 2 if torch.is_grad_enabled() else y + 1

    fused, eager = pair_of(Asking().eval(), batch(4, 5, 8))
    for recorded in (True, False, True):
        with torch.set_grad_enabled(recorded):
            same(fused(batch(4, 5, 8)), eager(batch(4, 5, 8)))
    assert len(listed(fused)) == 2 and not fused.fallbacks


def test_no_more_than_so_many() -> None:
    fused, eager = pair_of(Net().eval(), batch(4, 5, 8), kinds=1)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scale in (1.0, 2.0, 3.0, 3.0):
            same(fused(batch(4, 5, 8), scale=scale), eager(batch(4, 5, 8), scale=scale))
    assert sum(fused.fallbacks.values()) == 2
    assert sum("as many as may be made" in str(w.message) for w in caught) == 1


def test_given_alone() -> None:
    fused, eager = pair_of(Net().eval(), batch(4, 5, 8), kinds="given")
    with torch.no_grad(), pytest.warns(UserWarning, match="not of shape"):
        same(fused(batch(4, 6, 8)), eager(batch(4, 6, 8)))
    assert further_of(fused) is None and sum(fused.fallbacks.values()) == 1
    with pytest.raises(UnsupportedError):
        pair_of(Remembering().eval(), batch(2, 5, 8), kinds="given")
    with pytest.raises(InputError, match="number of kinds"):
        pair_of(Net(), batch(2, 5, 8), kinds="all")


def test_the_original_runs_where_no_kind_can_be_made() -> None:
    class Picky(Net):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            y = torch.relu(self.linear(x))
            return y * 2 if x.shape[1] < 6 or bool((y > 0).any()) else y

    fused, eager = pair_of(Picky().eval(), batch(4, 5, 8))
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            same(fused(batch(4, 7, 8)), eager(batch(4, 7, 8)))
    assert sum(fused.fallbacks.values()) == 2
    assert sum("no kind could be made" in str(w.message) for w in caught) == 1


def test_another_thread_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, eager = pair_of(Net().eval(), batch(4, 5, 8))
    begun, done = threading.Event(), threading.Event()
    make = kinds.make

    def slowly(*given: Any) -> kinds.Kind:
        begun.set()
        assert done.wait(600)
        return make(*given)

    monkeypatch.setattr(kinds, "make", slowly)
    other = threading.Thread(target=lambda: fused(batch(4, 7, 8)))
    other.start()
    assert begun.wait(600)
    with pytest.warns(UserWarning, match="another thread"):
        ours = fused(batch(4, 7, 8))
    same(ours, eager(batch(4, 7, 8)))
    done.set()
    other.join()
    assert len(listed(fused)) == 1
