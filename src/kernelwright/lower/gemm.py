"""How the tiles of a generated product are chosen: sizes in, ranked tiles with their reasons out.

Every width of tile is tried alone and in pairs, in every height of band. What does not fit says
why; the rest is ranked by what the busiest multiprocessor has to work through, by the model of
targets/. It knows nothing of the machine's mood: tune.py measures the first few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as every

from kernelwright.errors import InputError
from kernelwright.graph import Graph, hint, product
from kernelwright.lower.config import Config, vector_width
from kernelwright.lower.decide import decided
from kernelwright.plan.epilogue import needs_whole_tiles
from kernelwright.plan.model import Gemm, Program
from kernelwright.runtime.products import can_pair
from kernelwright.targets.target import Tiling

# What memory costs a tile, as if it had more columns: for each row of the left operand that its
# block fetches, and for so many rows of either operand that a wave of tiles brings into the L2 for
# each multiprocessor.
FETCHED_ROW = 1 / 16
WAVE_ROWS = 4


@dataclass(frozen=True)
class Tile:
    """`columns` for a block, `cluster` blocks together, `band` tiles down at a time.

    A block multiplies `at_once` of them, or as many as it pays (0, see runtime/products.py).
    """

    columns: int
    cluster: int
    band: int
    why: str
    at_once: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.columns, self.cluster, self.band, self.at_once

    def __str__(self) -> str:
        return spelled(*self.shape)


def spelled(columns: int, cluster: int, band: int, at_once: int) -> str:
    together = "alone" if cluster == 1 else "in pairs"
    many = ("", ", one at once", ", two at once")[at_once]
    return f"{columns} columns {together} in bands of {band}{many}"


@dataclass(frozen=True)
class Candidate:
    """A tile and its modelled cost in microseconds, or why it was refused."""

    tile: Tile
    cost: float
    refused: str = ""


def tile_for(gemm: Gemm, program: Program) -> Tile:
    """The cheapest tile that the program fits; the planner has seen to it that there is one."""
    return candidates(gemm, program)[0].tile


def fitting(gemm: Gemm, program: Program, rows: int | None = None) -> list[Tile]:
    """The tiles to choose from, the cheapest first."""
    return [c.tile for c in candidates(gemm, program, rows) if not c.refused]


def candidates(gemm: Gemm, program: Program, rows: int | None = None) -> list[Candidate]:
    """Every tile, the cheapest first and the refused ones last, for so many or the typical rows.

    Of tiles that cost the same, the narrower and more usual one comes first.
    """
    tiling = gemm.loop.tiling
    matrices, each = _matrices(gemm, rows or gemm.typical)
    tall = -(-each // tiling.rows)
    unfit = {w: why for w in tiling.widths if (why := _unfit(gemm, program, w))}
    found = []
    for width, cluster, band in every(tiling.widths, tiling.clusters, tiling.bands):
        grid = _Grid(tiling, tall, -(-gemm.columns // width), cluster, band, matrices)
        refused = unfit.get(width, "") or grid.repeats()
        one = gemm.loop.tile_time(width, hint(gemm.depth), _extra(width, grid))
        for at_once, why in _launches(gemm, (width, cluster, band), each, matrices):
            tile = Tile(width, cluster, band, f"{_why(width, grid, unfit)}; {why}", at_once)
            found.append(Candidate(tile, grid.waves * grid.waste * one, refused))
    return sorted(found, key=lambda c: (bool(c.refused), c.cost, c.tile.at_once))


def _matrices(gemm: Gemm, rows: int) -> tuple[int, int]:
    """How many matrices have so many rows together, and how many each of them."""
    if isinstance(gemm.rows, int) and gemm.batch != (1, 1):
        return max(1, rows // gemm.rows), gemm.rows
    matrices = hint(product(gemm.batch))
    return matrices, -(-rows // matrices)


def _launches(
    gemm: Gemm, shape: tuple[int, int, int], rows: int, matrices: int
) -> Iterator[tuple[int, str]]:
    """As many tiles at once as it pays, with the reason, and the other number if there is one."""
    usual = decided(gemm, shape, 0, rows, matrices)
    yield 0, usual.why
    other = decided(gemm, shape, 3 - usual.tiles, rows, matrices)
    if other.tiles != usual.tiles and shape[2] == gemm.loop.tiling.bands[0]:
        yield other.tiles, other.why


def check_fits(gemm: Gemm, program: Program, tile: Tile) -> None:
    """Somebody else's choice must be one that could have been made here."""
    there = gemm.loop.tiling
    known = (
        tile.columns in there.widths and tile.cluster in there.clusters and tile.band in there.bands
    )
    pairs = tile.at_once != 2 or can_pair(tile.shape[:3], gemm.loop.planes)
    why = (
        _unfit(gemm, program, tile.columns) if known and pairs else "not among the tiles there are"
    )
    if why:
        raise InputError(f"The product cannot have tiles of {tile} ({why}); leave the choice out.")


def _unfit(gemm: Gemm, program: Program, width: int) -> str:
    if width not in gemm.loop.widths:
        return "too many accumulators"
    if program.segmented and width % int(str(program.count(program.inner))):
        return "cuts a segment"
    if needs_whole_tiles(program) and gemm.columns % width:
        return "leaves a part of a tile"
    return ""


@dataclass(frozen=True)
class _Grid:
    """The tiles of a product: so many down and across for each matrix, and how they are walked."""

    tiling: Tiling
    down: int
    across: int
    cluster: int
    band: int
    matrices: int

    @property
    def groups(self) -> int:
        """Clusters across; the last may hang over the edge, and its block works for nothing."""
        return -(-self.across // self.cluster)

    @property
    def waves(self) -> int:
        """Tiles that the busiest multiprocessor works on."""
        return -(
            -self.matrices * self.down * self.groups // (self.tiling.processors // self.cluster)
        )

    @property
    def waste(self) -> float:
        """Tiles that run for one that is wanted."""
        return self.groups * self.cluster / self.across

    @property
    def height(self) -> int:
        return min(self.band, self.down)

    def repeats(self) -> str:
        before = self.tiling.bands[: self.tiling.bands.index(self.band)]
        same = [b for b in before if min(b, self.down) == self.height]
        return f"as in bands of {same[0]}: {self.down} tile(s) down" if same else ""


def _extra(width: int, grid: _Grid) -> float:
    """What memory costs a tile, in columns."""
    tiling = grid.tiling
    wave = min(tiling.processors, grid.down * grid.across)
    down = min(grid.down, grid.height * -(-wave // (grid.height * grid.across)))
    across = min(grid.across, -(-wave // grid.height))
    fetched = tiling.rows / grid.cluster * FETCHED_ROW
    return fetched + (down * tiling.rows + across * width) / (WAVE_ROWS * tiling.processors)


def _why(width: int, grid: _Grid, unfit: dict[int, str]) -> str:
    said = [f"tiles of {grid.tiling.rows} x {width}: {grid.waves} for each multiprocessor"]
    if grid.cluster == 1 and grid.across % 2:
        odd = f"{grid.across} across is odd" if grid.across > 1 else "one across"
        said.append(f"no pairs: {odd}")
    elif grid.cluster > 1 and grid.across % 2:
        said.append(f"pairs, with one column of tiles in {grid.across + 1} for nothing")
    by_reason: dict[str, list[str]] = {}
    for other, text in unfit.items():
        by_reason.setdefault(text, []).append(str(other))
    return "; ".join([*said, *(f"{', '.join(w)}: {text}" for text, w in by_reason.items())])


def _lanes(graph: Graph, gemm: Gemm, program: Program) -> int:
    """Neighbouring columns of a thread: two, or four where the right operand can be interleaved."""
    width = vector_width(graph, program)[0]
    sixteens = not program.segmented or int(str(program.count(program.inner))) % 16 == 0
    return min(width, 4 if gemm.loop.planes and sixteens else 2)


def config_of(graph: Graph, gemm: Gemm, tile: Tile, program: Program) -> Config:
    tiling = gemm.loop.tiling
    stage = (tiling.rows + tile.columns) * max(1, gemm.loop.planes) * tiling.stage_row_bytes
    constants = (
        ("kBlockM", tiling.rows),
        ("kBlockN", tile.columns),
        ("kStages", min(tiling.most_stages, tiling.shared_bytes // stage)),
        ("kCluster", tile.cluster),
        ("kBand", tile.band),
        ("kVec", _lanes(graph, gemm, program)),
        ("kDepth", gemm.depth if isinstance(gemm.depth, int) else 1),  # nothing lies along it
    )
    return Config(tiling.kernel, constants, tile.why)
