"""The planning loop: decide, criticise, constrain, until nothing is found.

    decide     the graphs and the Constraints -> a Draft: every choice made, the regions planned
    criticise  a Draft -> Findings, those of the last decision first: a convolution that has no
               tile, a step that would copy what it reads in secret, an order of values that is
               slow, an average pool that belongs elsewhere
    settle     both in turns, each plan under what was found of those before

Every Draft is a right plan, so the loop may end after any; it ends when nothing is found, or after
MOST_PLANS. What was decided again, and why, stands in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from kernelwright import spec
from kernelwright.accuracy import Accuracies
from kernelwright.expand.layouts import lay_out
from kernelwright.graph import Graph
from kernelwright.pattern import Rewrite, Rule, rewrite
from kernelwright.plan.alone import leave_alone
from kernelwright.plan.attention import attend, attended
from kernelwright.plan.biases import return_biases
from kernelwright.plan.channels import with_channels_last
from kernelwright.plan.constraints import (
    Alone,
    Called,
    Constraints,
    CopiesInSecret,
    Finding,
    NeedsSizes,
    NoPlan,
    NoTile,
    OtherLayout,
    PoolsFirst,
)
from kernelwright.plan.context import Context
from kernelwright.plan.conv_seats import folded
from kernelwright.plan.dense import copies, dense
from kernelwright.plan.depthwise import as_windows
from kernelwright.plan.direct import small_convolutions, with_direct
from kernelwright.plan.few import few_rows
from kernelwright.plan.fuse import plan
from kernelwright.plan.host import host_products
from kernelwright.plan.layouts import (
    Layout,
    Layouts,
    choose,
    in_channels_last,
    slow,
    told,
    turned_back,
)
from kernelwright.plan.limits import limits_of
from kernelwright.plan.means import from_statistics
from kernelwright.plan.model import Plan
from kernelwright.plan.pixels import as_products
from kernelwright.plan.reasons import Code, Reason, Shared, reason
from kernelwright.plan.seats import Ways, seat, ways
from kernelwright.plan.sizes import sizes_to_hold
from kernelwright.plan.whole_rows import hold_rows
from kernelwright.rules import first_pools
from kernelwright.rules.spaces import POOL_FIRST

MOST_PLANS = 100


@dataclass(frozen=True)
class Front:
    """What the passes before the plan leave under some Constraints.

    `laws` are all that there are, `rules` those that were tried.
    """

    captured: Graph
    rewritten: Graph
    primitives: Graph
    rewrites: tuple[Rewrite, ...] = ()
    laws: tuple[Rule, ...] = ()
    rules: tuple[Rule, ...] = ()
    accuracies: Accuracies = field(default_factory=dict)


@dataclass(frozen=True)
class Opening:
    """What is decided of the primitives before their order and their regions.

    `small` are the convolutions with a kernel of their own for up to so many samples.
    """

    front: Front
    primitives: Graph
    rewrites: tuple[Rewrite, ...]
    verdicts: tuple[Shared, ...]
    products: Ways
    small: Mapping[str, int]
    layouts: Layouts


@dataclass(frozen=True)
class Order:
    """The primitives with their values in memory as they will lie.

    `first` gives for each convolution in channels_last the name that it had before.
    """

    graph: Graph
    first: Mapping[str, str]
    products: Ways


@dataclass(frozen=True)
class Draft:
    """A plan, the Constraints that it was made under, and the decisions on the way."""

    known: Constraints
    opening: Opening
    layouts: Layouts
    order: Order
    products: Ways
    plan: Plan

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        return (*self.opening.front.rewrites, *self.opening.rewrites)


@dataclass(frozen=True)
class Settled:
    """The plan that stands, the graphs that it was made from, and how many were made.

    `primitives` have the copies that the plan asked for.
    """

    front: Front
    primitives: Graph
    rewrites: tuple[Rewrite, ...]
    plan: Plan
    plans: int


def settle(front_of: Callable[[Constraints], Front], context: Context) -> Settled:
    """Plan what the passes before leave, again as long as something is found."""
    decide, known, history = _decider(front_of, context), Constraints(), list[Finding]()
    plans = 0
    for _ in range(MOST_PLANS):
        plans += 1
        try:
            draft = decide(known)
            findings = criticise(draft, context)
        except NoPlan as none:
            findings = none.findings
        if not findings:
            break
        history += findings
        for finding in findings:
            known |= finding
    whole = _whole(draft, context, history)
    return Settled(draft.opening.front, draft.plan.graph, draft.rewrites, whole, plans)


def plan_graph(primitives: Graph, context: Context, accuracies: Accuracies) -> Plan:
    """The plan of a graph of primitives as it is."""
    front = Front(primitives, primitives, primitives, accuracies=accuracies)
    return settle(lambda known: front, context).plan


# ---- decide --------------------------------------------------------------------------------------


def _decider(
    front_of: Callable[[Constraints], Front], context: Context
) -> Callable[[Constraints], Draft]:
    """`decide`, which makes only those decisions again that constraints concern."""

    @cache
    def opened(known: Constraints) -> Opening:
        return _opened(front_of(known), known, context)

    @cache
    def ordered(known: Constraints) -> tuple[Layouts, Order]:
        opening = opened(Constraints(known.folded, known.held))
        layouts = opening.layouts | dict(known.layouts)
        if not known.stored:
            return layouts, _ordered(opening, layouts, context)
        before = ordered(replace(known, stored=known.stored[:-1]))[1]
        graph = dense(before.graph, known.stored[-1])
        return layouts, replace(before, graph=graph, products=_products(opening, graph, context))

    def decide(known: Constraints) -> Draft:
        opening = opened(Constraints(known.folded, known.held))
        layouts, order = ordered(replace(known, library=(), whole=frozenset()))
        products = order.products.under(known)
        return Draft(
            known, opening, layouts, order, products, _regions(order, products, layouts, context)
        )

    return decide


def _opened(front: Front, known: Constraints, context: Context) -> Opening:
    target, policy, batch = context.target, context.policy, context.batch
    inputs = [node.name for node in front.captured if node.op == "input"]
    needed = sizes_to_hold(front.primitives, target, context.precision, batch, policy)
    held = frozenset(i for i, name in enumerate(inputs) if name in needed) - known.held
    if held:
        names = ", ".join(inputs[i] for i in sorted(held))
        raise NoPlan(NeedsSizes(names, reason(Code.AGAIN_SIZES), held))
    primitives, verdicts = as_windows(front.primitives, target, policy, batch)
    products = ways(primitives, target, context.precision, batch, policy, front.accuracies)
    primitives, rewrites = from_statistics(primitives, limits_of(target), products.forms)
    spec.check_graph(primitives, "from_statistics")
    small = small_convolutions(primitives, target, batch, policy)
    opening = Opening(front, primitives, rewrites, verdicts, products, small, {})
    return replace(opening, layouts=_layouts(opening, products.generated, context))


def _layouts(opening: Opening, generated: frozenset[str], context: Context) -> Layouts:
    """The orders of the convolutions without kernels of ours, or that may follow a chain."""
    own = generated.union(opening.small)
    close = opening.products.close(context.policy)
    of = (opening.front.accuracies, context.batch, context.policy)
    return choose(opening.primitives, own, close, context.target, *of)


def _ordered(opening: Opening, layouts: Layouts, context: Context) -> Order:
    library = context.target.convolutions
    weights = library is not None and not library.alike
    chosen, back = in_channels_last(layouts), turned_back(layouts)
    turned, first = with_channels_last(opening.primitives, chosen, weights, back)
    graph = lay_out(as_products(turned, context.target))
    return Order(graph, first, _products(opening, graph, context))


def _products(opening: Opening, graph: Graph, context: Context) -> Ways:
    of = (context.precision, context.batch, context.policy, opening.front.accuracies)
    return ways(graph, context.target, *of)


def _regions(order: Order, products: Ways, layouts: Layouts, context: Context) -> Plan:
    target, apart = context.target, turned_back(layouts)

    def planned_by(products: Ways) -> Plan:
        limits, forms = limits_of(target), products.forms
        planned = plan(order.graph, limits, products.generated, context.batch, forms, apart)
        planned = attend(planned, target, context.precision, context.batch, context.policy)
        if not context.on_gpu:
            return planned
        return seat(planned, products, context.conv_time)

    return hold_rows(planned_by(products), products, context.conv_time, planned_by)


# ---- criticise -----------------------------------------------------------------------------------


def criticise(draft: Draft, context: Context) -> tuple[Finding, ...]:
    """What is wrong with a plan: what a later decision finds would change with an earlier one."""
    for critic in (_without_a_tile, _copied_in_secret, _slow_orders, _pools):
        if findings := critic(draft, context):
            return findings
    return ()


def _without_a_tile(draft: Draft, context: Context) -> tuple[Finding, ...]:
    left, alone = draft.products.missed(draft.plan)
    found: list[Finding] = [NoTile(name, refusal.why, refusal) for name, refusal in left]
    found += [Alone(name, reason(Code.AGAIN_ALONE)) for name in alone]
    return tuple(found)


def _copied_in_secret(draft: Draft, context: Context) -> tuple[Finding, ...]:
    wanted = copies(draft.plan)
    if dense(draft.order.graph, wanted) is draft.order.graph:
        return ()
    names = ", ".join(copy.view for copy in wanted)
    return (CopiesInSecret(names, reason(Code.AGAIN_COPIES), wanted),)


def _slow_orders(draft: Draft, context: Context) -> tuple[Finding, ...]:
    """Kernels that are slow over the order of what they read, and convolutions without an order.

    The latter were to be generated, and are the library's.
    """
    opening, first = draft.opening, draft.order.first
    of = (opening.primitives, draft.layouts, first, context.target, context.batch)
    found = {n: OtherLayout(n, _why(layout), layout) for n, layout in slow(draft.plan, *of).items()}
    generated = opening.products.generated - draft.known.called
    late = generated & {r.nodes[0] for r in draft.plan.regions if r.kind == "contract"}
    chosen = _layouts(opening, generated - late, context) if late else {}
    found |= {n: Called(n, _why(chosen[n]), chosen[n]) for n in sorted(late) if n in chosen}
    return tuple(found.values())


def _why(layout: Layout) -> Reason:
    return layout.told(reason(Code.AGAIN))


def _pools(draft: Draft, context: Context) -> tuple[Finding, ...]:
    """Average pools behind convolutions, which laws have left to their weights.

    A law could take them into the inputs instead; which is better the plan says.
    """
    front = draft.opening.front
    if draft.known.folded is not None or not context.target.conv_loops:
        return ()
    kept = folded(draft.plan)
    law = [rule for rule in first_pools(front.laws, kept) if rule.name == POOL_FIRST]
    _, fired = rewrite(front.rewritten, law)
    places = ", ".join(dict.fromkeys(r.where.place for r in fired))
    return (PoolsFirst(places, reason(Code.AGAIN_POOLS), kept),) if fired else ()


# ---- the end -------------------------------------------------------------------------------------


def _whole(draft: Draft, context: Context, history: list[Finding]) -> Plan:
    """The last draft with its reasons, and the kernels and calls that are beside those planned."""
    opening, first = draft.opening, draft.order.first
    planned = told(draft.plan, draft.layouts, first)
    refusals = dict.fromkeys((*planned.refusals, *attended(planned, opening.products.refusals)))
    named = {old: new for new, old in first.items()}
    verdicts = (replace(v, value=named.get(v.value, v.value)) for v in opening.verdicts)
    planned = replace(
        planned,
        shared=(*planned.shared, *verdicts),
        refusals=tuple(refusals),
        again=tuple(dict.fromkeys(map(str, history))),
    )
    planned = return_biases(planned)
    if context.on_gpu:
        planned = few_rows(planned, context.target, context.precision)
    else:
        planned = leave_alone(planned, opening.front.rewritten, context.policy)
        planned = with_direct(planned, opening.small)
        planned = host_products(planned, context.target, context.precision, context.batch)
    spec.check_plan(planned)
    return planned
