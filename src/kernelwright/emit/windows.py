"""Programs of windows that a thread takes together (windows.cuh): what they see, and make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kernelwright.emit.cpp import dim, expression, function
from kernelwright.emit.programs import ProgramPrinter, reachable
from kernelwright.expr import Expr, leaves
from kernelwright.plan.model import Access, Coordinate, Range
from kernelwright.plan.windows import Sight, beside, resting, sight


@dataclass
class WindowsPrinter(ProgramPrinter):
    """Prints a program with its axes, and for each stage what is seen and how it is weighed."""

    seeing: bool = False

    @cached_property
    def sight(self) -> Sight:
        found = sight(self.program)
        assert found is not None
        return found

    @cached_property
    def still(self) -> dict[Expr, str]:
        """What is the same at all places of a picture, as the members that a thread keeps.

        Compilers would load it again for each place, under the condition that nothing is padding.
        """
        found = [e for seen in self.sight.seen for e in resting(self.sight, seen)]
        return {e: self.name(e) for e in dict.fromkeys(found) if leaves(e, "load")}

    def sizes(self) -> list[str]:
        axes = zip(self.sight.axes, self.kernel.config.windows, strict=True)
        rows = [a.row for a in self.sight.axes]
        looks = zip(self.sight.weighed, self.sight.seen, strict=True)
        weighs = ", ".join(_truth(weighed is not seen) for weighed, seen in looks)
        texts = [f"{{{a.size}, {n}, {a.taps}, {a.step}, {a.spread}}}" for a, n in axes]
        return [
            *super().sizes(),
            "  // Windows, those of a thread, taps; places from window to window, from tap to tap.",
            f"  static constexpr kw::Axis kAxes[] = {{{', '.join(texts)}}};",
            f"  static constexpr int kBeside = {rows.index(beside(self.program))};",
            f"  static constexpr bool kDoubts = {_truth(self.sight.doubts)};",
            f"  static constexpr bool kWeighs[] = {{{weighs}}};",
            "  struct Picture {",
            *(f"    float {member};" for member in self.still.values()),
            "  };",
        ]

    def functions(self) -> Iterator[list[str]]:
        yield self.picture()
        for index in range(len(self.program.stages)):
            yield self.seen(index)
            if self.sight.weighed[index] is not self.sight.seen[index]:
                yield self.weigh(index)
            if self.sight.doubts:
                yield self.contribution(index)
            yield self.finish(index)
        yield self.store_elements()
        yield self.store_uniform("segment")
        yield self.store_uniform("row")

    def picture(self) -> list[str]:
        """What all places of a picture have in common."""
        self.seeing = True
        known: dict[Expr, str] = {}
        order = reachable(list(self.still), known)
        body = self.memory(order, known, "0", "1")
        body += [line.strip() for line in self.locals(order, known, {})]
        values = ", ".join(expression(e, known) for e in self.still)
        self.seeing = False
        parameters = [("const Args&", "a"), (self.spot, "at")]
        return function("static Picture picture", parameters, [*body, f"return {{{values}}};"])

    @property
    def spot(self) -> str:
        return f"const kw::Spot<{len(self.sight.axes)}>&"

    def seen(self, index: int) -> list[str]:
        """A vector of places, or of padding."""
        self.seeing = True
        expr = self.sight.seen[index]
        known = {e: f"still.{member}" for e, member in self.still.items()}
        if padded := _padding(expr):
            access, beyond = padded
            ranges: dict[Range, str] = dict.fromkeys(access.within, "")
            body = self.conditions(ranges, "V")
            test = " && ".join(ranges.values())
            pointer = f"a.{self.member(access.buffer)}{self.offset(access)}"
            body.append(f"return kw::load_where<V>({pointer}, {test}, {beyond});")
        else:
            order = reachable([expr], known)
            body = ["kw::Vec<V> out;", *self.memory(order, known, "v", "V")]
            inside = self.locals(order, known, {})
            last = f"  out[v] = {expression(expr, known)};"
            body += ["KW_LANES", "for (int v = 0; v < V; ++v) {", *inside, last, "}", "return out;"]
        self.seeing = False
        parameters = [("const Args&", "a"), ("const Picture&", "still"), (self.spot, "at")]
        head = f"static kw::Vec<V> seen(kw::Stage<{index}>"
        return function(head, parameters, body, "template <int V>")

    def weigh(self, index: int) -> list[str]:
        """What a window makes of a place; all else is the same for the windows of a thread."""
        expr, seen = self.sight.weighed[index], self.sight.seen[index]
        known: dict[Expr, str] = {seen: "seen[v]"}
        known |= {e: f"s.{self.name(e)}[v]" for e, _ in self.scalars()}
        order = reachable([expr], known)
        body = ["kw::Vec<V> out;", *self.memory(order, known, "v", "V")]
        inside = self.locals(order, known, {})
        last = f"  out[v] = {expression(expr, known)};"
        body += ["KW_LANES", "for (int v = 0; v < V; ++v) {", *inside, last, "}", "return out;"]
        given = [("const kw::Vec<V>&", "seen"), ("const Scalars<L>&", "s")]
        parameters = [*given, ("const Args&", "a"), (self.cursor, "at")]
        head = f"static kw::Vec<V> weigh(kw::Stage<{index}>"
        return function(head, parameters, body, "template <int V, int L>")

    # ---- places --------------------------------------------------------------------------

    def offset(self, access: Access | Coordinate) -> str:
        """` + at.picture * 12544 + at.from[0] * 112 + ... + at.by[0] * 112`: where a vector starts.

        What only the thread knows comes first: the rest is a constant, and is added to an address.
        """
        if not self.seeing:
            return super().offset(access)
        at = access.at if isinstance(access, Access) else access
        axes = self.sight.axes
        own = {a.row for a in axes}
        outer = tuple(a for a in self.program.rows if a not in own)
        terms = [dim(at.offset)] if at.offset != 0 else []
        terms += self.terms(at, outer, "at.picture")
        units = [(i, unit) for i, axis in enumerate(axes) if (unit := axis.unit(at))]
        for part in ("from", "by"):
            terms += [f"at.{part}[{i}]" + f" * {unit}" * (unit != 1) for i, unit in units]
        return "".join(f" + {t}" for t in terms)

    def lanewise(self, part: Range) -> bool:
        """Padding begins and ends between two vectors of places."""
        return not self.seeing and super().lanewise(part)

    def index(self, expr: Expr, known: dict[Expr, str], lane: str) -> str:
        if not self.seeing:
            return super().index(expr, known, lane)
        assert isinstance(expr.value, Coordinate)
        local = self.fresh("index")
        known[expr] = f"static_cast<float>({local})"
        return f"const int64_t {local} = {self.place(expr.value)};"

    def load(
        self, expr: Expr, known: dict[Expr, str], ranges: dict[Range, str], lane: str, width: str
    ) -> str:
        if not self.seeing:
            return super().load(expr, known, ranges, lane, width)
        access = expr.value
        assert isinstance(access, Access)
        local = self.fresh(f"{access.buffer}_in")
        known[expr] = f"{local}[{lane}]"
        pointer = f"a.{self.member(access.buffer)}{self.offset(access)}"
        moves = self.sight.axes[-1].unit(access.at) != 0
        vector = f"load_row<{width}>" if moves else f"load_same<{width}>"
        if not access.within:
            return f"const auto {local} = kw::{vector}({pointer});"
        test = " && ".join(ranges[r] for r in access.within)
        vector = f"load_where<{width if moves else 1}>"
        return f"const auto {local} = kw::{vector}({pointer}, {test}, 0.0f);"


def _truth(value: bool) -> str:
    return str(value).lower()


def _padding(expr: Expr) -> tuple[Access, str] | None:
    """A load, and a number outside of the ranges in which it can be made: one instruction."""
    tests: list[Range] = []
    last = expr.args[2] if expr.op == "where" else None
    while expr.op == "where" and expr.args[0].op == "inside" and expr.args[2] is last:
        part = expr.args[0].value
        assert isinstance(part, Range)
        tests.append(part)
        expr = expr.args[1]
    if last is None or last.op != "const" or expr.op != "load":
        return None
    access = expr.value
    assert isinstance(access, Access)
    return (access, expression(last, {})) if set(tests) == set(access.within) else None
