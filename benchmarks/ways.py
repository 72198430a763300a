"""Both ways to a product, generated and the library's, at the sizes of the sweep.

targets/sm_90.py says from how many rows on a product is generated; this is what its model is fitted
to. The model is Linear, GroupNorm and LeakyReLU, compiled for 1024 rows; every product is generated
here, whether it pays or not. Times are of the GPU alone.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from measuring import (
    SETTINGS,
    arguments,
    build,
    by_library,
    compiled_for,
    in_turns,
    kernel_clock,
    published,
    shapes_of,
)
from sheet import Sheet
from sweep import PAIRS, make_input, make_model

from kernelwright.bench.context import matmul_precision
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import direct
from kernelwright.plan import ALWAYS
from kernelwright.problem import resolve_device

EMITTED_FOR = 1024
ROWS = {
    "highest": [16, 64, 128, 256],
    "high": [256, 512, 1024, 2048, 4096, 16384],
    "bfloat16": [1024, 4096, 16384],
}
COLUMNS = ("M", "N", "K", "precision", "generated ms", "library ms", "over library")


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "ways", list(ROWS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--columns", type=shapes_of(2), default=PAIRS, metavar="NxK,...")
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    options = _arguments()
    device = resolve_device(options.device)
    clock = kernel_clock(device)
    cases: dict[tuple[str, int, int], Any] = {}
    for precision in options.precisions:
        for columns, depth in options.columns:
            module = make_model(columns, depth, precision, device)
            compiled = compiled_for(module, EMITTED_FOR, depth, precision, ALWAYS)
            cases[precision, columns, depth] = module, compiled
    build(compiled.source for _, compiled in cases.values())
    sheet = Sheet("Linear, GroupNorm, LeakyReLU", COLUMNS)
    with published(options, device, "Both ways to a product", sheet) as save:
        for (precision, columns, depth), (module, compiled) in cases.items():
            ours = compiled.instantiate()
            with matmul_precision(SETTINGS[precision].matmul):
                for rows in ROWS[precision]:
                    sets = make_sets((make_input(rows, module),), None, clock.flush_bytes)
                    ways = [direct("generated", ours, sets)]
                    ways.append(direct("library", by_library(ours), sets))
                    ms = {n: t.ms for n, t in in_turns(ways, clock, options.rounds).items()}
                    ratio = ms["library"] / ms["generated"]
                    cells = [*map(str, (rows, columns, depth)), precision]
                    cells += [f"{ms['generated']:.4f}", f"{ms['library']:.4f}", f"{ratio:.2f}x"]
                    sizes = {"rows": rows, "columns": columns, "depth": depth}
                    sheet.add(cells, {**sizes, "precision": precision, "ms": ms})
            save()


if __name__ == "__main__":
    main()
