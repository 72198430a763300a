"""The product of a few rows on the GPU: values, special values, repeats, layouts, graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import checking
import pytest
import torch

from kernelwright.bench.context import matmul_precision
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear({depth}, {columns}, bias={bias})
        self.norm = nn.LayerNorm({columns})

    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.randn({rows}, {depth})]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Spec:
    columns: int
    depth: int
    bias: bool = True
    result: str = "self.linear(x)"
    rows: str = "16"
    precision: str = "highest"

    @property
    def most(self) -> int:
        return 8 if self.columns * self.depth > 8 << 20 else 16


SPECS = {
    "apart": Spec(8195, 516),
    "apart_no_bias": Spec(8192, 8192, bias=False),
    "shared": Spec(1001, 1000),
    "shared_tiny": Spec(3, 4, bias=False),
    "normed": Spec(1000, 260, result="self.norm(self.linear(x))"),
    "stacked": Spec(70, 72, rows="16, 2"),
    "high": Spec(4100, 516, precision="high"),
}


@pytest.fixture(scope="module", params=SPECS)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, extensions: Path
) -> Iterator[checking.Subject]:
    """A model as it is emitted for users: small products are not generated."""
    name: str = request.param
    spec = SPECS[name]
    folder = tmp_path_factory.mktemp("few")
    path, emitted = folder / f"{name}.py", folder / f"{name}_new.py"
    path.write_text(SOURCE.format(**vars(spec)))
    compiled = compile_problem(load_problem(path, "cuda", spec.precision))
    emitted.write_text(compiled.source)
    said = checking.build(emitted)
    assert not said, said
    with matmul_precision(spec.precision):
        yield checking.loaded(path, compiled, emitted, "cuda")


@pytest.fixture
def spec(request: pytest.FixtureRequest) -> Spec:
    return SPECS[request.node.callspec.params["subject"]]


def test_values_for_every_number_of_rows(subject: checking.Subject, spec: Spec) -> None:
    for batch in (*range(1, spec.most + 2), 0):
        inputs = subject.inputs(batch)
        rows = inputs[0].numel() // spec.depth
        with checking.spied(subject) as names:
            checking.run(subject.modules()[0], inputs)
        assert any(n.endswith("_few_rows") for n in names) == (rows <= spec.most)
        checking.check_values(subject, inputs, f"batch {batch}")


def test_special_values_and_repeats(subject: checking.Subject, spec: Spec) -> None:
    candidate, eager, _ = subject.modules()
    weight = candidate.get_parameter("linear.weight").data
    for batch in (1, spec.most):
        (x,) = subject.inputs(batch)
        x = x[: max(1, spec.most // (x.numel() // spec.depth // batch))]
        x[0].view(-1)[0] = torch.inf
        x[-1].view(-1)[-1] = torch.nan
        weight[0, 0] = 0.0
        weight[-1, 1] = -torch.inf
        eager.get_parameter("linear.weight").data.copy_(weight)
        ours, theirs = checking.run(candidate, (x,)), checking.run(eager, (x,))
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.isposinf(), theirs.isposinf())
        for _ in range(20):
            again = checking.run(candidate, (x,))
            assert torch.equal(again.view(torch.int32), ours.view(torch.int32))


def test_layouts_streams_and_graphs(subject: checking.Subject) -> None:
    candidate = subject.modules()[0]
    (x,) = subject.inputs(1)
    expected = checking.run(candidate, (x,))
    assert torch.equal(checking.run(candidate, (checking.scattered(x),)), expected)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.stream(side):
        beside = candidate(x)
    torch.cuda.synchronize()
    assert torch.equal(beside, expected)
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = candidate(x)
    for _ in range(3):
        captured.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, expected)
