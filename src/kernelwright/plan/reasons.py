"""Why the planner decided as it did: a closed set of sentences, and the numbers in them.

Every region has a Reason; a Refusal says of a fusion that was not made why not, and a Shared of a
value with several readers whether it is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """The closed set of reasons for a decision of the planner; the text takes the numbers."""

    TAIL = "one kernel for {count} operator(s) over the same rows"
    POINTWISE = "one kernel for {count} operator(s), element by element"
    LIBRARY = "a library contraction: {flops:.3g} flop, {bytes:.3g} bytes"
    LIBRARY_PIXELS = (
        "a library contraction, asked for as a product of matrices: {flops:.3g} flop,"
        " {bytes:.3g} bytes"
    )
    CHANNELS_LAST = "{rest}; in channels_last{from_batch}, which saves about {gain:.0f} us"
    CHANNELS_KEPT = "{rest}; in channels_last{from_batch}, as what it reads"
    CHANNELS_BACK = (
        "{rest}; in channels_last{from_batch}, which saves about {gain:.0f} us, and stored with"
        " the channels first: {region} would take {lost:.0f} us longer over that order"
    )
    TF32_LAST = "{rest}; channels first: its error would be {error:.1e}, eager's is {eager:.1e}"
    FIRST_FASTER = (
        "{rest}; channels first: the other order saves {gain:.0f} us and costs {cost:.0f}"
    )
    FIRST_TAIL = "{rest}; channels first: {region}, behind it, would take {lost:.0f} us longer"
    FIRST_FED = "{rest}; channels first: {region}, before it, would take {lost:.0f} us longer"
    FEW = "{rest}; a kernel of its own for up to {most} rows"
    THIN = "{rest}; one on tensor cores that reads the weight once for up to {most}"
    HOST = "{rest}; a kernel of its own for {ways}"
    DIRECT = "{rest}; a kernel of its own for up to {most} samples"
    OPAQUE = "no primitive form of {op}: it stays with ATen"
    WEIGHTS = (
        "the gradient of a weight, of {op}, is a product as deep as there are places in the batch:"
        " it stays with the library"
    )
    INTEGERS = "{op} gives integers, which no kernel stores: ATen converts them"
    MASK = (
        "a kernel draws the random numbers of eager's {op} into a mask, which others multiply by;"
        " ATen draws it while a CUDA graph is captured"
    )
    NOT_FLOAT = "{op} on {dtype} elements: only float32, float16 and bfloat16 are fused"
    BIAS_KEPT = "the bias stays in the library call, since no kernel follows that could add it"
    ROWS_DIFFER = "{op} runs over other axes than the rows of {region}, so a second kernel follows"
    BROADCASTS = "{op} broadcasts its operand to a larger tensor than the rows of {region} hold"
    MISALIGNED = "{op} splits the axes of {region} where no common factor allows it"
    TOO_LONG = "{op}: a row of {elements} elements does not stay in registers for two levels"
    STATISTICS = (
        "{op} waits for all of {region}, which runs over several tiles of a convolution,"
        " so it follows"
    )
    CYCLE = "{op} needs a value that itself waits for {region}"
    LEVELS = "{op} would be a third level of reduction in {region}"
    SLICED = "{op} takes a part of what {region} computes, so that is stored first"
    OVERLAPS = "{op} looks at what {region} computes through windows that overlap or leave gaps"
    JOINED = "{op} joins what {region} computes with other values, so that is stored first"
    SCATTERED = "{op} would need segments in {region} that are not neighbours in memory"
    EPILOGUE = "{op} reads {region} from memory: it is stored by the epilogue of its product"
    WITH_BIAS = "{op} reads {region} from memory: the library call stores it with its bias"
    TURNED = "{op} reads {region} from memory: it stands there in another order than what it reads"
    FEW_PARTS = "{op} reads {region} from memory: a kernel over {rows} row(s) would store it slowly"
    STORED = (
        "stored once for {count} kernels: {once:.3g} bytes are moved, {again:.3g} if each"
        " computed it"
    )
    RECOMPUTED = (
        "computed in each of {count} kernels: {again:.3g} bytes are moved, {once:.3g} if it"
        " were stored"
    )
    OVERLAPPED = (
        "stored, since windows look {times:.3g} times at each element: {once:.3g} bytes are moved"
        " for it, and {again:.3g} could be in the time of computing it so often"
    )
    WINDOWED = (
        "{op} as a sum over windows: {own:.3g} us by estimate, {library:.3g} in the library, and"
        " what follows is in the same kernel"
    )
    GROUPED_LIBRARY = (
        "{op} stays with the library: {library:.3g} us by estimate, {own:.3g} as a sum over windows"
    )
    GROUPED = "{op} stays with the library, which is faster at few channels a group on this machine"
    ALONE = "{op} alone: ATen's own loop is faster than a kernel that does nothing else"
    ROUNDED = "{op} rounds to {dtype} on the way to a float32 result: it stays with ATen"
    DECLINED = "{op} with these arguments has no primitive form: it stays with ATen"
    GEMM = (
        "a generated product ({loop}) with {count} operator(s) in its epilogue;"
        " the library below {fewest} rows"
    )
    GEMM_ALONE = "a generated product ({loop}); the library below {fewest} rows"
    CONV = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue; estimated"
        " {ours:.3g} us, with the library and a kernel after it {library:.3g}"
    )
    CONV_ALONE = (
        "a generated convolution ({loop}); estimated {ours:.3g} us, the library {library:.3g}"
    )
    CONV_AGAIN = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue, kernel {number}"
        " of {passes} that it is made again for: estimated {again:.3g} us, {once:.3g} if it were"
        " stored once, with the library {library:.3g}"
    )
    CONV_STORED = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue, stored for"
        " {passes} kernel(s) more: estimated {once:.3g} us, {again:.3g} if it were made again in"
        " each, with the library {library:.3g}"
    )
    CONV_OVERLAP = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue, on tiles that"
        " overlap as windows do: estimated {ours:.3g} us, {once:.3g} if it were stored for a kernel"
        " of windows, with the library {library:.3g}"
    )
    CONV_MEAN = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue; its average"
        " pool is folded into the weights as they are packed: window {window}, stride {stride};"
        " estimated {ours:.3g} us, with the library and a kernel after it {library:.3g}"
    )
    CONV_FOLDED = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue; its average"
        " pool is folded into the weights as they are packed: window {window}, stride {stride};"
        " estimated {ours:.3g} us, {first:.3g} if its input were pooled first, with the library and"
        " a kernel after it {library:.3g}"
    )
    CONV_ONWARD = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue; its average"
        " pool is folded into the weights as they are packed: window {window}, stride {stride};"
        " estimated {ours:.3g} us, {once:.3g} if a second kernel read the means, with the library"
        " {library:.3g}"
    )
    CONV_ROWS = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue, on tiles that"
        " hold whole rows: estimated {ours:.3g} us, {parts:.3g} if rows were in parts and a kernel"
        " waited for them, with the library {library:.3g}"
    )
    CONV_CHANNELS = (
        "a generated convolution ({loop}) with {count} operator(s) in its epilogue, on tiles of all"
        " channels: estimated {ours:.3g} us, {once:.3g} if it were stored for a kernel that reads"
        " several of them, with the library {library:.3g}"
    )
    CONVOLUTION = "{op} stays with the library: there is no generated convolution of its kind"
    CONV_LIBRARY = (
        "{op} stays with the library: estimated {library:.3g} us with a kernel after it,"
        " a generated convolution {ours:.3g}"
    )
    ATTENTION = (
        "an attention in one kernel ({loop}), {count} operator(s) with it: estimated {ours:.3g} us,"
        " {apart:.3g} in {kernels} kernels"
    )
    SCORES_APART = (
        "{op} stores its scores: estimated {apart:.3g} us, {ours:.3g} as an attention in one kernel"
    )
    SCORES_SHARED = "{op} stores its scores: {region} reads their softmax too"
    SCORES_WIDE = "{op} stores its scores: {depth} features of a head do not fit the registers"
    SCORES_SCATTERED = "{op} stores its scores: {why}"
    NO_MATRICES = "{op} stays with the library: it is no product of two matrices"
    SIZES = "{op} stays with the library: a generated product needs sizes that are known"
    NARROW = "{op} stays with the library: {columns} column(s) fill no tile"
    STRIDES = "{op} stays with the library: of its {side} operand, {why}"
    FEW_ROWS = "{op} stays with the library: {rows} row(s) are fewer than {fewest}"
    LIBRARY_FASTER = "{op} stays with the library, which is faster at {columns} x {depth}"
    MIXED = "{op} stays with the library: there is no generated product for {dtype}"
    SHARED = "{op} stores its product: {region} is not alone in reading it"
    SECOND = "{op} stores its product: {region} follows another product"
    WALKS = "{op} stores its product: {region} does not walk it row by row"
    WHOLE_ROW = "{op} stores its product: {region} needs whole rows before it can store"
    OVERLAP = "{op} stores its result: the windows of {region} overlap, and no tile has them whole"
    APART = (
        "{op} stores its result: the windows of {region} overlap, estimated {once:.3g} us in a"
        " kernel of their own and {ours:.3g} on tiles that do so too"
    )
    APART_CHANNELS = (
        "{op} stores its result: {region} reads several channels for each element, estimated"
        " {once:.3g} us in a kernel of its own and {ours:.3g} on tiles of all channels"
    )
    WAITS = (
        "{op} stores its result: {region} makes its rows of another tensor too, estimated"
        " {once:.3g} us in a kernel of its own and {ours:.3g} in an epilogue, which would wait"
    )
    ROWS_APART = (
        "{op} leaves rows in parts to a kernel that waits for them: estimated {parts:.3g} us, and"
        " {ours:.3g} on tiles that hold whole rows"
    )
    TILE = "{op} stores its result: no tile holds together what {region} needs"
    AGAIN = "its order is chosen again"
    AGAIN_ALONE = "nothing runs in its epilogue, so what reads it is planned as one"
    AGAIN_COPIES = "a step would copy this in secret, so it is stored as that step reads it"
    AGAIN_SIZES = (
        "most of the work is in products as wide or as deep as these inputs have"
        " rows, so their leading sizes are the example's"
    )
    AGAIN_PARTED = "parts of the batch have other sizes, so they are the example's"
    AGAIN_POOLS = "the average pool is better taken first, by a law"
    SEGMENTS = "{op} stores its product: the segments of {region}, {segment} columns, fit no tile"


@dataclass(frozen=True)
class Reason:
    code: Code
    numbers: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        text = self.code.value.format(**dict(self.numbers))
        return re.sub(r"(\S+) (\w+)\(s\)", _counted, text)


def _counted(found: re.Match[str]) -> str:
    """`1 row(s)` as one row, `2 row(s)` as several."""
    number, thing = found.groups()
    return f"{number} {thing}" + ("" if number == "1" else "s")


def reason(code: Code, **numbers: object) -> Reason:
    return Reason(code, tuple(numbers.items()))


@dataclass(frozen=True)
class Refusal:
    """A fusion that was considered and not made."""

    op: str
    place: str
    why: Reason

    def __str__(self) -> str:
        return f"{self.op} at {self.place}: {self.why}"


@dataclass(frozen=True)
class Shared:
    """A value that several kernels use: whether it is stored for them, and why."""

    value: str
    stored: bool
    readers: int
    why: Reason

    def __str__(self) -> str:
        return f"{self.value}: {self.why}"
