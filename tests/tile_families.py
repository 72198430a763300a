"""Random products and convolutions in all tiles that can be chosen, at sizes around these.

    PYTHONPATH=src python3 tests/tile_families.py [--cases 300] [--seed 0] [--loops float16]

The default choice takes few of the tiles that there are, so an error in another one waits for the
model that is given it. Here a family of tiles (what lies along the rows, who has which channels,
where the weights are, ...) is drawn first, and then sizes below, at, and one and a half times the
tile, along each axis. Results and scratch memory are full of NaN before; float64 is the judge, and
the measure is what the library is off by in the same arithmetic. Needs a GPU of capability 9.0.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import convolved
import handmade
import torch
from convolved import LOOPS, Conv
from handmade import Kernel
from torch import Tensor

from kernelwright.lower.conv import candidates
from kernelwright.lower.conv_choice import Choice, Needs
from kernelwright.lower.conv_shape import ConvConfig, Shape, with_time
from kernelwright.targets.sm_90 import TILING

PARTS = (0.5, 1.0, 1.5)  # of a tile
FACTOR = 2.0  # of what the library is off by
PLAIN = Needs(1, (1, 1, 1))
PROGRAMS = ("Elements<Stored>", "Elements<Stored>", "Elements<Rectified>")
EPS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
# Of float32 the library may use TF32, or not: the bound is that of the arithmetic.
OWED = {"split": 4e-7, "rounded": 6e-4, "SplitFloat": 4e-7, "RoundedFloat": 6e-4}
MOST_ELEMENTS = 1 << 25
CONV_LOOPS = {"float16": "float16", "bfloat16": "bfloat16", "split": "split", "rounded": "rounded"}
GEMM_LOOPS = {
    "float16": "Float16",
    "bfloat16": "Bfloat16",
    "split": "SplitFloat",
    "rounded": "RoundedFloat",
}


# ---- convolutions ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen(Conv):
    """A convolution with a configuration of one's own, and the places that its tiles have."""

    shape: Shape | None = None

    @cached_property
    def config(self) -> ConvConfig:
        assert self.shape is not None
        return with_time(self.shape, PLAIN).config

    @property
    def family(self) -> str:
        assert self.shape is not None
        return family(self.shape.choice)


def family(choice: Choice) -> str:
    """What tells a tile from another but for its size."""
    given = choice.given
    return " ".join(
        [
            "places as rows" if choice.pixels else "weights as rows",
            f"split along {choice.split}",
            choice.weights,
            *(["along x"] if choice.along else []),
            *(["two high"] if choice.channels > 64 and not choice.pixels else []),
            *(["stages"] if choice.stages_of_tile > 1 else []),
            *(["packed"] if given.pack > 1 else []),
            *(["phases"] if given.phases > 1 else []),
            *(["groups"] if given.groups > 1 else []),
        ]
    )


def same_tile(one: Choice, other: Choice) -> bool:
    fields = ("pixels", "rows", "blocks", "channels", "split", "chunks", "weights", "along")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


def shapes(conv: Conv) -> list[Shape]:
    found = candidates(conv.form, LOOPS[conv.loop], PLAIN.together)
    return [c.shape for c in found if c.shape is not None]


def drawn_conv(loop: str, seed: int) -> Chosen:
    """A family among those of a random convolution, then sizes around its tile."""
    draw = random.Random(f"conv {loop} {seed}")
    while True:
        base = _base(loop, draw)
        families: dict[str, list[Shape]] = defaultdict(list)
        for shape in shapes(base):
            families[family(shape.choice)].append(shape)
        if not families:
            continue
        picked = draw.choice(families[draw.choice(sorted(families))])
        for _ in range(3):
            sized = _sized(base, picked, draw)
            if min(sized.form.out_size) < 1:
                continue
            alike = [s for s in shapes(sized) if same_tile(s.choice, picked.choice)]
            if alike:
                return _chosen(sized, draw.choice(alike))
        return _chosen(base, picked)


def _chosen(conv: Conv, shape: Shape) -> Chosen:
    return Chosen(**vars(conv) | {"shape": shape})


def _base(loop: str, draw: random.Random) -> Conv:
    rank = draw.choice((1, 2, 2, 2, 2, 3))
    groups = draw.choice((1, 1, 1, 1, 2, 4))
    channels = [draw.choice((1, 3, 8, 16, 24, 40, 64, 96, 128, 160, 256)) for _ in range(2)]
    cin, cout = (max(1, n // groups) * groups for n in channels)
    window = tuple(draw.choice((1, 1, 2, 3, 3, 4, 5)) for _ in range(rank))
    dilation = draw.choice((1, 1, 1, 2))
    steps = draw.choice((1, 1, 1, 2, 3))
    return Conv(
        *(cin, cout, tuple(draw.choice((7, 14, 20, 32, 45)) for _ in range(rank)), window),
        steps=steps,
        pads=draw.randint(0, min((k - 1) * dilation // 2 for k in window)),
        dilations=dilation,
        groups=groups,
        transposed=draw.random() < 0.25,
        loop=loop,
        program=draw.choice(PROGRAMS),
    )


def _sized(base: Conv, shape: Shape, draw: random.Random) -> Conv:
    """The same convolution with a part of the tile, or more than one, along each axis."""
    choice, rank = shape.choice, len(base.size)

    def around(tile: int, least: int = 1) -> int:
        return max(least, round(draw.choice(PARTS) * tile) - draw.choice((0, 0, 1)))

    cout = around(choice.block_channels) * base.groups
    cin = max(1, around(8 * choice.chunks)) * base.groups
    tiles = [n * t for n, t in zip(choice.computed, choice.times, strict=True)][3 - rank :]
    axes = choice.given.axes[3 - rank :]
    size = tuple(
        around(tile) if axis.transposed else max((around(tile) - 1) * axis.step + axis.reach, 1) + 1
        for tile, axis in zip(tiles, axes, strict=True)
    )
    return replace(base, cin=cin, cout=cout, size=size)


def _conv_operands(conv: Conv, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(batch, conv.cin, *conv.size, device="cuda").to(conv.dtype)
    depth = conv.cin // conv.groups * math.prod(conv.window)
    weight = (torch.randn(conv.weight_shape(), device="cuda") / math.sqrt(depth)).to(conv.dtype)
    return x, weight, torch.randn(conv.cout, device="cuda")


def _finished(conv: Conv, y: Tensor, bias: Tensor) -> Tensor:
    """What the epilogue makes of the results."""
    if "Rectified" not in conv.program:
        return y
    b = bias.to(y.dtype if y.dtype == torch.float64 else torch.float32)
    b = b.view(-1, *(1,) * len(conv.size))
    return torch.relu(y.to(b.dtype) + b) + b


def check_conv(built: convolved.Built) -> list[str]:
    """What is wrong with it, for few samples and for so many that blocks have several tiles."""
    conv, wrong = built.conv, []
    each = max(math.prod(conv.size) * conv.cin, math.prod(conv.seen_size) * conv.cout)
    launch = conv.config.launch
    for batch in (1, 3, min(-(-300 // launch.tiles), max(1, MOST_ELEMENTS // each))):
        x, weight, bias = _conv_operands(conv, batch)
        exact = _finished(conv, conv.reference(x.double(), weight.double()), bias)
        eager = _finished(conv, conv.reference(x, weight), bias).to(conv.dtype)
        why = judged(built(x, weight, bias), eager, exact, OWED.get(conv.loop, 0.0))
        wrong += [f"{batch} samples: {why}"] if why else []
    return wrong


# ---- products --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    kernel: Kernel
    rows: int
    depth: int
    batch: tuple[int, ...]

    @property
    def family(self) -> str:
        k = self.kernel
        many = "batched" if k.batched else "alone"
        return f"{many}, {k.width} columns, cluster of {k.cluster}, {k.left} by {k.right}"


def drawn_product(loop: str, seed: int) -> Product:
    draw = random.Random(f"product {loop} {seed}")
    planes = handmade.PLANES[loop]
    width = draw.choice((64, 128) if planes == 2 else TILING.widths)
    unit = 1 if planes else 8  # what memory lets the copy engine fetch

    def around(tile: int) -> int:
        size = round(draw.choice(PARTS) * tile) - unit * draw.choice((0, 0, 1))
        return max(unit, size // unit * unit)

    left, right = (draw.choice(("depth", "row")) for _ in range(2))
    batched = draw.random() < 0.6
    if not batched:
        left = "depth"
    kernel = Kernel(
        *(loop, around(width * draw.choice((1, 2))), left, right),
        batched=batched,
        width=width,
        cluster=draw.choice((1, 2)),
        out=handmade.DTYPES.get(loop, torch.float32),
    )
    batch = draw.choice(((), (3,), (2, 5))) if batched else ()
    rows, depth = around(128 * draw.choice((1, 3))), around(64 * draw.choice((1, 2, 9)))
    return Product(kernel, rows, depth, batch)


def check_product(product: Product, built: handmade.Built) -> list[str]:
    kernel = product.kernel

    def laid(side: str, rows: int, depth: int) -> Tensor:
        along = getattr(kernel, side) == "depth"
        shape = (rows, depth) if along else (depth, rows)
        x = torch.randn(*product.batch, *shape, device="cuda").to(kernel.dtype)
        return x if along else x.mT

    left = laid("left", product.rows, product.depth)
    right = laid("right", kernel.columns, product.depth).mT
    exact = left.double() @ right.double()
    why = judged(built(left, right), left @ right, exact, OWED.get(kernel.loop, 0.0))
    return [why] if why else []


# ---- the judge -------------------------------------------------------------------------------


def judged(ours: Tensor, eager: Tensor, exact: Tensor, owed: float) -> str:
    """Why the result is wrong, or nothing: at most twice what eager is off by, rms and largest."""
    if ours.shape != exact.shape:
        return f"{tuple(ours.shape)} in the place of {tuple(exact.shape)}"
    size = float(exact.square().mean().sqrt())
    off, theirs = ((x.double() - exact).abs() for x in (ours, eager))
    if not bool(off.isfinite().all()):
        return f"{int((~off.isfinite()).sum())} of {off.numel()} are not finite"
    floor = max(EPS[ours.dtype], owed) * size
    pairs = {
        "rms": (float(off.square().mean().sqrt()), float(theirs.square().mean().sqrt()), floor),
        "largest": (float(off.max()), float(theirs.max()), 8 * floor),
    }
    wrong = [
        f"{what} error {own:.1e}, eager's {their:.1e}"
        for what, (own, their, least) in pairs.items()
        if not own <= FACTOR * their + (0.0 if their > least else least)
    ]
    return ", ".join(wrong)


# ---- a run -----------------------------------------------------------------------------------


def _made(folder: str, job: tuple[str, str, int]) -> tuple[Any, str, str]:
    """In a process of its own: the case, its library or why there is none."""
    kind, loop, seed = job
    made: Callable[[Any, Path, int], Path]
    if kind == "conv":
        case: Any = drawn_conv(CONV_LOOPS[loop], seed)
        made, subject = convolved.compiled, case
    else:
        case = drawn_product(GEMM_LOOPS[loop], seed)
        made, subject = handmade.compiled, case.kernel
    home = Path(folder) / f"{kind}-{loop}-{seed}"
    home.mkdir()
    try:
        return case, str(made(subject, home, 0)), ""
    except AssertionError as error:
        return case, "", f"{str(error)[:400]}"


@dataclass
class Tally:
    """What came of a run: families that were met, and what is wrong."""

    families: Counter[str]
    wrong: dict[str, list[str]]

    @property
    def cases(self) -> int:
        return sum(self.families.values())


def run(cases: int, seed: int, loops: Sequence[str]) -> Tally:
    """Two thirds convolutions, one third products, of all loops in turn."""
    jobs = [
        ("product" if n % 3 == 2 else "conv", loops[n // 3 % len(loops)], seed * 100_000 + n)
        for n in range(cases)
    ]
    tally = Tally(Counter(), {})
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            found = list(pool.map(partial(_made, folder), jobs))
        for job, (case, library, failed) in zip(jobs, found, strict=True):
            torch.manual_seed(job[2])
            tally.families[case.family] += 1
            try:
                wrong = [failed] if failed else _checked(case, Path(library))
            except Exception:
                wrong = [traceback.format_exc(limit=3)]
            if wrong:
                tally.wrong[f"{job}: {case.family}; {_told(case)}"] = wrong
    return tally


def _checked(case: Chosen | Product, library: Path) -> list[str]:
    if isinstance(case, Product):
        return check_product(case, handmade.Built(case.kernel, library))
    return check_conv(convolved.Built(case, library))


def _told(case: Chosen | Product) -> str:
    if isinstance(case, Product):
        return str(case)
    return f"{Conv.__repr__(replace(case, shape=None))}, {case.config.why}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loops", default="float16,bfloat16")
    given = parser.parse_args()
    tally = run(given.cases, given.seed, given.loops.split(","))
    for case, why in tally.wrong.items():
        print(case, *why, sep="\n    ")
    print(f"{tally.cases} cases, {len(tally.families)} families, {len(tally.wrong)} wrong")
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
