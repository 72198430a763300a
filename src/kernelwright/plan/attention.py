"""Attention: a product, a softmax over its rows, and a product with the result, as one kernel.

    attend    a Plan whose contractions are library calls -> the same with an `attention` region in
              the place of each such chain that one kernel makes faster; the steps apart are kept
              beside it for other GPUs
    attends   whether torch's own attention over such operands is worth taking apart for that

The pattern is one over contractions: the product is read by one kernel alone, whose program is a
softmax of any expression (a scale, biases, masks) over the axis that the next contraction sums,
and that is alone in reading the weights. So it finds what people write by hand as well as what
expand/attention.py makes of torch's function. A program that follows, element by element, runs on
the results while they are in registers. Operands are read as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kernelwright.expr import Expr, acc, call, const, leaves
from kernelwright.graph import Dim, TensorType, as_dim, hint, product
from kernelwright.plan.epilogue import Unfit, axes_of, fit, stored
from kernelwright.plan.model import (
    Access,
    Attention,
    Coordinate,
    Operand,
    Plan,
    Program,
    Region,
    Stage,
    element_type,
)
from kernelwright.plan.names import region_name
from kernelwright.plan.operands import Form, form_of
from kernelwright.plan.policy import Policy
from kernelwright.plan.reasons import Code, Reason, Refusal, reason
from kernelwright.plan.tails import Tail, tails
from kernelwright.targets.target import Attending, CoreAttending, Loop, Target

STEP = 8  # columns and depth of one product of the tensor cores
FULL = {torch.float32}
Attends = Callable[[TensorType, TensorType, TensorType], bool]


@dataclass(frozen=True)
class Sizes:
    """`batch` attentions of so many rows; the others are numbers that a kernel is compiled for."""

    batch: int
    rows: int
    keys: int
    depth: int
    columns: int


@dataclass(frozen=True)
class Times:
    """Microseconds, by estimate: in one kernel, and in a kernel for each step."""

    ours: float
    apart: float


def times(kernel: Attending, loop: Loop, sizes: Sizes, moved: float) -> Times:
    """`moved` is what is read and written of other things than scores, in bytes."""
    rows, keys = _up(sizes.rows, kernel.rows), _up(sizes.keys, STEP)
    features = _up(sizes.depth, STEP) + _up(sizes.columns, STEP)
    ours = kernel.time(2.0 * sizes.batch * rows * keys * features, moved)
    scores = kernel.dtype.itemsize * sizes.batch * sizes.rows * sizes.keys
    apart = loop.tiling.kernel_overhead + 2 * scores / loop.tiling.read_rate
    for columns, depth in ((sizes.keys, sizes.depth), (sizes.columns, sizes.keys)):
        shape = (sizes.rows, columns, depth, sizes.batch)
        generated = min(loop.generated_time(width, *shape) for width in loop.widths)
        apart += min(generated, loop.library_time(*shape))
    return Times(ours, apart)


def times_on(
    target: Target, kernel: Attending | CoreAttending, precision: str, sizes: Sizes, moved: float
) -> Times | None:
    """By the model of the target; None: it has no products to compare with."""
    if isinstance(kernel, CoreAttending):
        scores = float(sizes.batch * sizes.rows * sizes.keys)
        flops = 2.0 * scores * (sizes.depth + sizes.columns)
        return Times(kernel.time(flops, scores), kernel.time_apart(flops, scores))
    loop = target.loop_for(kernel.dtype, precision)
    return None if loop is None else times(kernel, loop, sizes, moved)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def attends(target: Target, precision: str, batch: int, policy: Policy) -> Attends:
    """Whether one kernel is faster than the library's: it is where it is faster than three steps.

    The library's own attention is compared like the kernels that it is made of; that for half
    precision is better than these.
    """

    def worth(query: TensorType, key: TensorType, value: TensorType) -> bool:
        kernel = target.attending_for(query.dtype, precision)
        if kernel is None or {t.dtype for t in (query, key, value)} != FULL:
            return False
        rows, depth, keys, columns = query.shape[-2], query.shape[-1], *value.shape[-2:]
        known = (rows, keys, depth, columns)
        if not all(isinstance(n, int) for n in known) or max(depth, columns) > kernel.widest:
            return False
        sizes = Sizes(hint(product(query.shape[:-2]), batch), *(hint(n) for n in known))
        moved = sum(hint(t.numel, batch) * t.dtype.itemsize for t in (query, query, key, value))
        found = times_on(target, kernel, precision, sizes, moved)
        return found is not None and (policy.generate_always or found.ours < found.apart)

    return worth


# ---- the chain -----------------------------------------------------------------------------------


def attend(plan: Plan, target: Target, precision: str, batch: int, policy: Policy) -> Plan:
    """The plan with attentions in one kernel, and the reasons of those that are not."""
    return _Attending(plan, target, precision, batch, policy).run() if target.attending else plan


def attended(plan: Plan, refusals: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    """Without what is said of products that have become a part of an attention."""
    inside = {
        (plan.graph[n].origin.op, plan.graph[n].origin.place)
        for region in plan.regions
        if region.attention is not None
        for n in region.nodes
        if plan.graph[n].op == "contract"
    }
    return tuple(r for r in refusals if (r.op, r.place) not in inside)


@dataclass(frozen=True)
class Softmax:
    """A program that is a softmax over the rows of a product, parted at its reductions."""

    scores: Program
    weight: Expr

    def horizon(self, rows: int) -> int | None:
        """How many keys behind itself a query looks at, if that bounds it; of a product so many."""
        score, inside = self.scores.stages[0].expr, self.scores.inner
        if score.op != "where" or score.args[2] is not const(-math.inf):
            return None
        test = score.args[0]
        if test.op != "le" or any(side.op != "index" for side in test.args):
            return None
        key, query = (side.value for side in test.args)
        assert isinstance(key, Coordinate) and isinstance(query, Coordinate)
        places, count = _dense(self.scores, inside), list[int]()
        while self.scores.count(tuple(count)) != rows and len(count) < len(self.scores.rows):
            count.insert(0, self.scores.rows[-1 - len(count)])
        if dict(key.strides) != places or dict(query.strides) != _dense(self.scores, count):
            return None
        horizon = as_dim(query.offset - key.offset)
        return horizon if isinstance(horizon, int) else None


def _dense(program: Program, atoms: Sequence[int]) -> dict[int, Dim]:
    """The strides of a number that counts the places along these axes."""
    return {a: program.count(tuple(atoms[i + 1 :])) for i, a in enumerate(atoms)}


def softmax_of(program: Program, value: str, keys: int) -> Softmax:
    """Raises Unfit unless a program does nothing else with the product `value`."""
    rows, inside = axes_of(program, value, keys)
    stages, stores = program.stages, program.stores
    if len(stages) != 2 or len(stores) != 1 or set(program.elements) != set(inside):
        raise Unfit(Code.WALKS)
    if [s.kind for s in stages] != ["max", "sum"] or any(s.segment for s in stages):
        raise Unfit(Code.WALKS)
    shifts = (acc(0), call("finite_or_zero", acc(0)))  # they differ where all is -inf, or a NaN
    powers = [call("exp_below", call("sub", stages[0].expr, shift)) for shift in shifts]
    power = next((p for p in powers if p is stages[1].expr), None)
    result, (given,) = stores[0], (a for a in program.loads if a.buffer == value)
    if power is None or result.expr.op != "mul" or result.expr.args[0] is not power:
        raise Unfit(Code.WALKS)
    weight = result.expr.args[1]
    if (
        weight.varies
        or leaves(weight, "size")
        or result.level != "element"
        or result.access.at != given.at
    ):
        raise Unfit(Code.WALKS)
    largest = Stage(stages[0].name, "max", stages[0].expr, False)
    scores = replace(
        program, rows=rows, outer=(), inner=inside, stages=(largest,), stores=(), strided=False
    )
    return Softmax(scores, weight)


class _Attending:
    def __init__(
        self, plan: Plan, target: Target, precision: str, batch: int, policy: Policy
    ) -> None:
        self.plan, self.graph = plan, plan.graph
        self.target, self.precision = target, precision
        self.batch, self.policy = batch, policy
        self.tails = {id(t.product): t for t in tails(plan)}
        self.names = {r.name for r in plan.regions}
        self.refusals = list(plan.refusals)

    def run(self) -> Plan:
        replaced: dict[int, Region | None] = {}
        for first in list(self.tails.values()):
            try:
                made, steps = self.attention(first)
            except Unfit as unfit:
                if unfit.code is not Code.WALKS:
                    self.refuse(first.product, unfit)
                continue
            if any(id(step) in replaced for step in steps):
                continue  # a product may end one attention and begin the next
            replaced |= dict.fromkeys(map(id, steps), None)
            replaced[id(steps[-1])] = made
        regions = [replaced.get(id(r), r) for r in self.plan.regions]
        kept = tuple(r for r in regions if r is not None)
        plan = replace(self.plan, regions=kept)
        return replace(plan, refusals=attended(plan, tuple(self.refusals)))

    def refuse(self, region: Region, unfit: Unfit) -> None:
        origin = self.graph[region.nodes[0]].origin
        why = reason(unfit.code, op=origin.op, **unfit.numbers)
        self.refusals.append(Refusal(origin.op, origin.place, why))

    def attention(self, first: Tail) -> tuple[Region, list[Region]]:
        """The chain from a product on as one region, and the steps that it takes the place of."""
        node = self.graph[first.product.nodes[0]]
        kernel = self.target.attending_for(node.type.dtype, self.precision)
        keys = node.type.shape[-1] if node.type.shape else None
        if kernel is None or not isinstance(keys, int):
            raise Unfit(Code.WALKS)
        softmax = softmax_of(first.program, first.product.outputs[0].name, keys)
        second = self.reader(first.kernel)
        query_key, weights_value = self.form(first.product), self.form(second)
        batch = _agreed(query_key, weights_value)
        rows, depth = _number(query_key.rows), _number(query_key.depth)
        columns = _number(weights_value.columns)
        _check_weights(weights_value, first.kernel.outputs[0].name, (rows, keys))
        if max(depth, columns) > kernel.widest:
            raise Unfit(Code.SCORES_WIDE, depth=max(depth, columns))
        value = second.outputs[0].name
        after = self.epilogue(second, columns)
        steps = [first.product, first.kernel, second, *([after.kernel] if after else [])]
        shape = self.graph[second.nodes[0]].type.shape
        made = Attention(
            first.product.outputs[0].name,
            value,
            kernel,
            _regrouped(query_key.left, query_key.batch, batch),
            _regrouped(query_key.right, query_key.batch, batch),
            _regrouped(weights_value.right, weights_value.batch, batch),
            batch,
            *(rows, keys, depth, columns),
            softmax.scores,
            softmax.weight,
            softmax.horizon(rows),
            tuple(steps) if isinstance(kernel, Attending) else (),
        )
        if {element_type(self.graph, o.buffer) for o in made.operands} != {kernel.dtype}:
            raise Unfit(Code.SCORES_SCATTERED, why="its operands have different types")
        program = after.program if after else stored(value, shape, columns)
        return self.region(made, program, steps), steps

    def reader(self, softmax: Region) -> Region:
        """The product that is alone in reading the weights."""
        weights = softmax.outputs[0].name
        reading = [
            r for r in self.plan.regions if weights in {self.graph.base(name) for name in r.reads}
        ]
        shown = weights in {self.graph.base(name) for name in self.graph.results}
        products = [r for r in reading if r.kind == "contract"]
        if not products:
            raise Unfit(Code.WALKS)
        if shown or len(reading) > 1:
            other = next((r.name for r in reading if r is not products[0]), "the caller")
            raise Unfit(Code.SCORES_SHARED, region=other if not shown else "the caller")
        return products[0]

    def form(self, region: Region) -> Form:
        """As the kernel reads it: any strides, as long as one axis lies along memory."""
        node = self.graph[region.nodes[0]]
        assert region.contraction is not None
        form = form_of(
            self.graph, node, lambda f: not (f.left.unreadable(1) or f.right.unreadable(1))
        )
        if form is None:
            raise Unfit(Code.SCORES_SCATTERED, why="its operands lie in no two strides")
        return form

    def epilogue(self, second: Region, columns: int) -> Tail | None:
        """What follows, if it works on single elements, over the rows of the second product."""
        tail = self.tails.get(id(second))
        if tail is None or tail.program.stages:
            return None
        own = self.graph[second.nodes[0]].type
        try:
            if tail.program.count((*tail.program.rows, *tail.program.elements)) != own.numel:
                raise Unfit(Code.WALKS)
            program = fit(tail.program, second.outputs[0].name, columns, ())
        except Unfit:
            return None
        return replace(tail, program=program)

    def region(self, made: Attention, program: Program, steps: list[Region]) -> Region:
        nodes = tuple(n for step in steps for n in step.nodes)
        loads = [*made.scores.loads, *program.loads]
        reads = [o.buffer for o in made.operands]
        reads += [a.buffer for a in loads if a.buffer not in (made.product, made.mixed)]
        outputs = steps[-1].outputs
        moved = self.bytes(made, loads, steps)
        numbers = (made.rows, made.keys, made.depth, made.columns)
        sizes = Sizes(hint(product(made.batch), self.batch), *numbers)
        found = times_on(self.target, made.loop, self.precision, sizes, hint(moved, self.batch))
        if found is None:
            raise Unfit(Code.WALKS)
        if found.ours >= found.apart and not self.policy.generate_always:
            raise Unfit(Code.SCORES_APART, ours=found.ours, apart=found.apart)
        return Region(
            name=region_name([self.graph[n] for n in nodes], self.names),
            kind="attention",
            nodes=nodes,
            why=self.why(made, nodes, found, len(steps)),
            program=program,
            outputs=outputs,
            reads=tuple(dict.fromkeys(reads)),
            bytes=moved,
            flops=as_dim(sum((step.flops for step in steps), 0)),
            attention=made,
        )

    def why(self, made: Attention, nodes: tuple[str, ...], found: Times, kernels: int) -> Reason:
        operators = {s for n in nodes if self.graph[n].op != "view" for s in self.graph[n].sources}
        return reason(
            Code.ATTENTION,
            loop=made.loop.text,
            count=len(operators),
            ours=found.ours,
            apart=found.apart,
            kernels=kernels,
        )

    def bytes(self, made: Attention, loads: list[Access], steps: list[Region]) -> Dim:
        """Operands, what else the programs read, and the results, each once."""
        count = product(made.batch)
        each = made.rows * made.depth + made.keys * (made.depth + made.columns)
        total = as_dim(count * each * made.loop.dtype.itemsize)
        others = {a.buffer for a in loads} - {made.product, made.mixed}
        for name in (*sorted(others), *(b.name for b in steps[-1].outputs)):
            type = self.graph[name].type
            total = as_dim(total + type.numel * type.dtype.itemsize)
        return total


# ---- operands of two products over one batch -----------------------------------------------------


def _number(size: Dim) -> int:
    if not isinstance(size, int):
        raise Unfit(Code.SIZES)
    return size


def _agreed(first: Form, second: Form) -> tuple[Dim, Dim]:
    """The batch of both products; one whose two axes are walked as one follows the other."""
    if first.batch == second.batch or second.batch[0] == 1:
        batch = first.batch
    elif first.batch[0] == 1:
        batch = second.batch
    else:
        raise Unfit(Code.SCORES_SCATTERED, why="its two products have different batches")
    if len({product(b) for b in (batch, first.batch, second.batch)}) != 1:
        raise Unfit(Code.SCORES_SCATTERED, why="its two products have different batches")
    return batch


def _regrouped(operand: Operand, old: tuple[Dim, Dim], new: tuple[Dim, Dim]) -> Operand:
    if old == new:
        return operand
    return replace(operand, outer=as_dim(operand.inner * new[1]))


def _check_weights(form: Form, weights: str, shape: tuple[int, int]) -> None:
    """The second product reads the softmax as it would be stored: row by row, in its order."""
    rows, keys = shape
    inner = 0 if form.batch[1] == 1 else as_dim(rows * keys)
    outer = 0 if form.batch[0] == 1 else as_dim(form.batch[1] * rows * keys)
    if form.left != Operand(weights, 0, outer, inner, keys, 1):
        raise Unfit(Code.SCORES_SCATTERED, why="its softmax is read in another order")
    if (form.rows, form.depth) != shape:
        raise Unfit(Code.SCORES_SCATTERED, why="its softmax is read in another order")
