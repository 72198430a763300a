"""Times of generated convolutions, beside the library's: python benchmarks/conv.py [--best N].

For each shape the first few configurations that lower/conv.py lists are built, checked against
float64 on one sample and timed with the L2 cache flushed; the library runs the bare convolution in
both layouts and with TF32 on and off. Medians, in microseconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from convolved import Built, Conv, compiled

POOL = {"program": "Elements<Squashed>", "largest": (1, 4, 4)}
BARE = {"program": "Unstored"}
RELU = {"program": "Elements<Rectified>"}
OVERLAP = {"largest": (1, 3, 3), "apart": (1, 2, 2)}
STEM = {**OVERLAP, "steps": 2, "pads": 3, "before": (0, 1, 1)}
UP = (24, 48, (28, 28, 28), (5, 5, 5))
SHAPES: dict[str, tuple[Conv, int]] = {
    "8-64 256 tanh pool x3": (Conv(8, 64, (256, 256), (3, 3), **POOL), 128),
    "8-64 256 x3": (Conv(8, 64, (256, 256), (3, 3)), 128),
    "64-128 128 relu x1": (Conv(64, 128, (128, 128), (3, 3), loop="rounded", **RELU), 128),
    "64-128 128 bare x1": (Conv(64, 128, (128, 128), (3, 3), loop="rounded", **BARE), 128),
    "64-128 128 x3": (Conv(64, 128, (128, 128), (3, 3)), 128),
    "64-128 128 bare x3": (Conv(64, 128, (128, 128), (3, 3), **BARE), 128),
    "8-64 128 x3": (Conv(8, 64, (128, 128), (3, 3)), 128),
    "8-64 128 bare x3": (Conv(8, 64, (128, 128), (3, 3), **BARE), 128),
    "3-32 256 x3": (Conv(3, 32, (256, 256), (3, 3)), 64),
    "16-64 16x32x32 x3": (Conv(16, 64, (16, 32, 32), (3, 3, 3)), 64),
    "16-64 16x32x32 x1": (Conv(16, 64, (16, 32, 32), (3, 3, 3), loop="rounded"), 64),
    "32-64 64 stride 2 x1": (Conv(32, 64, (64, 64), (3, 3), steps=2, pads=1, loop="rounded"), 128),
    "24-48 28^3 up k5 x3": (
        Conv(*UP, steps=2, pads=2, transposed=True),
        12,
    ),
    "24-48 28^3 up k5 x1": (
        Conv(*UP, steps=2, pads=2, transposed=True, loop="rounded"),
        12,
    ),
    "24-48 28^3 up k5 largest of 2 x3": (
        Conv(*UP, steps=2, pads=2, transposed=True, largest=(2, 2, 2), **BARE),
        12,
    ),
    "24-48 28^3 up k5 largest of 2 x1": (
        Conv(*UP, steps=2, pads=2, transposed=True, largest=(2, 2, 2), loop="rounded", **BARE),
        12,
    ),
    "3-64 224 stem x3": (Conv(3, 64, (224, 224), (7, 7), **STEM), 64),
    "3-64 224 stem x1": (Conv(3, 64, (224, 224), (7, 7), loop="rounded", **STEM), 64),
    "128-256 56 overlap x1": (Conv(128, 256, (56, 56), (3, 3), loop="rounded", **OVERLAP), 64),
    "64-64 56 up k3 x1": (
        Conv(64, 64, (56, 56), (3, 3), steps=2, pads=1, extra=1, transposed=True, loop="rounded"),
        64,
    ),
}


def timed(run: Callable[[], object], repeats: int = 12) -> float:
    """Microseconds: the median of launches with a cold L2 cache."""
    flush = torch.empty(32 << 20, dtype=torch.int32, device="cuda")
    events = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in events)[repeats // 2] * 1e3


def operands(conv: Conv, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.rand(batch, conv.cin, *conv.size, device="cuda").to(conv.dtype)
    weight = torch.randn(conv.weight_shape(), device="cuda").to(conv.dtype) * 0.05
    return x, weight, torch.randn(conv.cout, device="cuda")


def library(conv: Conv, x: Tensor, weight: Tensor) -> str:
    """The bare convolution: NCHW and NHWC, float32 and TF32."""
    last = torch.channels_last if len(conv.size) == 2 else torch.channels_last_3d
    found = []
    for tf32 in (False, True):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32, benchmark=True):
            for layout in (torch.contiguous_format, last):
                data = x.to(memory_format=layout), weight.to(memory_format=layout)
                for _ in range(2):
                    conv.reference(*data)
                found.append(timed(lambda d=data: conv.reference(*d), 5))
    return " ".join(f"{t:8.1f}" for t in found)


def error(built: Built, x: Tensor, weight: Tensor, out: Tensor) -> float:
    conv = built.conv
    if conv.program != "Elements<Stored>":  # nothing to compare with, or nothing stored
        return float("nan")
    wanted = conv.reference(x[-1:].double(), weight.double())
    return float((out[-1:].double() - wanted).norm() / wanted.norm())


def flops(conv: Conv, batch: int) -> float:
    taps = torch.Size(conv.window).numel()
    places = torch.Size(conv.in_size if conv.transposed else conv.out_size).numel()
    return 2.0 * batch * conv.cin // conv.groups * conv.cout * taps * places


def built_ones(convs: list[Conv], folder: Path) -> dict[Conv, Built]:
    """Those that compile as they should; what is wrong with the others is said."""

    def one(pair: tuple[int, Conv]) -> Path | str:
        try:
            return compiled(pair[1], folder, pair[0])
        except AssertionError as problem:
            return str(problem)[-600:]

    wanted = list(dict.fromkeys(convs))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        paths = list(pool.map(one, enumerate(wanted)))
    for conv, path in zip(wanted, paths, strict=True):
        if isinstance(path, str):
            print(f"not built: {conv.config.why}\n{path}", flush=True)
    good = [(c, p) for c, p in zip(wanted, paths, strict=True) if isinstance(p, Path)]
    return {conv: Built(conv, path) for conv, path in good}


def main(names: Iterable[str], best: int, with_library: bool) -> None:
    wanted = {name: SHAPES[name] for name in names}
    variants = [
        (name, replace(conv, pick=pick))
        for name, (conv, _) in wanted.items()
        for pick in range(best)
    ]
    with tempfile.TemporaryDirectory() as folder:
        built = built_ones([conv for _, conv in variants], Path(folder))
        for name, (_, batch) in wanted.items():
            own = [built[c] for other, c in variants if other == name and c in built]
            if not own:
                continue
            x, weight, bias = operands(own[0].conv, batch)
            for each in own:
                config = each.conv.config
                out = each(x, weight, bias)
                off = error(each, x, weight, out)
                took = timed(each.repeat)
                rate = flops(each.conv, batch) / took / 1e6
                model = config.time(batch)
                print(f"{name:34} {took:8.1f} us {rate:6.1f} TFLOP/s, model {model:7.1f}, "
                      f"error {off:.1e}; {config.why}", flush=True)  # fmt: skip
            if with_library:
                print(f"{name:34} library NCHW NHWC, TF32 NCHW NHWC: "
                      f"{library(own[0].conv, x, weight)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--best", type=int, default=1)
    parser.add_argument("--no-library", action="store_true")
    given = parser.parse_args()
    main(given.shapes, given.best, not given.no_library)
