"""A convolution as its kernel sees it: channels, windows, steps; read off the index maps.

In: a contract node whose index maps have windows. Out: its ConvForm, or None where it is none: a
place along a space is a step of the output times its stride plus a tap times its dilation, of the
input for a convolution, of the output for a transposed one. One and two dimensions are three with
extents of one in front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kernelwright.graph import Affine, Contraction, Dim, Graph, Node, Shape, as_dim, product

Extents = tuple[int, int, int]  # along depth, height and width
DIMENSIONS = 3


@dataclass(frozen=True)
class Mean:
    """Results are means of `window` results of another convolution, whose weight is in memory.

    Along an axis, tap r is the sum of that one's taps from `first + r * step` on, as many as the
    window has, of the `kernel` that there are, over the window's size. `transposed`: as its weight
    lies.
    """

    window: Extents
    kernel: Extents
    first: Extents
    step: Extents
    transposed: bool


@dataclass(frozen=True)
class ConvForm:
    """`batch` samples of `cin` channels become as many of `cout`; both lie dense, channels outside.

    `padding` are places before the first one. Of the weight, a transposed convolution's lies
    [cin][cout / groups][window], any other's [cout][cin / groups][window]. Where results are a
    `mean`, the weight is the other convolution's (averages.py).
    """

    input: str
    weight: str
    batch: Dim
    cin: int
    cout: int
    groups: int
    in_size: Extents
    out_size: Extents
    kernel: Extents
    stride: Extents
    padding: Extents
    dilation: Extents
    transposed: bool
    mean: Mean | None = None

    @property
    def unnamed(self) -> ConvForm:
        """That of any convolution of these sizes."""
        return replace(self, input="", weight="")

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def places(self) -> int:
        """Of one channel of the result."""
        return math.prod(self.out_size)

    @property
    def depth(self) -> float:
        """Products that are summed for a result, on average over the phases of a transposed one."""
        phases = math.prod(self.stride) if self.transposed else 1
        return self.cin / self.groups * self.taps / phases

    @property
    def spatial(self) -> int:
        """Dimensions that are more than one place wide in the input, the window or the output."""
        extents = zip(self.in_size, self.out_size, self.kernel, strict=True)
        return sum(1 for sizes in extents if max(sizes) > 1)

    def inputs(self, samples: int) -> int:
        """Elements of the input."""
        return samples * self.cin * math.prod(self.in_size)

    def outputs(self, samples: int) -> int:
        return samples * self.cout * self.places

    def flops(self, samples: int) -> float:
        return 2.0 * self.outputs(samples) * self.depth

    def __str__(self) -> str:
        kind = "transposed " if self.transposed else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{kind}{self.cin} to {self.cout} channels{groups}, window {self.by(self.kernel)}"

    def by(self, extents: Extents) -> str:
        """In words, along the dimensions that there are."""
        return " x ".join(str(n) for n in extents[DIMENSIONS - max(1, self.spatial) :])


def conv_form(graph: Graph, node: Node) -> ConvForm | None:
    """The convolution that a contraction is, or None."""
    of = node.payload
    assert isinstance(of, Contraction)
    if of.is_product:
        return None
    left, right = (graph[name].type.shape for name in node.inputs[:2])
    spatial = len(of.right) - 2
    space = of.out[-spatial:], of.left[-spatial:]
    transposed = any(len(place.terms) == 2 for place in space[0])
    windows = [_window(place) for place in space[0 if transposed else 1]]
    sizes = (left[-spatial:], right[-spatial:], node.type.shape[-spatial:])
    channels = (left[-spatial - 1], node.type.shape[-spatial - 1])
    groups = _groups(of, left, right, transposed)
    if any(not isinstance(n, int) for n in (*channels, *(d for s in sizes for d in s))):
        return None
    if groups is None or any(w is None for w in windows):
        return None
    found = [w for w in windows if w is not None]
    return ConvForm(
        node.inputs[0],
        node.inputs[1],
        as_dim(product(left[: len(left) - spatial - 1])),
        int(str(channels[0])),
        int(str(channels[1])),
        groups,
        _three(sizes[0], 1),
        _three(sizes[2], 1),
        _three(sizes[1], 1),
        _three([stride for stride, _, _ in found], 1),
        _three([pad for _, _, pad in found], 0),
        _three([dilation for _, dilation, _ in found], 1),
        transposed,
    )


def _groups(of: Contraction, left: Shape, right: Shape, transposed: bool) -> int | None:
    """From the channels of the input, and those that the weight has for each of its groups."""
    spatial = len(right) - 2
    channels, inside = (left[-spatial - 1], right[1])
    if transposed:
        terms = of.out[-spatial - 1].terms
        size = of.sizes[terms[0][0]] if len(terms) == 2 else 1
        return size if isinstance(size, int) else None
    if not isinstance(channels, int) or not isinstance(inside, int) or inside == 0:
        return None
    return channels // inside


def _window(place: Affine) -> tuple[int, int, int] | None:
    """The stride, the dilation and the padding of one axis: its place, then its tap."""
    if len(place.terms) != 2:
        return None
    (_, stride), (_, dilation) = place.terms
    return stride, dilation, -place.offset


def _three(numbers: Shape | list[int], ones: int) -> Extents:
    known = [int(str(n)) for n in numbers]
    first, second, third = [*[ones] * (DIMENSIONS - len(known)), *known]
    return first, second, third
