"""A planned attention becomes a kernel: its tile, and the two programs inside of it.

On a GPU a block has up to eight warps of 16 queries each and walks over the keys in tiles. Keys and
values of a tile are in shared memory, split; queries, scores and results of a warp in registers,
and these decide how many keys a tile has. On a CPU a thread walks over blocks of a head's queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy

from kernelwright.expr import Expr, load
from kernelwright.graph import Graph
from kernelwright.lower.config import Config, core_lanes, vector_width
from kernelwright.lower.kernel import Kernel, Template
from kernelwright.lower.schedule import schedule
from kernelwright.plan.model import Attention, Operand, Program, Region
from kernelwright.targets.target import Attending, CoreAttending


@dataclass(frozen=True)
class Fit:
    """What fits the registers: warps of a multiprocessor, and pairs of a thread for the next tile.

    Of heads with up to so many `features`, in tiles of up to so many `keys`. If all keys are in one
    tile there may be `alone` warps and `once` pairs, else there is a next one meanwhile.
    """

    features: int
    keys: int
    alone: int
    ahead: int
    once: int
    meanwhile: int


FITS = (Fit(32, 64, 16, 12, 16, 10), Fit(64, 32, 8, 8, 16, 8))
STEP = 8
PAIR = 2  # neighbours that a lane has of every eight
TOGETHER = 4  # eights of columns that the left operands of products are made for at once
WARP = 32


@dataclass(frozen=True)
class ScoreKernel(Kernel):
    """The scores of an attention: a program without stores, for which the product is `given`."""

    product: str
    given: Expr
    weight: Expr

    @property
    def reads(self) -> list[str]:
        return [name for name in super().reads if name != self.product]


@dataclass(frozen=True)
class AttentionKernel(Kernel):
    """An attention: the program of its results, which are `given`, and that of its scores."""

    attention: Attention
    given: Expr
    scores: ScoreKernel

    @property
    def reads(self) -> list[str]:
        return [name for name in super().reads if name != self.attention.mixed]

    @property
    def operands(self) -> tuple[str, ...]:
        """What a launch is given before what the results' program reads."""
        return (*(o.buffer for o in self.attention.operands), *self.scores.reads)


def attention_kernel(graph: Graph, region: Region, attention: Attention) -> AttentionKernel:
    assert region.program is not None
    loop = attention.loop
    if isinstance(loop, CoreAttending):
        config = _on_cores(attention, region.program)
    else:
        config = _config(graph, attention, loop, region.program)
    template, scores = Template(config.shape, seconds=4), attention.scores
    score, result = (
        next(load(a) for a in program.loads if a.buffer == product)
        for program, product in ((scores, attention.product), (region.program, attention.mixed))
    )
    inside = ScoreKernel(
        *(region, scores, schedule(scores, (score,)), config, template),
        *(attention.product, score, attention.weight),
    )
    return AttentionKernel(
        *(region, region.program, schedule(region.program, (result,)), config, template),
        *(attention, result, inside),
    )


def _on_cores(attention: Attention, program: Program) -> Config:
    vec, run = core_lanes(attention.scores)
    out_vec, out_run = core_lanes(program)
    constants = {
        "kVec": vec,
        "kRun": run,
        "kOutVec": out_vec,
        "kOutRun": out_run,
        "kAllKeys": attention.keys,
        "kDepth": attention.depth,
        "kColumns": attention.columns,
        "kBounded": int(attention.horizon is not None),
        "kHorizon": attention.horizon or 0,
    }
    why = f"{attention.keys} keys of a head, packed once for its queries"
    return Config("attention", tuple(constants.items()), why)


def _config(graph: Graph, attention: Attention, loop: Attending, program: Program) -> Config:
    features = (attention.depth, attention.columns)
    fit = next(f for f in FITS if max(features) <= f.features)
    strips = math.ceil(attention.rows / (loop.warps * loop.rows))
    warps = math.ceil(attention.rows / strips / loop.rows)
    each = warps * WARP / (sum(map(_whole, features)) // PAIR)  # keys for one pair of a thread
    tiles = 1
    if _whole(attention.keys) > min(fit.keys, fit.once * each):
        most = min(fit.keys, max(STEP, int(fit.meanwhile * each) // STEP * STEP))
        tiles = math.ceil(attention.keys / most)
    keys = _whole(math.ceil(attention.keys / tiles))
    blocks = max(1, (fit.alone if tiles == 1 else fit.ahead) // warps)
    key, value = attention.key, attention.value
    constants = {
        "kPlanes": 2 if loop.products > 1 else 1,
        "kWarps": warps,
        "kTiles": 1,
        "kBlocks": blocks,
        "kKeys": keys,
        "kTogether": TOGETHER,
        "kAllKeys": attention.keys,
        "kRoom": 1 << (attention.keys - 1).bit_length(),
        "kDepth": attention.depth,
        "kColumns": attention.columns,
        "kVec": _lanes(graph, attention.scores),
        "kOutVec": _lanes(graph, program),
        "kQueryVec": _vector(attention.query, attention.depth),
        "kQueryAlong": int(attention.query.along),
        "kKeyVec": _vector(key, attention.depth),
        "kKeyAlong": int(key.along),
        "kValueVec": _vector(value, attention.keys),
        "kValueAlong": int(value.along),
        "kBounded": int(attention.horizon is not None),
        "kHorizon": attention.horizon or 0,
    }
    count = f"{tiles} tiles" if tiles > 1 else "one tile"
    why = f"{warps * loop.rows} queries a block, {attention.keys} keys in {count} of {keys}"
    return Config(loop.kernel, tuple(constants.items()), why)


def _whole(n: int) -> int:
    return math.ceil(n / STEP) * STEP


def _lanes(graph: Graph, program: Program) -> int:
    """Neighbours that a lane takes together: both that it has, if vectors of two are aligned."""
    vec, run = vector_width(graph, program)
    return PAIR if vec >= PAIR and run is None else 1


def _vector(operand: Operand, depth: int) -> int:
    """Floats of one access: a pair along the depth, if that lies along memory and is aligned."""
    numbers = (operand.offset, operand.outer, operand.inner, operand.row, depth)
    return PAIR if operand.along and all(sympy.Mod(n, PAIR) == 0 for n in numbers) else 1
