"""The host program of files for a GPU, run here on kernels of straw (launched.py).

The same call is made twice: with its kernels in runs, and one by one as the other ways print them.
Kernels, sizes and who reads what whom wrote must be the same; and what a run keeps in its own
memory must still be there when it is read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
from launched import Straw, straws
from torch import Tensor, nn

from kernelwright.lower.steps import WORKSPACE
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem, problem_from_module

CHOSEN = (
    "conv2d_batch_norm_train_hardswish",
    "conv2d_min_tanh_tanh",
    "half_gelu_group_norm",
    "linear_multiply_batch_norm_train",
    "linear_relu_linear",
    "linear_sigmoid_linear_logsumexp",
    "nested_outputs",
    "sort_diamond",
    "window_attention",
)
PATHS = [*checking.EXAMPLES, *(p for p in checking.MODELS if p.stem in CHOSEN)]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


@dataclass(frozen=True)
class Pair:
    """A file as it is, and with its kernels one by one."""

    runs: Straw
    apart: Straw

    @property
    def compiled(self) -> Compiled:
        return self.runs.compiled

    def tensors(self, batch: int | None = None) -> tuple[Tensor, ...]:
        """The inputs and the state of a call."""
        problem = self.compiled.problem
        inputs = problem.inputs
        if batch is not None:
            inputs = tuple(torch.zeros((batch, *x.shape[1:]), dtype=x.dtype) for x in inputs)
        return (*inputs, *self.runs.module._kw_state(problem.module))

    def check(self, given: tuple[Tensor, ...], kept: Any = None, **machine: Any) -> list[str]:
        """That both start the same; the names of the kernels."""
        call(self.apart, given, kept, **machine)
        call(self.runs, given, kept, **machine)
        compare(self.runs, self.apart)
        return [one.kernel for one in self.runs.started]


def call(emitted: Straw, given: tuple[Tensor, ...], kept: Any = None, **machine: Any) -> None:
    before = ({} if kept is None else kept,) * emitted.module._KW_FUSION.freezes
    with emitted.on_gpu(**machine) as module, torch.no_grad():
        module._kw_fused(*before, *given)


def compare(runs: Straw, apart: Straw) -> None:
    """The same kernels with the same sizes, on what the same kernels wrote."""
    assert [(s.kernel, s.sizes) for s in runs.started] == [
        (s.kernel, s.sizes) for s in apart.started
    ]
    bytes = [[t.numel() * t.itemsize for t in of] for of in apart.handed]
    rooms = [
        (t.data_ptr(), t.data_ptr() + t.numel() * t.itemsize) for of in runs.handed for t in of
    ]
    last: dict[int, tuple[int, int]] = {}  # one by one: who wrote at an address
    there: list[tuple[int, int, tuple[int, int]]] = []  # in runs: from, to, who wrote
    pairs = zip(runs.started, apart.started, bytes, strict=True)
    for i, (one, other, sizes) in enumerate(pairs):
        step = runs.launches[one.kernel]
        reads = len(step.reads)
        written = [n for n, name in enumerate((*step.reads, *step.writes))
                   if n >= reads or name in WORKSPACE]  # fmt: skip
        ends = [place + size for place, size in zip(one.places, sizes, strict=True)]
        for n, (place, end) in enumerate(zip(one.places, ends, strict=True)):
            assert any(a <= place and end <= b for a, b in rooms), "memory that nobody asked for"
            wrote = last.get(other.places[n]) if n < reads else None
            assert wrote is None or (place, end, wrote) in there, (one.kernel, step.reads[n])
        for n, m in itertools.combinations(written, 2):
            if other.places[n] != other.places[m]:
                apart_there = ends[n] <= one.places[m] or ends[m] <= one.places[n]
                assert apart_there or 0 in (sizes[n], sizes[m])
        for n in written:
            last[other.places[n]] = (i, n)
            there = [t for t in there if t[1] <= one.places[n] or ends[n] <= t[0]]
            there.append((one.places[n], ends[n], (i, n)))


def paired(compiled: Compiled, folder: Path) -> Pair:
    assert compiled.kernels
    return Pair(*straws(compiled, folder))


@pytest.fixture(scope="module", params=PATHS, ids=checking.name_of)
def emitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("straw")
    path = request.param
    if path in checking.EXAMPLES:
        path = checking.reduced_example(path, folder)
    return paired(compile_problem(load_problem(path, "cpu"), target="cuda", policy=ALWAYS), folder)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    module = nn.Sequential(*(Block(64) for _ in range(3))).eval()
    problem = problem_from_module(module, (torch.randn(40, 64),))
    compiled = compile_problem(problem, target="cuda", policy=ALWAYS)
    return paired(compiled, tmp_path_factory.mktemp("layers"))


def test_a_call_like_the_example(emitted: Pair) -> None:
    assert emitted.check(emitted.tensors())


@pytest.mark.parametrize("batch", [2, 7, 300, 3000])
def test_other_batches(emitted: Pair, batch: int) -> None:
    emitted.check(emitted.tensors(batch))


def test_another_gpu_has_the_librarys_products(emitted: Pair) -> None:
    assert emitted.check(emitted.tensors(), capability=(8, 0))


def test_a_transformer_is_one_run(layers: Pair) -> None:
    """Equal layers are one function; values that are over make room."""
    names = layers.check(layers.tensors())
    assert len(names) >= 3 * 2 and len(layers.runs.handed) == 1
    source = layers.compiled.source
    assert source.count("_kw_run(\n") == 1 and "};  // is over" not in source
    assert ";  // is over" in source


def test_frozen_weights_bring_their_halves(layers: Pair) -> None:
    kept = {}
    for weight in layers.compiled.lowered.frozen:
        tensor = layers.compiled.problem.module.get_parameter(weight.target)
        halves, scales = torch.zeros(4096), torch.zeros(4096)
        kept[weight.target] = (halves, scales, layers.runs.module._kw_stamped(tensor))
    layers.check(layers.tensors(), kept)
    places = {place for one in layers.runs.started for place in one.places}
    assert places >= {halves.data_ptr() for halves, *_ in kept.values()}
    some = dict([*kept.items()][:1])
    layers.check(layers.tensors(), some)
    assert len(layers.runs.handed) == len(layers.runs.started), "some are frozen: one by one"


def test_a_frozen_weight_must_stay_what_it_was(layers: Pair) -> None:
    (first, *_) = layers.compiled.lowered.frozen
    kept = {first.target: (torch.zeros(8), torch.zeros(8), (0, 0))}
    with pytest.raises(RuntimeError, match=f"{first.target} changed after freeze"):
        call(layers.apart, layers.tensors(), kept)


def test_watchers_are_told_what_a_run_starts(layers: Pair) -> None:
    names: list[str] = []
    layers.runs.library.watchers.append(names.extend)
    call(layers.runs, layers.tensors())
    assert names == [f"launch_{one.kernel}" for one in layers.runs.started]
    layers.runs.library.watchers.clear()
    call(layers.runs, layers.tensors())
    assert len(names) == len(layers.runs.started)


def test_a_launch_that_fails_says_which(layers: Pair) -> None:
    call(layers.runs, layers.tensors())
    fails = layers.runs.started[2].kernel
    layers.runs.fails = fails
    with pytest.raises(RuntimeError, match=f"launch_{fails} failed: nine"):
        call(layers.runs, layers.tensors())
    assert len(layers.runs.started) <= 3
    layers.runs.fails = ""


def test_operands_are_dense_and_aligned(layers: Pair) -> None:
    x, *state = layers.tensors()
    shifted = torch.empty(x.numel() + 1)[1:].view(x.shape)
    gaps = torch.empty(x.shape[1], x.shape[0]).t()
    for odd in (shifted, gaps):
        call(layers.runs, (odd, *state))
        first = layers.runs.started[0].places
        assert odd.data_ptr() not in first
        assert all(place % 16 == 0 for one in layers.runs.started for place in one.places)


class Attentive(Block):
    """With attention of two heads in front."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split(x.shape[2], dim=2)
        q, k, v = (p.view(*x.shape[:2], 2, -1).transpose(1, 2) for p in parts)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return super().forward(x + y.transpose(1, 2).reshape(x.shape))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    problem = problem_from_module(Attentive(64).train(), (torch.randn(3, 32, 64),), "highest")
    policy = replace(ALWAYS, backward=True)
    compiled = compile_problem(problem, target="cuda", policy=policy)
    assert compiled.trained is not None, compiled.untrained
    return paired(compiled, tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("batch", [3, 2])
def test_a_training_step_in_runs(trained: Pair, of_input: bool, batch: int) -> None:
    """The forward that keeps values and the backward, in runs and one by one."""
    given = trained.tensors(batch)
    for straw in (trained.apart, trained.runs):
        with straw.on_gpu() as module, torch.no_grad():
            found = module._kw_saving(*given)
    compare(trained.runs, trained.apart)
    fusion = trained.runs.module._KW_FUSION
    count = len(fusion.reaches)
    homes = {"tensor": given, "copy": given, "result": found, "made": found[count:]}
    kept = [homes[kind][place] for kind, place, _ in fusion.training.kept]
    wanted = (of_input, *[True] * (len(given) - 1))
    for straw in (trained.apart, trained.runs):
        with straw.on_gpu() as module, torch.no_grad():
            made = module._kw_backward(wanted, found[0], *kept)
        assert [x is not None for x in made] == [*wanted]
        assert all(x is None or x.shape == t.shape for x, t in zip(made, given, strict=True))
    compare(trained.runs, trained.apart)
    text = trained.compiled.source
    assert '_kw_run(\n            "backward' in text and '"saving' in text


def test_a_backward_of_few_gradients_runs_few_kernels(trained: Pair) -> None:
    given = trained.tensors()
    with trained.runs.on_gpu() as module, torch.no_grad():
        found = module._kw_saving(*given)
    fusion = module._KW_FUSION
    homes = {"tensor": given, "copy": given, "result": found, "made": found[len(fusion.reaches) :]}
    counts = []
    for one in range(len(given)):
        wanted = tuple(i == one for i in range(len(given)))
        kept = [
            homes[kind][place] if any(wanted[i] for i in needs) else None
            for kind, place, needs in fusion.training.kept
        ]
        with trained.runs.on_gpu() as module, torch.no_grad():
            made = module._kw_backward(wanted, found[0], *kept)
        assert [x is not None for x in made] == [*wanted]
        counts.append(len(trained.runs.started))
    assert min(counts) < 3 < max(counts)
