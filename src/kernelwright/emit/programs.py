"""Row programs in C++, one printer: the same text for CUDA and the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from kernelwright.emit.cpp import camel, comment, dim, expression, fit, function, in_double
from kernelwright.expr import Expr, postorder
from kernelwright.graph import Dim, Graph, as_dim, fresh_name
from kernelwright.lower.config import certain
from kernelwright.lower.kernel import Kernel
from kernelwright.lower.schedule import GIVEN
from kernelwright.plan.model import (
    Access,
    Coordinate,
    Program,
    Range,
    Store,
    element_type,
    stage_of_mean,
)

STORAGE = {
    torch.float32: "float",
    torch.float16: "kw::half_t",
    torch.bfloat16: "kw::bfloat16_t",
    torch.bool: "bool",
    torch.int64: "int64_t",
}
COMBINE = {"sum": "kSum", "prod": "kProd", "max": "kMax", "min": "kMin"}
# Calls inside of each other; what is deeper has a name. (Compilers refuse 256 open brackets.)
DEEPEST = 24
RESTRICT = " KW_RESTRICT"  # storage.cuh says what it is for
RESERVED = frozenset(
    """
    a s f v l at out total seen still V L I kw Args Fields Scalars Picture Config rows elements
    picture finish contribution store_row store_segment store_elements batch
    auto bool break case catch char class const continue default delete do double else enum
    explicit export extern false float for friend goto if inline int long mutable namespace new
    operator private protected public register return short signed sizeof static struct switch
    template this throw true typedef union unsigned using virtual void volatile while and or not
    xor
    """.split()  # noqa: SIM905
)


@dataclass
class ProgramPrinter:
    """Prints one kernel's program struct, or what a kernel does with that of an `owner`.

    `cursor` is the type of a place in its loop nest; `storing` takes lanes to memory, `loading`
    brings what is read once, `sharing` what lanes have in common.
    """

    graph: Graph
    kernel: Kernel
    owner: str = ""
    names: dict[Expr, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: set(RESERVED))
    cursor = "kw::Cursor"
    storing = "kw::store_row"
    loading = "kw::load_once"
    sharing = "kw::load_same"

    def element_parameters(self, args: str = "const Args&") -> list[tuple[str, str]]:
        fixed = [("Fields<V>&", "f"), ("const Scalars<L>&", "s"), (args, "a")]
        return [*fixed, (self.cursor, "at")]

    def finish_parameters(self, index: int) -> list[tuple[str, str]]:
        total = "L, double" if self.kernel.centres[index] else "L"
        return [("Scalars<L>&", "s"), (f"const kw::Vec<{total}>&", "total"), ("const Args&", "a")]

    @property
    def struct(self) -> str:
        return camel(self.owner or self.kernel.name)

    @property
    def program(self) -> Program:
        return self.kernel.program

    # ---- names ---------------------------------------------------------------------------

    def fresh(self, wish: str) -> str:
        return fresh_name(wish, self.taken)

    def name(self, expr: Expr) -> str:
        """A readable name for a field, a scalar or a repeated subexpression."""
        if expr not in self.names:
            if expr.op == "load":
                assert isinstance(expr.value, Access)
                wish = expr.value.buffer
            elif expr.op == "acc":
                wish = self.program.stages[int(str(expr.value))].name
            else:
                wish = self.program.labels.get(expr, f"{expr.op}_value")
            self.names[expr] = self.fresh(wish)
        return self.names[expr]

    def member(self, buffer: str) -> str:
        return f"{buffer}_" if buffer in RESERVED else buffer

    @cached_property
    def tiles(self) -> dict[Access, str]:
        """What the rows of a tile have together, where neighbouring lanes lie across them."""
        if self.kernel.template.symbol != "tiled":
            return {}
        last = self.program.rows[-1]
        beside = [a for a in self.program.accesses if a.stride(last) == 1 and not a.within]
        apart = dict.fromkeys(a for a in beside if self.lane_stride(a) != 0)
        return {access: self.fresh(f"{access.buffer}_tile") for access in apart}

    def across(self, verb: str, access: Access, width: str, pointer: str) -> str:
        """What `verb` does with an access in the tile of its rows."""
        rows = dict(self.kernel.config.constants)["kAcross"]
        constants = f"{width}, {dim(self.lane_stride(access))}, {rows}"
        return f"kw::{verb}_across<{constants}>(f.{self.tiles[access]}, {pointer}, at.row)"

    # ---- the struct ----------------------------------------------------------------------

    def print(self) -> str:
        plan = self.kernel.schedule
        lines = [
            f"// {self.title()}",
            f"struct {self.struct} {{",
            *self.args(),
            *self.sizes(),
            "",
            *self.record("Fields", "V", [self.name(e) for e in plan.fields], self.tiles.values()),
            *self.record("Scalars", "L", [self.name(e) for e, _ in self.scalars()]),
            *(line for function in self.functions() for line in ("", *function)),
            "};",
        ]
        return "\n".join(part for line in lines for part in fit(line))

    def sizes(self) -> list[str]:
        """What the template knows of the program at compile time, and the loop nest."""
        program, stages = self.program, self.program.stages
        combine = ", ".join(f"kw::Combine::{COMBINE[s.kind]}" for s in stages)
        spans = ", ".join(str(s.segment).lower() for s in stages)
        elements = program.count(program.elements)
        joined = ", ".join(str(joins).lower() for joins in program.same_reading)
        readings = [f"  static constexpr bool kSameReading[] = {{{joined}}};"]
        centre = ", ".join(str(c).lower() for c in self.kernel.centres)
        centres = [f"  static constexpr bool kCentre[] = {{{centre}}};"]
        return [
            f"  static constexpr int kStages = {len(stages)};",
            f"  static constexpr kw::Combine kCombine[] = {{{combine or 'kw::Combine::kSum'}}};",
            f"  static constexpr bool kOverSegment[] = {{{spans or 'false'}}};",
            *(centres if any(self.kernel.centres) else []),
            *(readings if self.kernel.template.joins and any(program.same_reading) else []),
            f"  static constexpr int kSegment = {self.segment()};",
            f"  static constexpr int kElements = {elements if isinstance(elements, int) else 0};",
            f"  static constexpr bool kStoresElements = {self.stores_at('element')};",
            f"  static constexpr bool kStoresSegments = {self.stores_at('segment')};",
            *function("static int64_t rows", [("const Args&", "a")],
                       [f"return {dim(program.count(program.rows))};"]),
            *function("static int64_t elements", [("const Args&", "a")],
                       [f"return {dim(elements)};"]),
        ]  # fmt: skip

    def functions(self) -> Iterator[list[str]]:
        for index in range(len(self.program.stages)):
            yield self.contribution(index)
            yield self.finish(index)
        yield self.store_elements()
        yield self.store_uniform("segment")
        yield self.store_uniform("row")

    def stores_at(self, level: str) -> str:
        return str(any(s.level == level for s in self.program.stores)).lower()

    def title(self) -> str:
        sources = [self.graph[n].origin for n in self.kernel.region.nodes]
        ops = dict.fromkeys(f"{o.op} ({comment(o.place)})" for o in sources if o.op != "getitem")
        return ", ".join(ops)

    def segment(self) -> int:
        return int(str(self.program.count(self.program.inner))) if self.program.segmented else 0

    def args(self) -> list[str]:
        lines = ["  struct Args {"]
        for buffer in self.kernel.reads:
            lines.append(f"    const {self.storage(buffer)}* {self.member(buffer)};")
        elements = {s.access.buffer for s in self.program.stores if s.level == "element"}
        alone = elements.difference(self.kernel.reads)
        for buffer in self.kernel.places:
            pointer = f"{self.storage(buffer)}*{RESTRICT if buffer in alone else ''}"
            lines.append(f"    {pointer} {self.member(buffer)}_out;")
        lines += [f"    int64_t {symbol};" for symbol in self.symbols()]
        return [*lines, "  };"]

    def symbols(self) -> list[str]:
        return list(self.graph.symbols)

    def storage(self, buffer: str) -> str:
        return STORAGE[element_type(self.graph, buffer)]

    def record(
        self, name: str, lanes: str, members: list[str], tiles: Iterable[str] = ()
    ) -> list[str]:
        inside = [f"    kw::Vec<{lanes}> {m};" for m in members]
        inside += [f"    kw::Tile<{lanes}> {tile};" for tile in tiles]
        return [f"  template <int {lanes}>", f"  struct {name} {{", *inside, "  };"]

    def scalars(self) -> list[tuple[Expr, int]]:
        """Stage results themselves first, then what is derived from them."""
        found = dict(self.kernel.schedule.scalars)
        for expr in list(found):
            if self.is_centre(expr):
                continue
            for e in postorder(expr):
                if e.op == "acc":
                    found.setdefault(e, int(str(e.value)))
        return sorted(found.items(), key=lambda item: (item[1], bool(item[0].args)))

    def is_centre(self, expr: Expr) -> bool:
        """Whether it is the mean that follows from a total in double."""
        stage = stage_of_mean(expr)
        return stage is not None and self.kernel.centres[stage]

    # ---- the functions -------------------------------------------------------------------

    def contribution(self, index: int) -> list[str]:
        step = self.kernel.schedule.steps[index]
        roots = [(step.roots[0], "out")]
        beyond = None if step.makes else _beyond(step.roots[0])
        body = ["kw::Vec<V> out;", *self.lanes(roots, step.makes, index, beyond), "return out;"]
        head = f"static kw::Vec<V> contribution(kw::Stage<{index}>"
        return function(head, self.element_parameters(), body, "template <int V, int L>")

    def finish(self, index: int) -> list[str]:
        known: dict[Expr, str] = {
            e: f"s.{self.name(e)}[l]" for e, at in self.scalars() if at < index
        }
        finished = [e for e, at in self.scalars() if at == index]
        members = {e: f"s.{self.name(e)}[l]" for e in finished}
        results = {e: self.result(e, index) for e in members if e.op == "acc" or self.is_centre(e)}
        known |= {e: members[e] for e in results}
        assigned = [f"  {members[e]} = {text};" for e, text in results.items()]
        order = reachable(finished, known)
        before = self.memory(order, known, "l", "L")
        assigned += self.locals(order, known, members)
        loop = [*before, "KW_LANES", "for (int l = 0; l < L; ++l) {"]
        body = [*loop, *assigned, "}"] if assigned else []
        head = f"static void finish(kw::Stage<{index}>"
        return function(head, self.finish_parameters(index), body, "template <int L>")

    def result(self, expr: Expr, index: int) -> str:
        """A stage's total, or the mean that follows from one in double, as a float."""
        if expr.op == "acc":
            return "static_cast<float>(total[l])" if self.kernel.centres[index] else "total[l]"
        return f"static_cast<float>(total[l] * (1.0 / {in_double(expr.args[1])}))"

    def store_elements(self) -> list[str]:
        stores = [s for s in self.program.stores if s.level == "element"]
        targets = [self.fresh(f"{s.access.buffer}_out") for s in stores]
        body = [self.store(s, t, "V") for s, t in zip(stores, targets, strict=True)]
        roots = [(s.expr, t) for s, t in zip(stores, targets, strict=True)]
        if stores:
            body += self.lanes(roots, (), self.storing_step())
        body += [f"{t}.commit();" for t in targets]
        return function(
            "static void store_elements(",
            self.element_parameters(f"const Args&{RESTRICT}" if stores else "const Args&"),
            body,
            "template <int V, int L>",
        )

    def storing_step(self) -> int:
        """The step whose fields are there when elements are stored."""
        return len(self.program.stages)

    def store_uniform(self, level: str) -> list[str]:
        """Per-row or per-segment results; lanes are rows if the program is strided."""
        stores = [s for s in self.program.stores if s.level == level]
        body: list[str] = []
        for s in stores:
            target = self.fresh(f"{s.access.buffer}_out")
            known = {e: f"s.{self.name(e)}[l]" for e, _ in self.scalars()}
            body += self.memory(postorder(s.expr), known, "l", "L")
            body.append(self.store(s, target, "L"))
            named = self.locals(reachable([s.expr], known), known, {})
            last = f"{target}[l] = {expression(s.expr, known)};"
            body += ["KW_LANES", "for (int l = 0; l < L; ++l) {", *named, f"  {last}", "}"]
            body.append(f"{target}.commit();")
        if level == "row" and self.program.counts:
            counts = [f"  *a.{self.member(b)}_out += {by};" for b, by in self.program.counts]
            body += ["if (at.row == 0) {", *counts, "}"]
        parameters = [("const Scalars<L>&", "s"), ("const Args&", "a"), (self.cursor, "at")]
        return function(f"static void store_{level}(", parameters, body, "template <int L>")

    def lanes(
        self,
        roots: list[tuple[Expr, str]],
        makes: tuple[Expr, ...],
        step: int,
        beyond: Beyond | None = None,
    ) -> list[str]:
        """Loads, then one loop over lanes that fills the fields and the targets."""
        fields = set(self.kernel.schedule.fields)
        known: dict[Expr, str] = {
            e: f"f.{self.name(e)}[v]" for e in fields if e not in makes and self.made(e) < step
        }
        known |= {e: f"s.{self.name(e)}[v]" for e, _ in self.scalars()}
        order = reachable([e for e, _ in roots], known)
        before = self.memory(order, known, "v", "V", beyond)
        body = self.locals(order, known, {e: f"f.{self.name(e)}[v]" for e in makes})
        body += [f"  {target}[v] = {expression(e, known)};" for e, target in roots]
        return [*before, "KW_LANES", "for (int v = 0; v < V; ++v) {", *body, "}"]

    def locals(self, order: list[Expr], known: dict[Expr, str], kept: dict[Expr, str]) -> list[str]:
        """Lines for what is `kept` in a member, occurs twice, or is too deep for one expression.

        The lines' names are known afterwards.
        """
        uses = Counter(a for e in order for a in e.args)
        depth: dict[Expr, int] = {}
        lines: list[str] = []
        for e in order:
            depth[e] = 1 + max((depth.get(a, 0) for a in e.args), default=-1)
            deep = depth[e] >= DEEPEST
            if e in kept:
                lines.append(f"  {kept[e]} = {expression(e, known)};")
                known[e] = kept[e]
            elif e.args and e not in known and (uses[e] > 1 or deep):
                local = self.name(e)
                lines.append(f"  const float {local} = {expression(e, known)};")
                known[e] = local
            if e in known:
                depth[e] = 0
        return lines

    def made(self, expr: Expr) -> int:
        steps = self.kernel.schedule.steps
        return next((i for i, s in enumerate(steps) if expr in s.makes), GIVEN)

    # ---- memory --------------------------------------------------------------------------

    def memory(
        self,
        order: list[Expr],
        known: dict[Expr, str],
        lane: str,
        width: str,
        beyond: Beyond | None = None,
    ) -> list[str]:
        """The loads of these expressions, after the conditions under which they are made."""
        loads = [e for e in order if e.op == "load"]
        ranges: dict[Range, str] = {}
        for e in order:
            if e.op == "inside":
                assert isinstance(e.value, Range)
                ranges[e.value] = ""
            elif e.op == "load":
                assert isinstance(e.value, Access)
                ranges |= dict.fromkeys(e.value.within, "")
        lines = self.conditions(ranges, width)
        for e in order:
            if isinstance(e.value, Range):
                each = f"[{lane}]" if self.lanewise(e.value) else ""
                known[e] = f"{ranges[e.value]}{each}"
        if beyond is not None and not any(map(self.lanewise, beyond.ranges)):
            tests = " || ".join(f"!{ranges[r]}" for r in beyond.ranges)
            # A second object to return would be copied, through memory, by every caller.
            lines += [
                f"if (kw::kSkips && ({tests})) {{",
                f"  kw::fill(out, {beyond.value});",
                "  return out;",
                "}",
            ]
        lines += [self.index(e, known, lane) for e in order if e.op == "index"]
        return [*lines, *(self.load(e, known, ranges, lane, width) for e in loads)]

    def index(self, expr: Expr, known: dict[Expr, str], lane: str) -> str:
        """The place of the first lane as a local; the others lie a stride apart."""
        assert isinstance(expr.value, Coordinate)
        local = self.fresh("index")
        lanes = self.program.lanes
        step = expr.value.stride(lanes[-1]) if lanes else 0
        at = local if step == 0 else f"{local} + {lane} * {dim(step)}"
        known[expr] = f"static_cast<float>({at})"
        return f"const int64_t {local} = {self.place(expr.value)};"

    def conditions(self, ranges: dict[Range, str], width: str) -> list[str]:
        """Each range as a local; a chunk of lanes lies inside as a whole, or outside."""
        lines: list[str] = []
        known = certain(self.program, self.kernel.config)
        places: dict[Coordinate, str] = {}
        for r in ranges:
            if r.at not in places:
                places[r.at] = self.fresh("place")
                lines.append(self.located(places[r.at], r.at))
            place, tests = places[r.at], []
            if r.low is not None:
                tests.append(f"{place} >= {dim(r.low)}")
            if r.high is not None:
                tests.append(f"{place} < {dim(r.high)}")
            ranges[r] = self.fresh("inside")
            test = " && ".join(tests)
            if self.lanewise(r):
                bounds = ", ".join(_bound(limit) for limit in (r.low, r.high))
                step = dim(r.at.stride(self.program.lanes[-1]))
                lines.append(f"const kw::Within {ranges[r]}{{{place}, {step}, {bounds}}};")
                continue
            if r in known:
                test = f"{width} > 1 || ({test})" if len(tests) > 1 else f"{width} > 1 || {test}"
            lines.append(f"const bool {ranges[r]} = {test};")
        return lines

    def located(self, name: str, at: Coordinate) -> str:
        """A place as a local; along an axis that windows move on, 32 bits hold it."""
        if self.kernel.config.windows:
            return f"const auto {name} = static_cast<int>({self.place(at)});"
        return f"const int64_t {name} = {self.place(at)};"

    def lanewise(self, part: Range) -> bool:
        """Whether lanes of one thread may lie inside of a range and outside of it."""
        lanes = self.program.lanes
        own = bool(self.kernel.config.windows) and bool(lanes)
        return own and self.program.strided and part.at.stride(lanes[-1]) != 0

    def place(self, at: Coordinate) -> str:
        return self.offset(at).removeprefix(" + ") or "0"

    def load(
        self, expr: Expr, known: dict[Expr, str], ranges: dict[Range, str], lane: str, width: str
    ) -> str:
        access = expr.value
        assert isinstance(access, Access)
        local = self.fresh(f"{access.buffer}_in")
        known[expr] = f"{local}[{lane}]"
        base = f"a.{self.member(access.buffer)}"
        pointer = self.pointer(base, access)
        stride = self.lane_stride(access)
        if access.within and self.kernel.config.windows:
            tests = ", ".join(ranges[r] for r in access.within)
            call = f"kw::load_inside<{width}>({pointer}, {dim(stride)}, {tests})"
            return f"const auto {local} = {call};"
        if access.within:
            # Elsewhere the first elements are read instead, and not used.
            test = " && ".join(ranges[r] for r in access.within)
            pointer = (
                f"({test}) ? {pointer} : {base}" if " " in test else f"{test} ? {pointer} : {base}"
            )
        if block := self.block(access):
            return f"const auto {local} = kw::load_block<{block}>({pointer});"
        if stride == 0:
            return f"const auto {local} = {self.sharing}<{width}>({pointer});"
        if stride == 1 and access.buffer in self.kernel.writes:
            return f"const auto {local} = kw::load_before<{width}>({pointer});"
        if stride == 1:
            whole = access.atoms == frozenset(self.program.sizes) and not access.within
            once = self.kernel.template.spares_cache and whole
            call = self.loading if once else "kw::load_row"
            return f"const auto {local} = {call}<{width}>({pointer});"
        if access in self.tiles:
            return f"const auto {local} = {self.across('load', access, width, pointer)};"
        if isinstance(stride, int):
            call = "kw::load_apart" if self.kernel.template.symbol == "tiled" else "kw::load_every"
            return f"const auto {local} = {call}<{width}, {stride}>({pointer});"
        return f"const auto {local} = kw::load_strided<{width}>({pointer}, {dim(stride)});"

    def store(self, store: Store, value: str, width: str) -> str:
        access = store.access
        pointer = self.pointer(f"a.{self.member(access.buffer)}_out", access)
        if block := self.block(access):
            return f"auto {value} = kw::store_block<{block}>({pointer});"
        stride = self.lane_stride(access)
        if stride == 1 or (width == "L" and not self.program.strided):
            return f"auto {value} = {self.storing}<{width}>({pointer});"
        if access in self.tiles:
            return f"auto {value} = {self.across('store', access, width, pointer)};"
        return f"auto {value} = kw::store_strided<{width}>({pointer}, {dim(stride)});"

    def block(self, access: Access) -> str:
        """The lanes down and across of a kernel that turns blocks, and their strides here."""
        if self.kernel.template.symbol != "turned":
            return ""
        program, constants = self.program, dict(self.kernel.config.constants)
        strides = [access.stride(run[-1]) for run in (program.outer, program.inner)]
        return ", ".join(str(n) for n in (constants["kDown"], constants["kAcross"], *strides))

    def lane_stride(self, access: Access) -> Dim:
        lanes = self.program.lanes
        return access.stride(lanes[-1]) if lanes else 0

    def pointer(self, base: str, access: Access) -> str:
        return f"{base}{self.offset(access)}"

    def offset(self, access: Access | Coordinate) -> str:
        """` + at.row * 8192 + at.element`: where the chunk under the cursor starts."""
        terms = [dim(access.offset)] if access.offset != 0 else []
        terms += self.terms(access, self.program.rows, "at.row")
        terms += self.terms(access, self.program.elements, "at.element")
        return "".join(f" + {t}" for t in terms)

    def terms(self, access: Access | Coordinate, atoms: tuple[int, ...], cursor: str) -> list[str]:
        sizes = self.program.sizes
        groups: list[list[int]] = []
        for atom in atoms:
            last = groups[-1][-1] if groups else None
            step = access.stride(atom)
            if last is not None and access.stride(last) == as_dim(step * sizes[atom]):
                groups[-1].append(atom)
            else:
                groups.append([atom])
        terms = []
        for i, group in enumerate(groups):
            stride = access.stride(group[-1])
            if stride == 0:
                continue
            inside = self.program.count(tuple(a for g in groups[i + 1 :] for a in g))
            index = cursor if inside == 1 else f"{cursor} / {dim(inside)}"
            if i > 0:
                index = f"{index} % {dim(self.program.count(tuple(group)))}"
            terms.append(index if stride == 1 else f"{_bracket(index)} * {dim(stride)}")
        return terms


@dataclass(frozen=True)
class Beyond:
    """What an expression is, as a number, outside of some ranges."""

    ranges: tuple[Range, ...]
    value: str


def _beyond(expr: Expr) -> Beyond | None:
    """A value that is a number everywhere but in some ranges: padding."""
    ranges: list[Range] = []
    last = expr.args[2] if expr.op == "where" else None
    while expr.op == "where" and expr.args[0].op == "inside" and expr.args[2] is last:
        part = expr.args[0].value
        assert isinstance(part, Range)
        ranges.append(part)
        expr = expr.args[1]
    if not ranges or last is None or last.op != "const":
        return None
    return Beyond(tuple(ranges), expression(last, {}))


def _bound(limit: Dim | None) -> str:
    return "kw::Within::kNone" if limit is None else dim(limit)


def _bracket(index: str) -> str:
    return f"({index})" if " " in index else index


def reachable(roots: list[Expr], known: dict[Expr, str]) -> list[Expr]:
    """Postorder that stops at what is already known."""
    seen: dict[Expr, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        e, arguments_done = stack.pop()
        if arguments_done:
            seen[e] = None
        elif e not in seen and e not in known:
            stack += [(e, True), *((a, False) for a in reversed(e.args))]
    return list(seen)
