"""Live dropout on the GPU: eager's own mask, bit for bit, and its generator afterwards."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import problem_from_module
from kernelwright.runtime.dropout import KeepMask, draws_alike

CUDA = torch.device("cuda", 0)
TYPES = [torch.float32, torch.float16, torch.bfloat16]
# Small and odd ones, around a block, and more than all of ATen's threads take in one step.
COUNTS = [1, 2, 3, 4, 6, 12, 255, 256, 257, 1000, 4098, 99_999, 1 << 20, 2_500_000, 5_000_001]
COUNTS += [9_000_002, 20_000_008]


class Dropped(nn.Module):
    """Zero where an element was dropped, and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(33, 65)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc(x)) * 2.0


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 64, 3)
        self.drop = nn.Dropout(0.2)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(torch.relu(self.drop(self.conv(x))))


def pair(module: nn.Module, x: Tensor) -> tuple[Any, nn.Module]:
    """The fused module and eager's, with the same weights, in training."""
    eager = module.to(CUDA, x.dtype).train()
    compiled = compile_problem(problem_from_module(copy.deepcopy(eager), (x,)), policy=ALWAYS)
    fused = compiled.instantiate()
    assert "dropout_mask" in {row.where for row in compiled.ledger if row.op == "dropout"}
    return fused, eager


def library_of(fused: nn.Module) -> Any:
    return sys.modules[type(fused).__module__]._KW_KERNEL_LIBRARY


@pytest.fixture(scope="module")
def library() -> Any:
    return library_of(pair(Dropped(), torch.randn(8, 33, device=CUDA))[0])


def offset() -> int:
    return torch.cuda.default_generators[0].get_offset()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_this_torch_draws_as_the_kernel_does(library: Any, dtype: torch.dtype) -> None:
    torch.cuda.manual_seed(3)
    before = offset()
    assert draws_alike(library, CUDA, dtype)
    assert offset() == before


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_bits_of_a_mask(library: Any, dtype: torch.dtype, count: int) -> None:
    for seed, rate in ((5, 0.2), (2**63 + 11, 0.55)):
        found = []
        mask = KeepMask(library, CUDA, (count,), dtype, rate)
        x = torch.ones(count, dtype=dtype, device=CUDA)
        for draw in (mask.by_kernel, lambda x=x, p=rate: torch.native_dropout(x, p, True)[1]):
            torch.cuda.manual_seed(seed)
            found.append([draw(), draw(), torch.rand(5, device=CUDA), offset()])
        *ours, our_offset = found[0]
        *theirs, their_offset = found[1]
        assert our_offset == their_offset
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("batch", [1, 7, 64, 4099])
def test_a_model_twice_in_a_row(dtype: torch.dtype, batch: int) -> None:
    x = torch.randn(batch, 33, device=CUDA, dtype=dtype)
    fused, eager = pair(Dropped(), x)
    started: list[str] = []
    library_of(fused).watchers.append(started.extend)
    found = []
    for module in (fused, eager):
        torch.cuda.manual_seed(17)
        with torch.no_grad():
            made = [module(x), module(x)]
        found.append((*made, offset()))
    assert "launch_dropout_mask" in started and not fused.fallbacks
    assert found[0][2] == found[1][2]
    for ours, theirs in zip(found[0][:2], found[1][:2], strict=True):
        # Eager rounds a half after each operator, so that other elements may round to zero.
        near = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(ours, theirs, **near)


def test_the_chain_of_the_corpus() -> None:
    x = torch.rand(8, 16, 96, 96, device=CUDA)
    fused, eager = pair(Convolved(), x)
    with torch.no_grad():
        for seed in (1, 2):
            torch.cuda.manual_seed(seed)
            ours, here = fused(x), offset()
            torch.cuda.manual_seed(seed)
            theirs, there = eager(x), offset()
            assert here == there
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    assert not fused.fallbacks


def test_gradients_have_the_mask_of_the_forward() -> None:
    x = torch.randn(64, 33, device=CUDA)
    fused, eager = pair(Dropped(), x)
    found = []
    for module in (fused, eager):
        torch.cuda.manual_seed(23)
        y = module(x)
        y.square().sum().backward()
        grads = [p.grad for p in module.parameters()]
        found.append([y.detach(), *grads, torch.rand(5, device=CUDA)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_captured_graph_draws_anew_in_every_replay() -> None:
    x = torch.randn(64, 33, device=CUDA)
    fused, eager = pair(Dropped(), x)
    found = []
    for module in (fused, eager):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                module(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            y = module(x)
        torch.cuda.manual_seed(29)
        replays = []
        for _ in range(2):
            graph.replay()
            replays.append(y.clone() == 0)
        found.append(replays)
    (first, second), theirs = found
    assert not torch.equal(first, second)
    assert torch.equal(first, theirs[0]) and torch.equal(second, theirs[1])


def test_an_empty_batch_draws_nothing() -> None:
    x = torch.randn(8, 33, device=CUDA)
    fused, _ = pair(Dropped(), x)
    before = offset()
    assert fused(x[:0]).shape == (0, 65)
    assert offset() == before
