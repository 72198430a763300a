"""Random chains led by a convolution, of odd sizes, with the tiles that a GPU gets, on the host.

    PYTHONPATH=src python tests/random_tiles.py [FIRST [COUNT]]

As corpus_tiles.py does with the corpus: torch convolves, the emitted programs do the rest, slice by
slice, and float64 is the judge. Sizes that no tile divides are where epilogues go wrong. Each
number is a chain; a few seconds each.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from corpus_tiles import EAGER, errors_of_file

# Of the relative error: one place too many is 1e-4 or more. A sum of what a norm has centred is as
# far off as the mean is, here and in float32.
BOUND = 1e-5
TIMES = 100.0  # the error of the model in float32

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.{conv}
        self.norm = {norm}
        self.scale = nn.Parameter(torch.randn({out}{ones}))

    def forward(self, x):
        y = self.conv(x)
{body}
        return y


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
"""

POINTWISE = (
    "y = torch.tanh(y)", "y = F.leaky_relu(y, 0.1)", "y = F.mish(y)", "y = y * self.scale",
    "y = F.hardswish(y) + self.scale", "y = torch.sigmoid(y) * y", "y = y.clamp(-0.5, 0.75)",
)  # fmt: skip


def chain(number: int) -> str:
    """The file of a chain."""
    draw = random.Random(number)
    dims = draw.choice((1, 2, 2, 2, 3, 3))
    transposed = draw.random() < 0.25
    groups = draw.choice((1, 1, 1, 2, 4))
    cin, out = groups * draw.choice((1, 3, 6, 8, 12)), 8 * draw.choice((1, 2, 3, 4, 6, 8))
    spans = {1: (60, 900), 2: (19, 70), 3: (9, 26)}[dims]
    sizes = [draw.randint(*spans) for _ in range(dims)]
    stride = draw.choice((1, 1, 2)) if not transposed else draw.choice((1, 2, 2))
    # A transposed window below the stride leaves rows of the bias alone, whose norm is no number to
    # compare: what is left when they are centred is rounding.
    least = stride if transposed else 1
    kernel = [max(least, draw.choice((1, 2, 3, 3, 5))) for _ in range(dims)]
    dilation = draw.choice((1, 1, 2)) if not transposed else 1
    pads = [draw.randint(0, (k - 1) * dilation // 2) for k in kernel]
    name = f"Conv{'Transpose' * transposed}{dims}d"
    settings = f"{tuple(kernel)}, stride={stride}, padding={tuple(pads)}, groups={groups}"
    settings += "" if transposed else f", dilation={dilation}"
    space = tuple(range(2, 2 + dims))
    norms = (
        f"nn.InstanceNorm{dims}d({out}, affine=True)",
        f"nn.GroupNorm({draw.choice((2, 4))}, {out})",
        f"nn.BatchNorm{dims}d({out})",
    )
    norm = draw.choice(norms)
    window = draw.choice((2, 2, 3))
    ends = (
        f"y = y.mean({space})", f"y = y.amax({space[-1:]})", f"y = y.sum({space})",
        "y = torch.logsumexp(y, 1)", "y = torch.softmax(y, 1)", "y = y.amin(1, keepdim=True)",
        f"y = F.max_pool{dims}d(y, {window})", f"y = F.avg_pool{dims}d(y, {window})",
        f"y = F.max_pool{dims}d(y, 3, 2, 1)", f"y = F.adaptive_avg_pool{dims}d(y, 3)",
        "y = y - y.mean(1, keepdim=True)", f"y = y.var({space}, keepdim=True)",
        "y = F.layer_norm(y, y.shape[-1:])",
    )  # fmt: skip
    body = []
    if draw.random() < 0.5:
        body.append(draw.choice(POINTWISE))
    if draw.random() < 0.6:
        body.append("y = self.norm(y)")
    if draw.random() < 0.6:
        body.append(draw.choice(POINTWISE))
    body.append(draw.choice(ends))
    if draw.random() < 0.2:
        body.append("y = torch.tanh(y) * 2")
    return SOURCE.format(
        conv=f"{name}({cin}, {out}, {settings})",
        norm=norm,
        out=out,
        ones=", 1" * dims,
        body="\n".join(f"        {line}" for line in body),
        shape=", ".join(map(str, (32, cin, *sizes))),
    )


def errors(number: int, eager: str) -> tuple[float, float] | None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"chain{number}.py"
        source.write_text(chain(number))
        return errors_of_file(source, training=True, eager=eager)


def main(first: int = 0, count: int = 20) -> int:
    wrong = 0
    for number in range(first, first + count):
        eager = random.Random(number).choice(list(EAGER))
        found = errors(number, eager)
        if found is None:
            print(f"{number}: no convolution is generated", flush=True)
            continue
        ours, theirs = found
        bad = not ours <= max(BOUND, TIMES * theirs)
        wrong += bad
        what = f"{ours:.1e}, in float32 {theirs:.1e}"
        print(f"{number}, eager {eager}: {what}{' WRONG' * bad}", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
