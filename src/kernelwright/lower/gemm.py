"""How the tiles of a generated product are chosen: sizes in, a tile and its constants out.

Every width of tile that the main loop has is tried; what does not fit says why, and the rest is
ranked by the columns that the busiest multiprocessor has to work through.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import Graph, hint
from kernelwright.lower.config import Config, vector_width
from kernelwright.plan import Gemm, Program, needs_whole_tiles
from kernelwright.plan.loops import WIDE

MULTIPROCESSORS = 132
TILE_ROWS = 128
# What a tile costs besides its columns, in columns: its rows of the left operand, its epilogue.
TILE_OVERHEAD = 32
SHARED_BYTES = 200 << 10
STAGE_ROW_BYTES = 128
MOST_STAGES = 6
# Tiles are walked in bands of so many rows of tiles, so that neighbours share operands in the L2.
BAND = 8


@dataclass(frozen=True)
class Tile:
    """TILE_ROWS x `columns`, with the reason for it."""

    columns: int
    why: str


def tile_for(gemm: Gemm, program: Program) -> Tile:
    """The cheapest tile that the program fits; the planner has seen to it that there is one."""
    refused = {w: why for w in WIDE if (why := _unfit(gemm, program, w))}
    waves = {w: _waves(gemm, w) for w in WIDE if w not in refused}
    best = min(waves, key=lambda w: (waves[w] * (w + TILE_OVERHEAD), w))
    why = f"tiles of {TILE_ROWS} x {best}: {waves[best]} for each multiprocessor"
    by_reason: dict[str, list[str]] = {}
    for width, text in refused.items():
        by_reason.setdefault(text, []).append(str(width))
    return Tile(best, "; ".join([why, *(f"{', '.join(w)}: {t}" for t, w in by_reason.items())]))


def _unfit(gemm: Gemm, program: Program, width: int) -> str:
    if width not in gemm.loop.widths:
        return "too many accumulators"
    if program.segmented and width % int(str(program.count(program.inner))):
        return "cuts a segment"
    if needs_whole_tiles(program) and gemm.columns % width:
        return "leaves a part of a tile"
    return ""


def _waves(gemm: Gemm, width: int) -> int:
    """Tiles that the busiest multiprocessor works on, at a typical number of rows."""
    tiles = -(-hint(gemm.rows) // TILE_ROWS) * -(-gemm.columns // width)
    return -(-tiles // MULTIPROCESSORS)


def config_of(graph: Graph, gemm: Gemm, tile: Tile, program: Program) -> Config:
    stage = (TILE_ROWS + tile.columns) * max(1, gemm.loop.planes) * STAGE_ROW_BYTES
    across = -(-gemm.columns // tile.columns)
    constants = (
        ("kBlockM", TILE_ROWS),
        ("kBlockN", tile.columns),
        ("kStages", min(MOST_STAGES, SHARED_BYTES // stage)),
        ("kCluster", 1 if across % 2 else 2),
        ("kBand", BAND),
        ("kVec", min(2, vector_width(graph, program)[0])),
    )
    return Config("gemm_sm90", constants, tile.why)
