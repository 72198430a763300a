"""All passes, in order. Read this file first.

    Problem --capture--> Graph --rewrite--> Graph --expand--> Graph of primitives
            --plan--> Plan --lower--> Kernels --emit--> source text

Each arrow is one pure function; every value on the way prints as something worth reading, and
spec.py checks the invariants in between. Proving (verify/) and timing (bench/) work on the emitted
file alone, so that they hold for anybody's ModelNew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from torch import nn

from kernelwright import gauge, spec
from kernelwright.accuracy import Accuracies
from kernelwright.capture import capture
from kernelwright.counters import counted
from kernelwright.emit import emit
from kernelwright.emit.products import FREEZING_NAMES
from kernelwright.expand import expand
from kernelwright.expand.layouts import lay_out
from kernelwright.graph import Graph, hint
from kernelwright.ledger import LedgerRow, ledger, render
from kernelwright.live import instantiate
from kernelwright.lower import Kernel, Lowered, Panel, Tile, conv_time, lower
from kernelwright.pattern import Rewrite, Rule, refusals, rewrite
from kernelwright.plan import (
    WHERE_IT_PAYS,
    Layouts,
    Plan,
    Policy,
    Ways,
    as_products,
    as_windows,
    attend,
    attended,
    attends,
    choose,
    copies,
    dense,
    few_rows,
    folded,
    from_statistics,
    hold_rows,
    in_channels_last,
    leave_alone,
    limits_of,
    plan,
    return_biases,
    seat,
    sizes_to_hold,
    slow,
    small_convolutions,
    told,
    turned_back,
    ways,
    with_channels_last,
    with_direct,
)
from kernelwright.problem import Problem
from kernelwright.rules import ALL_RULES, POOL_FIRST, in_double, unless_folded
from kernelwright.targets import Target, target_for, target_of

Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class RegionRow:
    """One step of the emitted forward, with its estimates at a typical batch size."""

    name: str
    kind: str
    ops: str
    bytes: int
    flops: int
    launches: int
    why: str


@dataclass(frozen=True)
class Compiled:
    """Everything that compiling a Problem gave: the emitted source, and the reasons for it."""

    problem: Problem
    captured: Graph
    primitives: Graph
    target: Target
    planned: Plan
    lowered: Lowered
    rewrites: tuple[str, ...]
    refused_laws: tuple[str, ...]
    ledger: tuple[LedgerRow, ...]
    source: str

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self.lowered.kernels

    @property
    def panels(self) -> tuple[Panel, ...]:
        return self.lowered.panels

    @property
    def regions(self) -> tuple[RegionRow, ...]:
        rows, batch = [], self.problem.batch
        for r in self.planned.regions:
            origins = dict.fromkeys(self.planned.graph[n].origin.op for n in r.nodes)
            ops = ", ".join(o for o in origins if o != "getitem")
            cost = (hint(r.bytes, batch), hint(r.flops, batch), r.launches)
            turns = [str(p) for p in self.panels if p.product == r.name]
            turns += [str(s) for s in self.lowered.slices if s.product == r.name]
            why = "; ".join([str(r.why), *turns])
            rows.append(RegionRow(r.name, r.kind, ops, *cost, why))
        return tuple(rows)

    @property
    def shared(self) -> tuple[str, ...]:
        """Values with several readers: which are stored, and which are computed again."""
        return tuple(str(value) for value in self.planned.shared)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Laws that nearly applied, and fusions that were not made."""
        return tuple(dict.fromkeys([*self.refused_laws, *map(str, self.planned.refusals)]))

    @property
    def fused(self) -> bool:
        """Whether any kernel of ours runs."""
        return bool(self.lowered.kernels or self.lowered.few)

    def to_json(self) -> dict[str, Any]:
        return {
            "problem": str(self.problem),
            "rewrites": list(self.rewrites),
            "ledger": [asdict(row) for row in self.ledger],
            "regions": [asdict(row) for row in self.regions],
            "shared": list(self.shared),
            "refusals": list(self.refusals),
            "kernels": [str(k) for k in self.kernels],
        }

    def instantiate(self) -> nn.Module:
        """ModelNew over the parameters of the module that was compiled."""
        return instantiate(self.problem, self.source)

    def __str__(self) -> str:
        return str(self.planned)

    def __repr__(self) -> str:
        counts = f"{len(self.planned.regions)} steps, {len(self.kernels)} kernels"
        return f"Compiled({self.problem.name} on {self.problem.device}: {counts})"

    def _repr_html_(self) -> str:
        from kernelwright.report.html import compiled_html

        return compiled_html(self)


def compile_problem(
    problem: Problem,
    progress: Progress | None = None,
    target: Target | str | None = None,
    tiles: Mapping[str, Tile] | None = None,
    policy: Policy = WHERE_IT_PAYS,
    accuracies: Accuracies | None = None,
) -> Compiled:
    """Run every pass; `progress` hears of each one as it ends.

    `target` is the machine to compile for: by default the one that the problem is on. Source for a
    GPU can be emitted on a machine without one. `tiles` are tiles for generated
    products by name, as tune.py measures them, in the place of those that look cheapest.
    `policy` says what to generate beyond what pays. `accuracies` are those of the library's
    convolutions, by default as they are measured where the problem is on a GPU.
    """
    machine = target_for(target) if isinstance(target, str) else target
    machine = machine or target_of(problem.device)
    report = progress or (lambda name, summary: None)
    front = plan_problem(problem, report, machine, policy, accuracies)
    planned = front.planned

    own = any(hasattr(problem.module, word) for word in FREEZING_NAMES)
    lowered = lower(planned, machine, tiles, keeps=not own)
    said = [f"{k.name} as {k.config.shape}" for k in lowered.kernels]
    report("lower", "; ".join(said) or "none")

    rows = ledger(front.captured, front.rewrites, planned, lowered.in_place)
    source = emit(problem, planned, lowered, render(rows, lowered.shared), machine.device)
    report("emit", f"{len(source.splitlines())} lines")
    laws = tuple(str(r) for r in front.rewrites)
    refused = tuple(str(r) for r in refusals(front.rewritten, front.rules))
    return Compiled(
        *(problem, front.captured, front.primitives, machine, planned, lowered),
        *(laws, refused, rows, source),
    )


@dataclass(frozen=True)
class Front:
    """What the passes before lower leave: the graphs, the laws that fired, and the plan.

    `rules` are those that were tried.
    """

    rules: tuple[Rule, ...]
    captured: Graph
    rewritten: Graph
    rewrites: tuple[Rewrite, ...]
    primitives: Graph
    planned: Plan


def plan_problem(
    problem: Problem,
    report: Progress,
    machine: Target,
    policy: Policy = WHERE_IT_PAYS,
    accuracies: Accuracies | None = None,
) -> Front:
    """The passes up to the plan.

    A convolution may take the average pool behind it into its weights, or into its input by a law.
    Which is better the plan says, so the first one has none of the latter.
    """

    @cache  # a second plan begins with the same graph
    def captured(held: frozenset[int]) -> Graph:
        return _captured(replace(problem, held=held), report)

    def front(rules: tuple[Rule, ...]) -> Front:
        return _front(problem, captured, report, machine, policy, accuracies, rules)

    may_round = machine.lanes is not None and problem.conv_tf32
    convolves = machine.convolutions is None or machine.convolutions.in_double
    laws = ALL_RULES if may_round else in_double(ALL_RULES, convolves)
    if not machine.conv_loops:
        return front(laws)
    found = front(unless_folded(laws, lambda conv: True))
    kept = folded(found.planned)
    rules = unless_folded(laws, lambda conv: not kept.isdisjoint(conv.sources))
    _, fired = rewrite(found.rewritten, [rule for rule in rules if rule.name == POOL_FIRST])
    return front(rules) if fired else found


def _front(
    problem: Problem,
    capture_of: Callable[[frozenset[int]], Graph],
    report: Progress,
    machine: Target,
    policy: Policy,
    accuracies: Accuracies | None,
    rules: tuple[Rule, ...],
) -> Front:
    captured = capture_of(problem.held)
    try:
        rewritten, rewrites, primitives = _primitives(
            captured, problem, report, machine, policy, rules
        )
    except spec.SpecError:
        if not captured.parts_the_batch:
            raise
        problem = replace(problem, held=frozenset(range(len(problem.tensors))))
        return _front(problem, capture_of, report, machine, policy, accuracies, rules)
    needed = sizes_to_hold(primitives, machine, problem.precision, problem.batch, policy)
    if needed:
        inputs = [node.name for node in captured if node.op == "input"]
        held = frozenset(i for i, name in enumerate(inputs) if name in needed)
        problem = replace(problem, held=held)
        captured = capture_of(held)
        rewritten, rewrites, primitives = _primitives(
            captured, problem, report, machine, policy, rules
        )
    if accuracies is None:
        accuracies = gauge.measure(captured, primitives, problem)
        if accuracies:
            report("measure", f"the accuracy of {len(accuracies)} convolutions")
    primitives, laws, planned = _planned(primitives, machine, problem, policy, accuracies)
    if machine.lanes is not None:
        planned = few_rows(return_biases(planned), machine, problem.precision)
    else:
        planned = leave_alone(return_biases(planned), rewritten, policy)
    spec.check_plan(planned)
    report("plan", f"{len(planned.regions)} steps, {len(planned.refusals)} fusions refused")
    return Front(rules, captured, rewritten, (*rewrites, *laws), primitives, planned)


def _captured(problem: Problem, report: Progress) -> Graph:
    captured = capture(problem)
    spec.check_graph(captured, "capture")
    fixed = f", for these sizes alone: {captured.contract.fixed}" if captured.contract.fixed else ""
    report("capture", f"{_count(captured)} operators, {captured.mode} mode{fixed}")
    return captured


def _primitives(
    captured: Graph,
    problem: Problem,
    report: Progress,
    machine: Target,
    policy: Policy,
    rules: tuple[Rule, ...],
) -> tuple[Graph, tuple[Rewrite, ...], Graph]:
    """The captured graph as the laws leave it, and in primitives."""
    rewritten, rewrites = rewrite(counted(captured), rules)
    spec.check_graph(rewritten, "rewrite")
    report("rewrite", f"{len(rewrites)} laws applied")

    opened = attends(machine, problem.precision, problem.batch, policy)
    on_gpu = machine.lanes is not None
    primitives = expand(
        rewritten, opened if machine.attending else None, drops=on_gpu, flat=not on_gpu
    )
    spec.check_graph(primitives, "expand")
    report("expand", f"{_count(primitives)} primitives")
    return rewritten, rewrites, primitives


def _planned(
    primitives: Graph, machine: Target, problem: Problem, policy: Policy, accuracies: Accuracies
) -> tuple[Graph, tuple[Rewrite, ...], Plan]:
    """The regions, planned again as long as one is slow over the order that its operands have."""
    primitives, verdicts = as_windows(primitives, machine, policy, problem.batch)
    products = ways(primitives, machine, problem.precision, problem.batch, policy, accuracies)
    primitives, laws = from_statistics(primitives, limits_of(machine), products.forms)
    spec.check_graph(primitives, "from_statistics")
    generated, close, layouts = products.generated, products.close(policy), Layouts()
    small = small_convolutions(primitives, machine, problem.batch, policy)
    own = generated.union(small)
    again = choose(primitives, own, close, machine, accuracies, problem.batch, policy)
    while True:
        layouts |= again
        weights = machine.convolutions is not None and not machine.convolutions.alike
        back = turned_back(layouts)
        turned, first = with_channels_last(primitives, in_channels_last(layouts), weights, back)
        turned = as_products(turned, machine)
        graph, planned = _dense(lay_out(turned), machine, problem, policy, accuracies, back)
        again = slow(planned, primitives, layouts, first, machine, problem.batch)
        unseated = generated & {r.nodes[0] for r in planned.regions if r.kind == "contract"}
        if unseated:
            generated -= unseated
            chosen = choose(
                primitives, generated, close, machine, accuracies, problem.batch, policy
            )
            again |= {name: chosen[name] for name in unseated if name in chosen}
        if not again:
            planned = with_direct(told(planned, layouts, first), small)
            refusals = dict.fromkeys((*planned.refusals, *attended(planned, products.refusals)))
            named = {old: new for new, old in first.items()}
            about = (replace(v, value=named.get(v.value, v.value)) for v in verdicts)
            shared = (*planned.shared, *about)
            return graph, laws, replace(planned, shared=shared, refusals=tuple(refusals))


def _dense(
    primitives: Graph,
    machine: Target,
    problem: Problem,
    policy: Policy,
    accuracies: Accuracies,
    apart: frozenset[str],
) -> tuple[Graph, Plan]:
    """The regions, planned again as long as a step would copy what it reads in secret."""
    products: Ways | None = None
    while True:
        found = ways(primitives, machine, problem.precision, problem.batch, policy, accuracies)
        products = found if products is None else found.as_before(products)
        planned, products = _seated(primitives, machine, products, problem, policy, apart)
        changed = dense(primitives, copies(planned))
        if changed is primitives:
            return primitives, planned
        primitives = changed


def _seated(
    primitives: Graph,
    machine: Target,
    products: Ways,
    problem: Problem,
    policy: Policy,
    apart: frozenset[str],
) -> tuple[Plan, Ways]:
    """The regions with attentions and generated products, again without those without a seat."""

    def planned_by(products: Ways) -> Plan:
        limits, forms = limits_of(machine), products.forms
        planned = plan(primitives, limits, products.generated, problem.batch, forms, apart)
        planned = attend(planned, machine, problem.precision, problem.batch, policy)
        if machine.lanes is None:
            return planned
        return seat(planned, products, conv_time)

    while True:
        planned = hold_rows(planned_by(products), products, conv_time, planned_by)
        again = products.reconsidered(planned)
        if (again.generated, again.whole) == (products.generated, products.whole):
            return planned, products
        products = again


def _count(graph: Graph) -> int:
    return sum(1 for n in graph if n.payload is not None)
