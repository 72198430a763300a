"""How an emitted model behaves on a GPU beyond its values: streams, graphs, repeats, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import checking
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.verify.compare import same_bits

CHOSEN = ("linear_group_norm_min_add", "linear_multiply_batch_norm_train", "softmax_channels")


@pytest.fixture(
    scope="module", params=[p for p in checking.MODELS if p.stem in CHOSEN], ids=lambda p: p.stem
)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def candidate(subject: checking.Subject) -> Iterator[nn.Module]:
    subject.fallbacks.clear()
    yield subject.modules()[0]
    assert not subject.fallbacks


def leaves(value: object) -> list[Tensor]:
    return pytree.tree_leaves(value)


def equal(left: object, right: object) -> bool:
    pairs = zip(leaves(left), leaves(right), strict=True)
    return all(same_bits(a, b) for a, b in pairs)


def test_a_side_stream_waits_for_its_producer(
    subject: checking.Subject, candidate: nn.Module
) -> None:
    """The input is written late, on the same side stream; a launch elsewhere would read zeros."""
    (x,) = subject.inputs()
    expected = checking.run(candidate, (x,))
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        ours = checking.run(candidate, (late,))
    side.synchronize()
    assert equal(ours, expected)


def test_graph_capture_and_replay_on_new_data(
    subject: checking.Subject, candidate: nn.Module
) -> None:
    (x,) = subject.inputs()
    (other,) = subject.inputs(seed=8)
    static = x.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            candidate(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        ours = candidate(static)
    for data in (other, x):
        static.copy_(data)
        graph.replay()
        torch.cuda.synchronize()
        assert equal(ours, checking.run(candidate, (data,)))


def test_repeats_give_equal_bits(subject: checking.Subject, candidate: nn.Module) -> None:
    inputs = subject.inputs()
    first = checking.run(candidate, inputs)
    assert all(equal(checking.run(candidate, inputs), first) for _ in range(20))


def test_a_storage_offset_of_one_element(subject: checking.Subject, candidate: nn.Module) -> None:
    (x,) = subject.inputs()
    storage = torch.empty(x.numel() + 1, device=x.device)
    shifted = storage[1:].view(x.shape).copy_(x)
    assert equal(checking.run(candidate, (shifted,)), checking.run(candidate, (x,)))


def test_data_writes_are_seen(subject: checking.Subject) -> None:
    """Inputs and parameters change in place, without a version to tell."""
    candidate, eager, oracle = subject.modules()
    inputs = subject.inputs()
    checking.run(candidate, inputs)
    inputs[0].data.mul_(-0.5)
    for module in (candidate, eager, oracle):
        for buffer in module.buffers():
            buffer.zero_()
        for parameter in module.parameters():
            parameter.data.mul_(0.75)
    ours, theirs = checking.run(candidate, inputs), checking.run(eager, inputs)
    exact = checking.run(oracle, checking.widened(inputs))
    checking.check_close("after .data writes", ours, theirs, exact)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_matmul_precision_is_restored(
    subject: checking.Subject, candidate: nn.Module, precision: str
) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        checking.run(candidate, subject.inputs())
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_more_rows_than_a_grid_axis_holds(subject: checking.Subject) -> None:
    """65535 is the limit of a grid's second axis."""
    checking.check_values(subject, subject.inputs(batch=70_001), "70001 samples")


@pytest.fixture
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN: what a kernel does not write cannot look right."""
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.use_deterministic_algorithms(False)


def test_every_element_is_written(subject: checking.Subject, poisoned: None) -> None:
    assert torch.empty(8, device="cuda").isnan().all()
    for batch in (1 if "batch_norm" not in subject.compiled.problem.name else 2, 5, 33):
        checking.check_values(subject, subject.inputs(batch), f"poisoned memory, batch {batch}")


def test_threads(subject: checking.Subject, candidate: nn.Module) -> None:
    """Several host threads, each on a stream of its own."""
    from concurrent.futures import ThreadPoolExecutor

    if list(candidate.buffers()):
        pytest.skip("running statistics are written by every call, as in eager")
    inputs = [subject.inputs(seed=seed) for seed in range(8)]
    expected = [checking.run(candidate, x) for x in inputs]
    torch.cuda.synchronize()

    def work(x: tuple[Tensor, ...]) -> object:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            ours = candidate(*x)
            torch.cuda.current_stream().synchronize()
            return ours

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, inputs))
    assert all(equal(a, b) for a, b in zip(found, expected, strict=True))
