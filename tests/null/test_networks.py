"""What must hold of the plans of whole networks; nothing is built here."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kernelwright import capture as capturing
from kernelwright import modes, tracing
from kernelwright.capture import capture
from kernelwright.errors import UnsupportedError
from kernelwright.graph import hint
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import Problem, load_problem, load_source, problem_from_module

sys.path.insert(0, str(checking.TESTS.parent / "benchmarks"))

import network_files


def network(family: str, **changes: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """The Model of a family, from its small sizes with some of them changed."""
    user = load_source(network_files.FOLDER / f"{family}.py")
    user.sizes = user.VARIANTS["small"] | changes
    torch.manual_seed(0)
    return user.Model(*user.get_init_inputs()), tuple(user.get_inputs())


def compiled(family: str, target: str, **changes: Any) -> Compiled:
    model, inputs = network(family, **changes)
    return compile_problem(problem_from_module(model.eval(), inputs), target=target)


@pytest.mark.parametrize(
    ("family", "target", "depths"),
    [
        ("mlp", "cpu", [dict(layers=n) for n in (4, 5, 6)]),
        ("vit", "cuda", [dict(layers=n) for n in (2, 3, 4)]),
        ("resnet", "cuda", [dict(stages=(n,)) for n in (2, 3, 4)]),
    ],
)
def test_every_layer_adds_the_same_steps(
    family: str, target: str, depths: list[dict[str, Any]]
) -> None:
    steps = [len(compiled(family, target, **sizes).planned.regions) for sizes in depths]
    assert steps[2] - steps[1] == steps[1] - steps[0] > 0


def test_layers_share_their_kernels_and_read_a_constant_number_of_buffers() -> None:
    made = [compiled("vit", "cuda", layers=n) for n in (2, 4)]
    kernels = [len(c.kernels) for c in made]
    launchers = [c.source.count('extern "C" int launch_') for c in made]
    reads = [max(len(r.reads) for r in c.planned.regions) for c in made]
    assert kernels[0] == kernels[1]
    assert launchers[0] == launchers[1]
    assert reads[0] == reads[1]


class Scored(nn.Module):
    """Rows that are tokens of a batch, or the batch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(128, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.reshape(-1, 128)).softmax(dim=1)


@pytest.mark.parametrize(("shape", "count"), [((600, 128), 1), ((6, 100, 128), 0)])
def test_panels_walk_the_batch_alone(shape: tuple[int, ...], count: int) -> None:
    """A loop over the batch does not reach all rows where a sample has several."""
    made = compile_problem(problem_from_module(Scored(), torch.randn(shape)), target="cpu")
    assert len(made.panels) == count


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The mode of the module at each export."""
    seen: list[bool] = []
    trace = tracing.trace

    def counted(problem: Problem, free: bool, watch: bool = False) -> tracing.Trace:
        seen.append(problem.training)
        return trace(problem, free, watch)

    monkeypatch.setattr(capturing, "trace", counted)
    return seen


class Mixed(nn.Module):
    """`kind` chooses what in it asks for the mode."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(4, 4)
        self.layer = {
            "dropout": lambda: nn.Dropout(0.5),
            "no dropout": lambda: nn.Dropout(0.0),
            "batch norm": lambda: nn.BatchNorm1d(4),
            "batch statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
            "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        }.get(kind, nn.Identity)()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.kind == "attention":
            return self.layer(y[:, None], y[:, None], y[:, None])[0]
        if self.kind == "asks":
            return y.exp() if self.training else y.sin()
        if self.kind == "asks in vain":
            return (y if self.training else self.layer(y)).exp()
        return self.layer(y).exp()


@pytest.mark.parametrize(
    ("kind", "expected", "count"),
    [
        ("nothing", "any", 1),
        ("dropout", "own", 1),
        ("no dropout", "any", 1),
        ("batch norm", "own", 1),
        ("batch statistics", "any", 1),
        ("attention", "any", 2),
        ("asks", "own", 2),
        ("asks in vain", "any", 2),
    ],
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_mode_is_found_without_a_second_trace(
    kind: str, expected: str, count: int, mode: str, traces: list[bool]
) -> None:
    module = Mixed(kind).train(mode == "train")
    graph = capture(problem_from_module(module, torch.randn(6, 4)))
    assert graph.mode == (mode if expected == "own" else expected)
    assert len(traces) == count
    assert module.training == (mode == "train")
    assert "training" not in vars(nn.Module), "the module class was left as it was"


class OwnTraining(nn.Module):
    """A class whose `training` is a property of its own, which nothing can hear."""

    @property
    def training(self) -> bool:
        return vars(self).get("on", True)

    @training.setter
    def training(self, value: bool) -> None:
        vars(self)["on"] = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if self.training else x.sin()


def test_a_training_flag_of_the_users_own_is_traced_twice(traces: list[bool]) -> None:
    graph = capture(problem_from_module(OwnTraining(), torch.randn(6, 4)))
    assert graph.mode == "train"
    assert len(traces) == 2


def test_modes_heard_are_those_of_the_forward() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with modes.heard(model) as found:
        model[0](torch.randn(2, 3))
        assert found == []
        model(torch.randn(2, 3))
    assert found == [model[1]]
    assert modes.matters(found) is True


@pytest.mark.parametrize(
    ("kind", "operator", "options"),
    [
        ("LSTM", "lstm", dict(num_layers=2, dropout=0.1)),
        ("LSTM", "lstm", dict(bidirectional=True, proj_size=3)),
        ("GRU", "gru", dict(batch_first=True)),
        ("RNN", "rnn_tanh", {}),
        ("RNN", "rnn_relu", dict(nonlinearity="relu", bias=False)),
    ],
)
def test_a_recurrence_is_one_call_whatever_its_length(
    kind: str, operator: str, options: dict[str, Any]
) -> None:
    cell = getattr(nn, kind)(8, 8, **options)
    steps = torch.randn(4, 512, 8) if options.get("batch_first") else torch.randn(512, 4, 8)
    started = time.process_time()
    problem = problem_from_module(cell, (steps,))
    graph = capture(problem)
    assert time.process_time() - started < 20
    calls = [n for n in graph if n.op == operator]
    assert len(calls) == 1
    assert len([n for n in graph if n.payload is not None]) < 20
    results = cell(steps)
    eager = [results[0], *(results[1] if isinstance(results[1], tuple) else (results[1],))]
    shapes = [n.type.shape for n in graph if n.op == "getitem"]
    assert [tuple(hint(d, problem.batch) for d in shape) for shape in shapes] == [
        tuple(x.shape) for x in eager
    ]
    assert graph.contract.strides == tuple(x.stride() for x in eager)
    weights = {n.name for n in graph if n.op == "parameter"}
    inputs = {n.name for n in graph if n.op == "input"}
    assert all(reached == weights | inputs for reached in graph.contract.reaches)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 3, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(self.gru(packed)[0])[0].exp()


def test_packed_sequences_are_refused_with_the_cause() -> None:
    x, lengths = torch.randn(2, 4, 3), torch.tensor([4, 2])
    inside = problem_from_module(Packed(), (x, lengths))
    outside = problem_from_module(
        nn.GRU(3, 3, batch_first=True), (pack_padded_sequence(x, lengths, batch_first=True),)
    )
    for problem in (inside, outside):
        with pytest.raises(UnsupportedError, match="packed sequences"):
            capture(problem)


def test_an_ordinary_model_is_read_from_its_file(tmp_path: Path) -> None:
    """What the benchmarks write is a model file like any other."""
    for name, family in network_files.networks(small=False).items():
        path = network_files.write(family, name, tmp_path)
        assert f'CHOSEN = "{name}"' in path.read_text()
    path = network_files.write("mlp", "mlp20", tmp_path)
    assert len(list(load_problem(path, "cpu").module.parameters())) == 40
