"""How a product is launched, decided in Python: numbers and reasons for sizes that matter."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import sympy
import torch
from torch import nn

from kernelwright.emit.epilogue import EpiloguePrinter, product_launchers
from kernelwright.lower import GemmKernel
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS, Operand
from kernelwright.problem import problem_from_module
from kernelwright.runtime.products import ProductRule, can_pair, product_launch

PAIRS, WIDE, ALONE = (128, 2, 8), (256, 2, 8), (64, 1, 8)
CHIP = 132


def rule(columns: int, depth: int, planes: int = 2, **others: object) -> tuple[object, ...]:
    known = {"tile": PAIRS, "streams": True, "at_once": 0} | others
    return ProductRule(columns=columns, depth=depth, planes=planes, **known)


# rows, batch, rule, frozen: tiles at once, clusters, early rows, a part of the reason
TABLE = {
    "founding": (
        (1024, 1, rule(8192, 8192), False),
        (1, 64, 2048, "2048 rows of the right operand are split before the first wave"),
    ),
    "frozen": (
        (1024, 1, rule(8192, 8192), True),
        (2, 64, 0, "frozen; two tiles at once take 2 wave(s)"),
    ),
    "high": (
        (1024, 1, rule(8192, 8192, 1, tile=WIDE), False),
        (1, 64, 8192, "over too soon"),
    ),
    "bfloat16": ((1024, 1, rule(8192, 8192, 0, tile=WIDE), False), (1, 64, 8192, "2 wave(s)")),
    "square": (
        (4096, 1, rule(4096, 4096), False),
        (2, 64, 4096, "a wave ends before the next one's rows could be split"),
    ),
    "one wave": ((128, 1, rule(8192, 8192), False), (1, 32, 8192, "there is one wave")),
    "across": (
        (1024, 1, rule(8192, 8192, streams=False), False),
        (2, 64, 8192, "does not lie along its depth"),
    ),
    "heads": (
        (197, 96, rule(197, 64, streams=False), False),
        (1, 64, 256, "one tile at once, since two would take 2 wave(s) instead of 3"),
    ),
    "asked for one": (
        (4096, 1, rule(4096, 4096, at_once=1), False),
        (1, 64, 4096, "a wave ends before"),
    ),
    "asked for two": (
        (1024, 1, rule(8192, 8192, at_once=2), False),
        (2, 64, 8192, "no registers to split on the way"),
    ),
    "no rows": ((0, 1, rule(8192, 8192), False), (1, 1, 0, "nothing to multiply")),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_is_decided(name: str) -> None:
    (rows, batch, known, frozen), (tiles, clusters, early, why) = TABLE[name]
    found = product_launch(rows, batch, known, CHIP, frozen)
    assert (found.tiles, found.clusters, found.early) == (tiles, clusters, early)
    assert why in found.why


def test_every_decision_can_be_obeyed() -> None:
    """Clusters fit the chip and are not more than there are groups; early rows are whole panels."""
    sizes = itertools.product((1, 127, 300, 5000), (1, 7, 96), (8, 200, 4096), (1, 64, 9000))
    tiles, flags = (PAIRS, WIDE, ALONE), (False, True)
    for (rows, batch, columns, depth), tile in itertools.product(sizes, tiles):
        for planes, streams, at_once, frozen in itertools.product(
            (0, 1, 2), flags, (0, 1, 2), flags
        ):
            known = rule(columns, depth, planes, tile=tile, streams=streams, at_once=at_once)
            found = product_launch(rows, batch, known, CHIP, frozen)
            width, cluster, _ = tile
            down, across = -(-rows // 128), -(-columns // width)
            assert 1 <= found.clusters <= CHIP // cluster
            assert found.clusters <= batch * down * across
            assert found.early % 64 == 0 and found.early <= -(-columns // 64) * 64
            assert found.tiles == 1 or can_pair(tile, planes)
            on_the_way = planes > 0 and not frozen and found.early < columns
            assert not on_the_way or (planes == 2 and streams and found.tiles == 1)


# ---- what can be read as it lies ----------------------------------------------------------------

BATCH = sympy.Symbol("batch", integer=True, positive=True)
READABLE = {
    "dense": ((0, 0, 0, 64, 1), 8, ""),
    "transposed": ((0, 0, 0, 1, 64), 8, ""),
    "heads": ((0, 197 * 192, 64, 192, 1), 8, ""),
    "a batch inside": ((0, 0, 64 * BATCH, 64, 1), 8, ""),
    "odd rows of float32": ((3, 0, 0, 197, 1), 1, ""),
    "odd rows": ((0, 0, 0, 197, 1), 8, "multiples of 8 elements"),
    "an odd batch": ((0, 0, 3 * BATCH, 64, 1), 8, "multiples of 8 elements"),
    "an offset": ((4, 0, 0, 64, 1), 8, "multiples of 8 elements"),
    "every second": ((0, 0, 0, 128, 2), 1, "neither rows nor depth"),
}


@pytest.mark.parametrize("name", READABLE)
def test_what_a_loop_can_read(name: str) -> None:
    strides, multiple, why = READABLE[name]
    found = Operand("x", *strides).unreadable(multiple)
    assert why in found and bool(why) == bool(found)


# ---- as C++ -------------------------------------------------------------------------------------


def test_strides_and_batches_reach_the_kernel() -> None:
    """Heads of attention: queries times keys, of a projection (batch, token, 3 x 12 x 64)."""
    problem = problem_from_module(nn.Linear(64, 197), (torch.randn(200, 64),), "highest")
    compiled = compile_problem(problem, target="cuda", policy=ALWAYS)
    (kernel,) = (k for k in compiled.kernels if isinstance(k, GemmKernel))
    graph, (symbol,) = compiled.planned.graph, compiled.planned.graph.symbols
    batch = sympy.Symbol(symbol, integer=True, positive=True)
    buffer = kernel.gemm.left.buffer
    heads = replace(
        kernel.gemm,
        left=Operand(buffer, 0, 197 * 2304, 64, 2304, 1),
        right=Operand(buffer, 768, 197 * 2304, 64, 1, 2304),
        batch=(batch, 12),
        rows=197,
    )
    (text,) = product_launchers(EpiloguePrinter(graph, replace(kernel, gemm=heads)))
    assert "{tensors[0], 453888, 64, 2304, 1},  // left" in text
    address = "static_cast<const float*>(tensors[1]) + 768"
    assert f"{{{address}, 453888, 64, 1, 2304}},  // right" in text
    assert f"{{static_cast<int>((a.{symbol})), 12}},  // batch" in text
    majors = "kw::hopper::Major::kDepth, kw::hopper::Major::kRow"
    assert f"kw::GemmLayout<true, {majors}>" in " ".join(text.split())
