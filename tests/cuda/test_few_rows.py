"""Products of few rows on the GPU: values, special values, doubt, repeats, layouts, graphs."""

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
        size = self.columns * self.depth
        return max(8 if size > 8 << 20 else 16, min(128, (1 << 24) // size) // 8 * 8)

    @property
    def thin(self) -> bool:
        return self.columns * self.depth >= (1 << 20 if self.precision == "highest" else 1 << 26)


SPECS = {
    "apart": Spec(8195, 516),
    "apart_no_bias": Spec(8192, 8192, bias=False),
    "shared": Spec(1001, 1000),
    "shared_tiny": Spec(3, 4, bias=False),
    "normed": Spec(1000, 260, result="self.norm(self.linear(x))"),
    "stacked": Spec(70, 72, rows="16, 2"),
    "high": Spec(4100, 516, precision="high"),
    # Ten parts of the depth, tiles of columns and steps of depth that are not whole.
    "thin": Spec(1201, 1236),
    "thin_even": Spec(2176, 1024, bias=False),
    "thin_normed": Spec(4100, 516, result="self.norm(self.linear(x))"),
    "thin_high": Spec(8200, 8196, precision="high"),
}
THIN = [name for name, spec in SPECS.items() if spec.thin]
THIN_ROWS = (17, 33, 64, 65, 100, 128, 129, 192, 200, 255, 256, 257)


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
    counts = {*range(18), 31, 32, 33, 63, 64, 65, 127, spec.most, spec.most + 1}
    for batch in (n for n in sorted(counts) if n <= spec.most + 1):
        inputs = subject.inputs(batch)
        rows = inputs[0].numel() // spec.depth
        with checking.spied(subject) as names:
            checking.run(subject.modules()[0], inputs)
        assert any(n.endswith("_few_rows") for n in names) == (rows <= spec.most)
        checking.check_values(subject, inputs, f"batch {batch}")


def rows_of_thin(subject: checking.Subject) -> int:
    """Up to how many rows a thin product runs: a generated one may come before its end."""
    regions = subject.compiled.planned.regions
    fewest = [r.gemm.fewest for r in regions if r.gemm is not None]
    (thin,) = (r.thin for r in subject.compiled.planned.library if r.thin)
    return min([thin.most, *(rows - 1 for rows in fewest)])


def poison() -> None:
    """What the allocator hands out next is full of NaN."""
    rooms = [torch.full((1 << 24,), torch.nan, device="cuda") for _ in range(4)]
    rooms += [torch.full((1 << k,), torch.nan, device="cuda") for k in range(6, 18)]
    torch.cuda.synchronize()


@pytest.mark.parametrize("subject", THIN, indirect=True)
def test_values_of_thin_products(subject: checking.Subject, spec: Spec) -> None:
    for rows in THIN_ROWS:
        inputs = subject.inputs(rows)
        poison()
        with checking.spied(subject) as names:
            checking.run(subject.modules()[0], inputs)
        expected = spec.most < rows <= rows_of_thin(subject)
        assert any(n.endswith("_thin") for n in names) == expected, rows
        checking.check_values(subject, inputs, f"{rows} rows")


@pytest.mark.parametrize("subject", ["thin", "thin_even", "thin_high"], indirect=True)
def test_thin_products_that_the_split_leaves_in_doubt(
    subject: checking.Subject, spec: Spec
) -> None:
    """Numbers far apart in one row: what the small ones add must not be lost."""
    candidate, eager, exact = subject.modules()
    weight = candidate.get_parameter("linear.weight").data
    (x,) = subject.inputs(60)
    weight[3, 5] = 1e30  # meets zeros alone
    weight[7] *= 1e-40
    weight[8, ::3] *= 1e-12
    weight[9] = 0.0
    x[:, 5] = 0.0
    x[11] *= 1e-30
    x[12] *= 1e25
    x[13, ::2] *= 1e-9
    x[14] = 0.0
    for module in (eager, exact):
        module.get_parameter("linear.weight").data.copy_(weight)
    ours, theirs = checking.run(candidate, (x,)), checking.run(eager, (x,))
    right = checking.run(exact, (x.double(),))
    sizes = x.double().abs() @ weight.double().abs().t()
    if spec.bias:
        sizes += exact.get_parameter("linear.bias").data.abs()
    eps = 2e-6 if spec.precision == "highest" else 2e-3
    error, other = (ours - right).abs(), (theirs - right).abs()
    assert (error <= eps * sizes + 2 * other + 1e-43).all()


@pytest.mark.parametrize("subject", ["thin", "thin_even", "thin_normed"], indirect=True)
def test_special_values_and_repeats_of_thin_products(subject: checking.Subject) -> None:
    candidate, eager, _ = subject.modules()
    weight = candidate.get_parameter("linear.weight").data
    weight[0, 0] = 0.0
    weight[-1, 1] = -torch.inf
    weight[130, 70] = torch.nan
    weight[131, 70] = 1e38
    eager.get_parameter("linear.weight").data.copy_(weight)
    for rows in (40, 128, 190):
        (x,) = subject.inputs(rows)
        x[0, 0] = torch.inf
        x[-1, -1] = torch.nan
        x[3, 70] = 1e38
        ours, theirs = checking.run(candidate, (x,)), checking.run(eager, (x,))
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.isposinf(), theirs.isposinf())
        for _ in range(20):
            again = checking.run(candidate, (x,))
            assert torch.equal(again.view(torch.int32), ours.view(torch.int32))


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


def test_layouts_streams_and_graphs(subject: checking.Subject, spec: Spec) -> None:
    check_layouts_streams_and_graphs(subject, 1)
    if spec.thin:
        check_layouts_streams_and_graphs(subject, 60)


def check_layouts_streams_and_graphs(subject: checking.Subject, batch: int) -> None:
    candidate = subject.modules()[0]
    (x,) = subject.inputs(batch)
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
