"""A generated convolution in C++: the program on its tiles, and its launcher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernelwright.emit.cpp import camel, dim, fit, function
from kernelwright.emit.launchers import arguments, c_function, on_device
from kernelwright.emit.programs import COMBINE, ProgramPrinter
from kernelwright.expr import load
from kernelwright.graph import Dim, as_dim, hint
from kernelwright.lower.convolution import ConvKernel
from kernelwright.plan.largest import ByChannel
from kernelwright.plan.model import Access, Coordinate, Range
from kernelwright.plan.tiles import TileAtom
from kernelwright.plan.walks import AXES

FAR = 1 << 29  # elements, whose bytes are counted in 32 bits (element_at of conv_epilogue.cuh)
# What the launch is given before what the program reads.
OPERANDS = ("input", "weight", "packed", "scales")


@dataclass
class ConvPrinter(ProgramPrinter):
    """Prints the program that a convolution's tiles run; its results are a field from the start."""

    kernel: ConvKernel
    cursor = "kw::TileCursor"
    storing = "kw::store_away"
    loading = "kw::load_ahead"
    sharing = "kw::load_constant"

    def sizes(self) -> list[str]:
        program, laid = self.program, self.kernel.laid
        combine = ", ".join(f"kw::Combine::{COMBINE[s.kind]}" for s in program.stages)
        spans = ", ".join(str(s.segment).lower() for s in program.stages)
        holds = ", ".join(str(held).lower() for held in self.holds())
        stride = self.lane_stride(self.kernel.tiled.given)
        constants = {
            "kStages": len(program.stages),
            "kRows": program.count(self.kernel.tiled.local_rows),
            "kElements": program.count(program.elements),
            "kSegment": self.segment(),
            "kVec": laid.vec,
            "kEdgeVec": laid.edge_vec,
            "kLanes": laid.lanes,
            "kTeams": laid.teams,
            "kPlaceStride": stride,
            "kChannelStride": stride // self.kernel.tile.pitch,
            "kUnroll": laid.unroll,
        }
        truths = {
            "kTurns": str(bool(self.kernel.largest.signs)).lower(),
            "kInRegisters": str(laid.early).lower(),
            "kAcross": str(laid.across).lower(),
            "kReadsBeside": str(bool(self.kernel.tiled.beside)).lower(),
            "kStoresElements": self.stores_at("element"),
            "kStoresFirst": str(laid.first).lower(),
            "kStoresSegments": self.stores_at("segment"),
        }
        return [
            *(f"  static constexpr int {name} = {value};" for name, value in constants.items()),
            *(f"  static constexpr bool {name} = {value};" for name, value in truths.items()),
            f"  static constexpr kw::Combine kCombine[] = {{{combine or 'kw::Combine::kSum'}}};",
            f"  static constexpr bool kOverSegment[] = {{{spans or 'false'}}};",
            f"  static constexpr kw::Keep kKeep = kw::Keep::k{laid.keeps.capitalize()};",
            f"  static constexpr bool kHolds[] = {{{holds or 'false'}}};",
        ]

    def functions(self) -> Iterator[list[str]]:
        tiled = self.kernel.tiled
        yield self.asked("int place", [f"return {self.place(tiled.given.at)};"])
        yield self.asked("int channel", [f"return {self.place(self.channel(tiled.given.at))};"])
        yield self.test("live", tiled.live)
        yield self.test("whole", [self.last(r) for r in (*tiled.rows, *tiled.elements)])
        yield self.test("has_row", tiled.rows)
        yield self.test("has_element", tiled.elements)
        if self.kernel.largest.signs:
            yield self.turned()
        yield from self.begin()
        yield from super().functions()

    def finish_parameters(self, index: int) -> list[tuple[str, str]]:
        return [*super().finish_parameters(index), (f"const {self.cursor}&", "at")]

    def storing_step(self) -> int:
        return 1 if self.kernel.laid.first else super().storing_step()

    def turned(self) -> list[str]:
        """Whether a channel's largest result is wanted as its smallest."""

        def number(sign: ByChannel) -> str:
            step = "" if sign.step == 1 else f" * {sign.step}"
            first = f"{sign.first} + " if sign.first else ""
            return f"kw::to_float(a.{self.member(sign.buffer)}[{first}channel{step}])"

        tests = [f"({number(sign)} < 0.0f)" for sign in self.kernel.largest.signs]
        parameters = [("const Args&", "a"), ("int", "channel")]
        return function("static bool turned(", parameters, [f"return {' != '.join(tests)};"])

    def holds(self) -> list[bool]:
        """For each stage, whether the slice holds something else after it than before."""
        kept = self.kernel.laid.keeps == "slice"
        return [kept and bool(b) and a != b for a, b in pairwise(self.kernel.schedule.held)]

    def begin(self) -> Iterator[list[str]]:
        """What the slice has for a stage becomes a field, and what it has for the next one."""
        held = self.kernel.schedule.held
        steps = range(len(held) if self.kernel.laid.keeps == "slice" else 1)
        parameters = [("Fields<V>&", "f"), ("const kw::Vec<V>&", "results")]
        for step in steps:
            given = held[step] if step else (self.kernel.given,)
            body = [f"f.{self.name(e)} = results;" for e in given]
            head = f"static void begin(kw::Stage<{step}>"
            yield function(head, parameters, body, "template <int V>")
        for step, holds in enumerate(self.holds()):
            if holds:
                (kept,) = held[step + 1]
                head = f"static kw::Vec<V> held(kw::Stage<{step}>"
                body = [f"return f.{self.name(kept)};"]
                yield function(head, [("const Fields<V>&", "f")], body, "template <int V>")
        if self.kernel.tiled.beside:
            yield self.beside()

    def beside(self) -> list[str]:
        """What the slice has in other channels becomes fields too."""
        tiled, pitch = self.kernel.tiled, self.kernel.tile.pitch
        further = [(a, (a.offset - tiled.given.offset) // pitch) for a in tiled.beside]
        body = [f"f.{self.name(load(a))} = results({dim(n)});" for a, n in further]
        parameters = [("Fields<V>&", "f"), ("const Results&", "results")]
        return function("static void beside(", parameters, body, "template <int V, class Results>")

    # ---- places ------------------------------------------------------------------------------

    def channel(self, place: Coordinate) -> Coordinate:
        """Of a place in the slice: what counts whole channels."""
        pitch = self.kernel.tile.pitch
        steps = [(atom, as_dim(s // pitch)) for atom, s in place.strides if hint(s) >= pitch]
        return Coordinate(tuple(steps), place.offset // pitch)

    def asked(self, head: str, body: list[str]) -> list[str]:
        return function(f"static {head}(", [(f"const {self.cursor}&", "at")], body)

    def test(self, name: str, ranges: Sequence[Range]) -> list[str]:
        tests = dict.fromkeys(f"{self.place(r.at)} < {dim(r.high or 0)}" for r in ranges)
        return self.asked(f"bool {name}", [f"return {' && '.join(tests) or 'true'};"])

    def last(self, limit: Range) -> Range:
        """The same question of the last place in a tile."""
        outside = {t.atom for t in self.kernel.tiled.outside}
        inside = [(a, s) for a, s in limit.at.strides if a not in outside]
        reach = sum(s * (self.program.sizes[a] - 1) for a, s in inside)
        kept = tuple((a, s) for a, s in limit.at.strides if a in outside)
        return Range(Coordinate(kept, as_dim(limit.at.offset + reach)), 0, limit.high)

    def pointer(self, base: str, access: Access) -> str:
        """That of the sample, and from there 32 bits, which takes fewer instructions."""
        if not self.is_near(access):
            return super().pointer(base, access)
        sample = self.outside(access, self.samples)
        near = " + ".join(self.steps(access)) or "0"
        return f"kw::element_at({', '.join([base, *sample, near])})"

    def offset(self, access: Access | Coordinate) -> str:
        """` + at.sample * 65536 + at.y * 128 + at.row`: of the tile, then the row and element."""
        terms = self.outside(access, self.samples)
        return "".join(f" + {t}" for t in [*terms, *self.steps(access)])

    @property
    def samples(self) -> list[TileAtom]:
        return [o for o in self.kernel.tiled.outside if AXES[o.axis] == "sample"]

    def steps(self, access: Access | Coordinate) -> list[str]:
        """Those of the tile within its sample, then of the row and the element."""
        terms = [dim(access.offset)] if access.offset != 0 else []
        within = [o for o in self.kernel.tiled.outside if o not in self.samples]
        for axis in dict.fromkeys(o.axis for o in within):
            terms += self.outside(access, [o for o in within if o.axis == axis])
        terms += self.terms(access, self.kernel.tiled.local_rows, "at.row")
        return [*terms, *self.terms(access, self.program.elements, "at.element")]

    def is_near(self, access: Access) -> bool:
        """Whether 32 bits count bytes from the sample's first element, and none is before it."""
        samples = {o.atom for o in self.samples}
        strides = [(atom, s) for atom, s in access.at.strides if atom not in samples]
        sizes = self.program.sizes
        if not all(isinstance(n, int) for atom, s in strides for n in (s, sizes[atom])):
            return False
        steps = [int(str(s)) * (int(str(sizes[atom])) - 1) for atom, s in strides]
        first = access.offset
        return isinstance(first, int) and min([first, *steps]) >= 0 and first + sum(steps) < FAR

    def outside(self, access: Access | Coordinate, tiles: Sequence[TileAtom]) -> list[str]:
        """The terms of a tile's own place along one axis, which some atoms make up together."""
        strides = [access.stride(tile.atom) for tile in tiles]
        if not any(stride != 0 for stride in strides):
            return []
        place = f"at.{AXES[tiles[0].axis]}"
        times = {exactly(stride, tile.unit) for stride, tile in zip(strides, tiles, strict=True)}
        if len(times) == 1 and None not in times and any(tile.size is None for tile in tiles):
            (by,) = times  # all of the place counts, in equal steps
            return [place if by == 1 else f"{place} * {by}"]
        return [t for tile in tiles if (t := self.part(access, tile, place))]

    def part(self, access: Access | Coordinate, tile: TileAtom, place: str) -> str:
        """The term of one atom alone."""
        stride = access.stride(tile.atom)
        if stride == 0:
            return ""
        number = place if tile.unit == 1 else f"{place} / {tile.unit}"
        number += f" % {dim(tile.size)}" if tile.size is not None else ""
        if stride == 1:
            return number
        return f"({number}) * {dim(stride)}" if " " in number else f"{number} * {dim(stride)}"


def exactly(stride: Dim, unit: int) -> int | None:
    """How many units a stride is, if it is a whole number of them."""
    return stride // unit if isinstance(stride, int) and stride % unit == 0 else None


def conv_launcher(printer: ConvPrinter) -> str:
    kernel, struct = printer.kernel, camel(printer.kernel.name)
    sizes = len(printer.symbols())
    pointers = [f"tensors[{i}]" for i in range(len(OPERANDS))]
    operands = ", ".join([*pointers, dim(kernel.conv.form.batch), f"numbers[{sizes}] != 0"])
    lines = [
        *arguments(printer, len(OPERANDS)),
        *fit(f"  const kw::ConvOperands g{{{operands}}};"),
        *on_device(sizes + 1),
        *fit(
            f"  return kw::conv<kw::{kernel.conv.loop.symbol}, {struct}, {struct}Config>(g, a, on);"
        ),
    ]
    return c_function(f"launch_{kernel.name}", lines)
