"""A contraction is index maps: carried out literally, they give what the operator gives.

`literally` walks the whole loop nest of a Contraction: it reads both operands at the places that
the maps name (zero outside), multiplies, and adds into the result. `by_strides` does what a
generated product would: it reads both operands out of flat memory by the strides of a Form.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Written

from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.graph import Affine, Contraction, Graph, Node, hint
from kernelwright.interpret import every_value
from kernelwright.plan.operands import Form, form_of
from kernelwright.problem import problem_from_module

BATCH = 3


def places(index: tuple[Affine, ...], nest: list[Tensor], shape: torch.Size) -> tuple[Any, Tensor]:
    """The places in a tensor at every step of the nest, and whether they are inside of it."""
    found, inside = [], torch.ones(nest[0].shape, dtype=torch.bool)
    for place, size in zip(index, shape, strict=True):
        at = sum((nest[a] * step for a, step in place.terms), torch.zeros_like(nest[0]))
        at = at + place.offset
        inside &= (at >= 0) & (at < size)
        found.append(at.clamp(0, size - 1))
    return tuple(found), inside


def literally(contraction: Contraction, left: Tensor, right: Tensor, shape: torch.Size) -> Tensor:
    sizes = [hint(d, BATCH) for d in contraction.sizes]
    steps = torch.tensor(list(itertools.product(*(range(s) for s in sizes))))
    nest = [steps[:, i] for i in range(len(sizes))]
    a, a_inside = places(contraction.left, nest, left.shape)
    b, b_inside = places(contraction.right, nest, right.shape)
    c, c_inside = places(contraction.out, nest, shape)
    terms = torch.where(a_inside & b_inside & c_inside, left[a] * right[b], 0.0)
    return torch.zeros(shape, dtype=left.dtype).index_put(c, terms, accumulate=True)


def by_strides(form: Form, left: Tensor, right: Tensor, shape: torch.Size) -> Tensor:
    outer, inner, rows, columns, depth = (
        hint(d, BATCH) for d in (*form.batch, form.rows, form.columns, form.depth)
    )

    def read(operand: Any, memory: Tensor, count: int) -> Tensor:
        numbers = (operand.outer, operand.inner, operand.row, operand.depth)
        strides = [hint(s, BATCH) for s in numbers]
        sizes = (outer, inner, count, depth)
        return memory.contiguous().as_strided(sizes, strides, hint(operand.offset, BATCH))

    product = read(form.left, left, rows) @ read(form.right, right, columns).transpose(-1, -2)
    return product.reshape(shape)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


X, HEADS, IMAGES, VOLUMES = (BATCH, 6), (BATCH, 5, 12), (BATCH, 4, 5, 5), (BATCH, 2, 3, 4, 3)
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], dict[str, Any]]] = {
    "linear": (lambda m, x: m.l(x), X, {"l": nn.Linear(6, 4)}),
    "linear of three axes": (lambda m, x: m.l(x), HEADS, {"l": nn.Linear(12, 4)}),
    "mm": (lambda m, x: torch.mm(x, m.w), X, {"w": weight(6, 4)}),
    "by a transposed weight": (lambda m, x: x @ m.w.T, X, {"w": weight(4, 6)}),
    "a weight by x": (lambda m, x: m.w @ x.T, X, {"w": weight(4, 6)}),
    "addmm": (lambda m, x: torch.addmm(m.b, x, m.w.t()), X, {"w": weight(4, 6), "b": weight(4)}),
    "addmm, scaled": (
        lambda m, x: torch.addmm(m.b, x, m.w, beta=0.5, alpha=2),
        X,
        {"w": weight(6, 4), "b": weight(1, 4)},
    ),
    "bmm": (lambda m, x: torch.bmm(x, x.transpose(1, 2)), HEADS, {}),
    "baddbmm": (lambda m, x: torch.baddbmm(x[:, :, :5], x, x.transpose(1, 2)), HEADS, {}),
    "matmul with a broadcast": (
        lambda m, x: torch.matmul(x[:, None], m.w),
        HEADS,
        {"w": weight(2, 12, 3)},
    ),
    "matmul with a vector": (lambda m, x: torch.matmul(x, m.w), HEADS, {"w": weight(12)}),
    "a sliced operand": (lambda m, x: x[:, :, 2:8] @ m.w, HEADS, {"w": weight(6, 4)}),
    "heads": (
        lambda m, x: (q := x.reshape(BATCH, 5, 3, 2, 2).permute(2, 0, 3, 1, 4))[0] @ q[1].mT,
        HEADS,
        {},
    ),
    "einsum": (lambda m, x: torch.einsum("bi,oi->bo", x, m.w), X, {"w": weight(4, 6)}),
    "einsum, turned": (lambda m, x: torch.einsum("bi,oi->ob", x, m.w), X, {"w": weight(4, 6)}),
    "einsum over heads": (
        lambda m, x: torch.einsum(
            "bthd,bshd->bhts", x.view(BATCH, 5, 3, 4), x.view(BATCH, 5, 3, 4)
        ),
        HEADS,
        {},
    ),
    "einsum back from heads": (
        lambda m, x: torch.einsum("bts,bshd->bthd", x[..., :5], x.view(BATCH, 5, 3, 4)),
        HEADS,
        {},
    ),
    "einsum of two depths": (
        lambda m, x: torch.einsum("bthd,hdo->bto", x.view(BATCH, 5, 3, 4), m.w),
        HEADS,
        {"w": weight(3, 4, 2)},
    ),
    "einsum of three": (
        lambda m, x: torch.einsum("bts,to,bsn->bno", x[..., :5], m.w, x.relu()[..., :3]),
        HEADS,
        {"w": weight(5, 2)},
    ),
    "einsum with a map between": (
        lambda m, x: torch.einsum(
            "btn,bsn,hts,bshp->bthp", x, x.relu(), m.w, x.view(BATCH, 5, 3, 4)
        ),
        HEADS,
        {"w": weight(3, 5, 5)},
    ),
    "einsum of a map at last": (
        lambda m, x: torch.einsum("btn,bsn,st->bst", x, x.relu(), m.w),
        HEADS,
        {"w": weight(5, 5)},
    ),
    "conv1d": (lambda m, x: m.c(x), HEADS, {"c": nn.Conv1d(5, 4, 3, padding=1)}),
    "conv1d, same": (lambda m, x: m.c(x), HEADS, {"c": nn.Conv1d(5, 4, 4, padding="same")}),
    "conv2d": (
        lambda m, x: m.c(x),
        (BATCH, 4, 6, 5),
        {"c": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)},
    ),
    "conv2d, depthwise": (
        lambda m, x: m.c(x),
        (BATCH, 4, 5, 5),
        {"c": nn.Conv2d(4, 4, 3, groups=4)},
    ),
    "conv3d": (
        lambda m, x: m.c(x),
        (BATCH, 2, 3, 4, 3),
        {"c": nn.Conv3d(2, 3, 2, stride=2, padding=1)},
    ),
    "conv_transpose1d": (
        lambda m, x: m.c(x),
        HEADS,
        {"c": nn.ConvTranspose1d(5, 4, 3, stride=2, padding=1, output_padding=1)},
    ),
    "conv_transpose2d": (
        lambda m, x: m.c(x),
        (BATCH, 4, 3, 4),
        {"c": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2)},
    ),
    "conv_transpose3d": (
        lambda m, x: m.c(x),
        (BATCH, 2, 2, 3, 2),
        {"c": nn.ConvTranspose3d(2, 3, 2, stride=2)},
    ),
}
NO_MATRICES = {"conv1d", "conv1d, same", "conv2d", "conv2d, depthwise", "conv3d"}
NO_MATRICES |= {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, Graph, dict[str, Tensor]]:
    """The primitives of a model, and every value of a call in float64."""
    forward, shape, parts = CASES[request.param]
    module = Written(forward, **copy.deepcopy(parts))
    x = torch.randn(shape)
    graph = expand(capture(problem_from_module(module, (x,))))
    with torch.no_grad():
        return request.param, graph, every_value(graph, module.double(), (x.double(),))


LINES = [name for name in CASES if "1d" in name]


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_convolved_as_a_plane(name: str) -> None:
    """Where that is asked for: the same values, by a library call in two dimensions."""
    forward, shape, parts = CASES[name]
    module, x = Written(forward, **copy.deepcopy(parts)), torch.randn(shape)
    captured = capture(problem_from_module(module, (x,)))
    with torch.no_grad():
        expected = module.double()(x.double())
        for flat, rank in ((False, 3), (True, 4)):
            graph = expand(captured, flat=flat)
            values = every_value(graph, module, (x.double(),))
            ((node, contraction),) = contractions(graph)
            assert len(contraction.out) == rank and values[node.name].dim() == rank
            assert f"{rank - 2}d." in contraction.call.target
            torch.testing.assert_close(values[graph.results[0]], expected)


def contractions(graph: Graph) -> list[tuple[Node, Contraction]]:
    return [(n, n.payload) for n in graph if isinstance(n.payload, Contraction)]


def test_the_index_maps_are_the_operator(case: tuple[str, Graph, dict[str, Tensor]]) -> None:
    _, graph, values = case
    assert contractions(graph), "the operator has no contraction"
    for node, contraction in contractions(graph):
        left, right = (values[name] for name in node.inputs[:2])
        got = literally(contraction, left, right, values[node.name].shape)
        torch.testing.assert_close(got, values[node.name])


def test_strides_read_the_same_product(case: tuple[str, Graph, dict[str, Tensor]]) -> None:
    name, graph, values = case
    for node, contraction in contractions(graph):
        form = form_of(graph, node, lambda form: True)
        assert (form is None) == (name in NO_MATRICES) == (not contraction.is_product)
        if form is not None:
            operands = (values[form.left.buffer], values[form.right.buffer])
            got = by_strides(form, *operands, values[node.name].shape)
            torch.testing.assert_close(got, values[node.name])


def form_in(
    forward: Callable[..., Any], shape: tuple[int, ...], **parts: Any
) -> tuple[Graph, Form]:
    graph = expand(capture(problem_from_module(Written(forward, **parts), (torch.randn(shape),))))
    ((node, _),) = contractions(graph)
    form = form_of(graph, node, lambda form: True)
    assert form is not None
    return graph, form


def test_views_are_seen_through() -> None:
    """Attention's heads and a transposed weight are read where they lie."""
    graph, form = form_in(lambda m, x: x @ m.w.T, X, w=weight(4, 6))
    assert graph[form.right.buffer].op == "parameter" and (form.right.row, form.right.depth) == (
        6,
        1,
    )
    graph, form = form_in(lambda m, x: (h := x.view(BATCH, 5, 3, 4).transpose(1, 2)) @ h.mT, HEADS)
    assert graph[form.left.buffer].op == graph[form.right.buffer].op == "input"
    assert (form.left.outer, form.left.inner, form.left.row, form.left.depth) == (60, 4, 12, 1)


def test_a_depth_in_two_pieces_is_made_dense() -> None:
    graph, form = form_in(
        lambda m, x: F.linear(x.transpose(1, 2).reshape(BATCH, 60), m.w), HEADS, w=weight(4, 60)
    )
    assert graph[form.left.buffer].op == "view" and form.left.depth == 1


def test_flops_are_those_of_the_loop_nest() -> None:
    graph = expand(
        capture(
            problem_from_module(
                Written(lambda m, x: m.c(x), c=nn.Conv2d(4, 8, 3, padding=1, groups=2)),
                (torch.randn(2, 4, 5, 5),),
            )
        )
    )
    ((_, contraction),) = contractions(graph)
    assert hint(contraction.flops, 2) == 2 * (2 * 8 * 25) * (2 * 9)
