"""What a captured graph knows about the user's program, and what capture refuses."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.export import ExportedProgram
from written import Written

from kernelwright import composites
from kernelwright.capture import capture
from kernelwright.errors import UnsupportedError
from kernelwright.graph import Graph, Node, Ref
from kernelwright.interpret import run
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem, problem_from_module
from kernelwright.spec import check_graph

BATCH = sympy.Symbol("batch", integer=True, positive=True)


def captured(module: nn.Module, *inputs: Tensor) -> Graph:
    graph = capture(problem_from_module(module, inputs))
    check_graph(graph, "capture")
    return graph


def only(graph: Graph, op: str) -> Node:
    (node,) = (n for n in graph if n.op == op)
    return node


def test_origins_name_the_line_and_the_module(tmp_path: Path) -> None:
    path = tmp_path / "two_layers.py"
    path.write_text(
        dedent(
            """\
            import torch
            from torch import nn


            class Head(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.project = nn.Linear(8, 4)

                def forward(self, x):
                    return self.project(x)


            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.head = Head()

                def forward(self, x):
                    y = self.head(x)
                    return torch.relu(y)


            def get_inputs():
                return [torch.rand(5, 8)]


            def get_init_inputs():
                return []
            """
        )
    )
    graph = capture(load_problem(path, "cpu"))
    linear, relu = only(graph, "linear"), only(graph, "relu")
    assert (linear.origin.file, linear.origin.line) == ("two_layers.py", 11)
    assert linear.origin.module == "head.project"
    assert str(linear.origin) == "linear at two_layers.py:11 in head.project"
    assert str(relu.origin) == "relu at two_layers.py:21"
    assert relu.sources == (relu.name,)
    assert set(graph.targets.values()) == {"head.project.weight", "head.project.bias"}


def test_the_batch_is_symbolic_and_the_features_are_not() -> None:
    graph = captured(nn.Linear(8, 4), torch.rand(5, 8))
    assert only(graph, "input").type.shape == (BATCH, 8)
    assert only(graph, "linear").type.shape == (BATCH, 4)
    (name,) = graph.symbols
    assert name == "batch" and graph.symbols[name] == (only(graph, "input").name, 0)


def test_a_batch_of_one_is_still_a_batch() -> None:
    module = nn.Linear(8, 4)
    graph = captured(module, torch.rand(1, 8))
    assert only(graph, "input").type.shape == (BATCH, 8)
    for batch in (1, 2, 7):
        x = torch.rand(batch, 8)
        torch.testing.assert_close(run(graph, module, (x,))[0], module(x))


class Flatten(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0] * 3, 2)


def test_sizes_are_polynomials_of_the_batch() -> None:
    graph = captured(Flatten(), torch.rand(5, 6))
    assert graph[graph.results[0]].type.shape == (3 * BATCH, 2)
    x = torch.rand(4, 6)
    assert run(graph, Flatten(), (x,))[0].shape == (12, 2)


def test_arguments_are_complete_and_in_schema_order() -> None:
    class Add(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.add(x, 2.0)

    node = only(captured(Add(), torch.rand(3, 2)), "add")
    assert node.args == (Ref("x"), 2.0, 1)
    assert str(node.payload) == "torch.ops.aten.add.Tensor(%x, 2.0, alpha=1)"


def test_batch_norm_in_training_writes_its_buffers() -> None:
    module = nn.BatchNorm1d(6)
    x = torch.rand(5, 6)
    graph = captured(module, x)
    assert {buffer for buffer, _ in graph.mutations} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    output, written = run(graph, module, (x,))
    torch.testing.assert_close(output, module(x))
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(written[name], buffer)


def test_batch_norm_in_evaluation_writes_nothing() -> None:
    assert captured(nn.BatchNorm1d(6).eval(), torch.rand(5, 6)).mutations == ()


@pytest.mark.parametrize(
    ("forward", "guarded"),
    [
        (lambda m, x: x.t().contiguous(), True),
        (lambda m, x: x.expand(3, *x.shape).reshape(-1, 6), True),
        (lambda m, x: (lambda y: (y, y.t().contiguous()))(x.tanh()), True),
        (lambda m, x: x.tanh().t().contiguous(), False),
        (lambda m, x: (x.tanh(), x.exp().t().contiguous()), False),
        (lambda m, x: x.reshape(-1), False),
        (lambda m, x: x.repeat(3, 1), False),
    ],
)
def test_one_sample_that_shares_other_memory_is_not_taken(forward: Any, guarded: bool) -> None:
    tests = [guard.test for guard in captured(Written(forward), torch.randn(5, 6)).contract.guards]
    assert tests == [sympy.Ne(BATCH, 1)] * guarded
    alone = captured(Written(forward), torch.randn(1, 6))
    assert bool(alone.symbols) is not guarded
    assert (alone.contract.fixed is not None) is guarded


@pytest.mark.parametrize(
    ("forward", "repeats"),
    [
        (lambda m, x: x.expand(3, *x.shape).reshape(-1, 6), True),
        (lambda m, x: (x.tanh(), x.t()[:, :, None].expand(6, 5, 2).reshape(6, -1)), True),
        (lambda m, x: x[1:].t(), False),
        (lambda m, x: x.exp() * x, False),
    ],
)
def test_samples_that_are_all_one_are_not_taken(forward: Any, repeats: bool) -> None:
    graph = captured(Written(forward), torch.randn(5, 6))
    assert graph.contract.repeats == frozenset({"x"} if repeats else ())


def test_several_outputs_keep_their_structure() -> None:
    class Several(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            values, indices = torch.max(x, 1)
            return {"values": values, "rest": [indices, x.exp(), None]}

    module, x = Several(), torch.rand(3, 5)
    graph = captured(module, x)
    assert list(graph.outputs) == ["values", "rest"]
    result, _ = run(graph, module, (x,))
    expected = module(x)
    assert torch.equal(result["values"], expected["values"])
    assert torch.equal(result["rest"][0], expected["rest"][0])
    assert result["rest"][2] is None


def test_tensors_that_forward_makes_are_constants() -> None:
    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([1.0, 2.0])

    graph = captured(Scale(), torch.rand(3, 2))
    (value,) = graph.constants.values()
    assert value.tolist() == [1.0, 2.0]


def test_unused_work_is_dropped_but_sources_stay() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.rand(2))

        def forward(self, x: Tensor) -> Tensor:
            torch.exp(x)
            return x.tanh()

    graph = captured(Idle(), torch.rand(3, 2))
    assert [n.op for n in graph] == ["parameter", "input", "tanh"]


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp() if x.sum() > 0 else x.tanh()


class Variances(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gaussian_nll_loss(x, x, x.exp())


class Indices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        one = torch.ones(1, dtype=torch.int64)
        return F.ctc_loss(x[:, None], one[None], 3 * one, one)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Branch(), "The forward branches on the values of tensors"),
        (Variances(), "F.gaussian_nll_loss looks at the values of tensors, so the forward has no"),
        (nn.BatchNorm1d(2, momentum=None), "The forward of BatchNorm1d looks at the values of"),
        (Indices(), "The size of what aten._ctc_loss gives depends on the values of tensors, so"),
    ],
    ids=["data-dependent branch", "a function's", "a layer's", "data-dependent size"],
)
def test_what_has_no_graph_is_refused_in_one_sentence(module: nn.Module, sentence: str) -> None:
    with pytest.raises(UnsupportedError, match=sentence):
        captured(module, torch.rand(3, 2))


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, [3, 3], [2], [1]),
        lambda x: F.max_pool2d(x, [3], [2], 1, [1]),
        lambda x: F.max_pool2d(x, [3, 2], []),
        lambda x: F.max_pool3d(x[:, None], [2], [2], [1]),
        lambda x: F.max_pool1d(x[:, 0], [2], []),
        lambda x: F.max_pool2d(x, [2], return_indices=True)[0],
        lambda x: F.avg_pool2d(x, [2], [1, 2], [1], divisor_override=3),
        lambda x: F.avg_pool2d(x, 3, [2], [1]),
        lambda x: F.avg_pool3d(x[:, None], [2], []),
        lambda x: F.avg_pool1d(x[:, 0], 2, []),
    ],
)
def test_a_list_of_one_number_is_that_number_along_every_axis(pool: Any) -> None:
    module, x = Written(lambda m, x: pool(x.sigmoid()).exp()), torch.randn(3, 4, 7, 9)
    compiled = compile_problem(problem_from_module(module, (x,)), policy=ALWAYS)
    assert not any(region.call for region in compiled.planned.regions)
    torch.testing.assert_close(run_plan(compiled.planned, module, (x,)), module(x.double()))


class Relu(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y.relu_()
        return x * 2


@pytest.mark.parametrize(
    ("module", "name"),
    [(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)), "input_"), (Relu(), "y")],
)
def test_what_writes_into_an_input_runs_the_original(module: nn.Module, name: str) -> None:
    inputs = [torch.randn(3, 2) for _ in range(2 if name == "y" else 1)]
    compiled = compile_problem(problem_from_module(module, tuple(inputs)))
    reason = f"the forward writes into its input {name.rstrip('_')}"
    assert compiled.captured.contract.refused == reason and reason in compiled.source


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x.reshape(2, -1, 16).exp(),
        lambda m, x: x.view(-1, 2, 16).sum(1),
        lambda m, x: x.exp().reshape(3, -1).softmax(1),
        lambda m, x: torch.stack(x.chunk(2, 0)).sum(0),
        lambda m, x: x.view(x.shape[0] // 3, 3, -1).mean(1),
    ],
)
def test_a_batch_in_parts_is_that_of_the_example(forward: Any) -> None:
    compiled = compile_problem(problem_from_module(Written(forward), (torch.randn(6, 16),)))
    assert not compiled.captured.symbols and compiled.captured.contract.fixed is not None
    assert "part of the batch" in compiled.captured.contract.fixed
    assert "!= (6, 16)" in compiled.source


def test_every_node_prints_as_a_line() -> None:
    text = str(captured(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.rand(5, 8)))
    assert "f32[batch, 4] = linear(" in text
    assert text.splitlines()[-1].startswith("return ")


class ByItem(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().max().item() + 1.0)


class Unprobed(nn.Module):
    """Fake tensors have no memory that data_ptr could tell."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            x.data_ptr()
        return torch.tanh(x)


@pytest.mark.parametrize("model", [ByItem, Unprobed])
def test_results_lie_as_the_input_does(model: type[nn.Module]) -> None:
    """Also where a forward reads numbers out of tensors, or could not be looked at at all."""
    assert captured(model(), torch.randn(4, 6)).contract.follows == {"x"}


class Attended(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.parametrize(
    ("module", "x", "order"),
    [
        (nn.AvgPool1d(2), torch.randn(3, 4, 6), (0, 2, 1)),
        (nn.AdaptiveAvgPool1d(5), torch.randn(3, 8, 8), (0, 2, 1)),
        (nn.AdaptiveMaxPool1d(3), torch.randn(3, 4, 4), (0, 2, 1)),
        (nn.LPPool1d(2, 2), torch.randn(3, 4, 6), (0, 2, 1)),
        (nn.Upsample(3, mode="area"), torch.randn(2, 3, 4), (0, 2, 1)),
        (nn.MaxPool1d(2), torch.randn(3, 4, 6).requires_grad_(), (0, 2, 1)),
        (Attended(), torch.randn(4, 4, 3, 8), (1, 0, 2, 3)),
        (nn.ReflectionPad3d(1), torch.randn(2, 3, 3, 3, 3), (0, 2, 3, 4, 1)),
        (nn.ChannelShuffle(2), torch.randn(2, 4, 5, 5), (0, 2, 3, 1)),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else "",
)
def test_results_that_follow_one_order_alone(
    module: nn.Module, x: Tensor, order: tuple[int, ...]
) -> None:
    """Of no other, as that of the axes the other way round: a pool of a line is one of an image."""
    moved = x.permute(order).contiguous().permute([order.index(i) for i in range(x.ndim)])
    assert module(moved).stride() != module(x).stride()
    (name,) = (n.name for n in captured(module, x) if n.op == "input")
    assert captured(module, x).contract.follows == {name}


class PoolOfTurned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d((x * self.scale).transpose(1, 2), 2)


def test_results_that_lie_otherwise_while_gradients_are_recorded() -> None:
    """The CPU has a max pool for when no gradient will be asked for; the example asks for one."""
    x = torch.randn(3, 4, 6)
    contract = captured(PoolOfTurned(), x).contract
    assert contract.strides == (PoolOfTurned()(x).stride(),) == ((12, 1, 6),)
    assert contract.recorded is not None
    assert {*contract.recorded} == {frozenset({"scale"}), frozenset({"x", "scale"})}
    frozen = PoolOfTurned().requires_grad_(False)
    contract = captured(frozen, x).contract
    assert contract.strides == (frozen(x).stride(),) == ((12, 2, 1),)
    assert contract.recorded == (frozenset(),)
    assert captured(nn.MaxPool1d(2), x).contract.recorded is None


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("bare", [False, True])
def test_attention_that_has_a_way_of_its_own_without_gradients(bare: bool) -> None:
    """Also where only the call says that query, key and value are one tensor."""
    module, x = (SelfAttention().eval(), torch.randn(3, 5, 8))
    given = (x, x, x) if bare else (x,)
    contract = captured(module.attention if bare else module, *given).contract
    assert contract.strides is not None and contract.strides[0] == module(x).stride()
    with torch.no_grad():
        assert module(x).stride() != contract.strides[0]
    assert contract.recorded is not None and frozenset() not in contract.recorded
    assert captured(module.train(), x).contract.recorded is None


class Viewed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1).sum(1)


def test_an_order_that_eager_refuses_is_left_to_it() -> None:
    contract = captured(Viewed(), torch.randn(4, 3, 2)).contract
    assert contract.follows == contract.copies == {"x"}
    contract = captured(nn.Sequential(nn.Flatten(), nn.ReLU()), torch.randn(4, 3, 2)).contract
    assert not contract.follows and not contract.copies


class Filled(nn.Module):
    """The very input, or a copy of it."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.contiguous()[:, 1:], y.tanh()


def test_an_input_that_eager_would_copy_is_left_to_it() -> None:
    """A slice of the copy has the strides that a slice of the input has, but is elsewhere."""
    contract = captured(Filled(), torch.randn(4, 3, 2), torch.randn(4, 3)).contract
    assert contract.memory == ("x", "-3")
    assert contract.follows == {"x", "y"} and contract.copies == {"x"}


class Distances(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.mean((1, 2), keepdim=True)
        return F.triplet_margin_loss(y, x, y + 1, swap=True, reduction="none"), y.norm(dim=-1)


@pytest.mark.parametrize("samples", [4, 1])
def test_a_norm_drops_its_axis(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In releases whose rule, as this one, takes no axis from the end for one of those of one."""
    norm = torch.ops.aten.linalg_vector_norm.default
    rule = decomposition_table[norm]

    def older(x: Tensor, order: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        if dim and not keepdim and all(x.shape[d] == 1 for d in dim):
            return x.view([size for d, size in enumerate(x.shape) if d not in dim])
        return rule(x, order, dim, keepdim, **kwargs)

    monkeypatch.setitem(decomposition_table, norm, older)
    graph = captured(Distances(), torch.randn(samples, 2, 3))
    assert [str(graph[name].type) for name in graph.results] == ["f32[batch, 2]", "f32[batch, 1]"]
    assert decomposition_table[norm] is older


class Signs(nn.Module):
    """The target of this loss takes no gradient."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.soft_margin_loss(x, x.sign()), x.mT.tanh()


def test_memory_is_known_without_gradients() -> None:
    contract = captured(Signs(), torch.randn(4, 3, 2)).contract
    assert contract.reaches is None
    assert contract.strides == ((), (6, 1, 2)) and contract.follows == {"x"}


def test_a_number_read_out_of_a_tensor_hides_no_gradient() -> None:
    assert captured(ByItem(), torch.randn(4, 6)).contract.reaches == (frozenset({"x"}),)


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x.flatten(), 0)


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x).add_(1.0)


class Picks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.tensor([1, 0])]


@pytest.mark.parametrize(
    ("module", "again"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Softmax(-1)), 0),
        (nn.Flatten(0), 0),
        (Flat(), 0),
        (nn.Unflatten(1, (2, 3)), 0),
        (InPlace(), 1),
        (Picks(), 0),
        (nn.Softshrink(), 1),
        (nn.Dropout(), 1),
        (nn.BatchNorm1d(6), 1),
    ],
)
def test_a_program_is_traced_again_where_that_changes_it(
    module: nn.Module, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[ExportedProgram] = []
    decompose = ExportedProgram.run_decompositions

    def run(program: ExportedProgram, *rest: Any) -> ExportedProgram:
        traced.append(program)
        return decompose(program, *rest)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", run)
    graph = captured(module, torch.rand(5, 6))
    assert len(traced) == (again if composites._is_tried() else 1)
    monkeypatch.setattr(composites, "_stays", lambda node: False)
    whole = captured(module, torch.rand(5, 6))
    # torch calls what has another shape alone a view; here it has the user's name.
    words = {"flatten.using_ints": "view", "unflatten": "view"}
    assert [words.get(n.op, n.op) for n in graph] == [n.op for n in whole]
    assert [n.type for n in graph] == [n.type for n in whole]


class Turned(nn.Module):
    """A reshape that copies, a dropout that does nothing, sizes that Python multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(x.transpose(1, 2)).reshape(x.shape[0] * 2, -1).contiguous()
        return torch.softmax(y, dim=1).flatten()


def test_shapes_and_idle_dropout_need_no_second_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    if composites._is_tried():
        monkeypatch.setattr(ExportedProgram, "run_decompositions", None)
    module, x = Turned().eval(), torch.randn(3, 4, 6)
    compiled = compile_problem(problem_from_module(module, (x,)), target="cpu")
    torch.testing.assert_close(
        run_plan(compiled.planned, module, (x,)), module(x.double()), rtol=1e-6, atol=1e-7
    )
