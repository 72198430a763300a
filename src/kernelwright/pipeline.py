"""All passes, in order. Read this file first.

    Problem --capture--> Graph --rewrite--> Graph --expand--> Graph of primitives
            --plan--> Plan --lower--> Kernels --emit--> source text

Each arrow is one pure function; every value on the way prints as something worth reading, and
spec.py checks the invariants in between. The first three are run again where a plan finds that they
have to be (plan/loop.py). Proving (verify/) and timing (bench/) work on the emitted file alone, so
that they hold for anybody's ModelNew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from kernelwright import gauge, spec
from kernelwright.accuracy import Accuracies
from kernelwright.capture import capture
from kernelwright.compiled import Compiled as Compiled
from kernelwright.counters import counted
from kernelwright.emit.module import emit
from kernelwright.emit.products import FREEZING_NAMES
from kernelwright.errors import UnsupportedError
from kernelwright.expand import expand
from kernelwright.graph import Graph
from kernelwright.ledger import ledger, render
from kernelwright.lower.convolution import conv_time
from kernelwright.lower.gemm import Tile
from kernelwright.lower.lowered import Lowered, lower
from kernelwright.pattern import refusals, rewrite
from kernelwright.plan.attention import attends
from kernelwright.plan.constraints import Constraints, NeedsSizes, NoPlan
from kernelwright.plan.context import Context
from kernelwright.plan.loop import Front, Settled, settle
from kernelwright.plan.policy import WHERE_IT_PAYS, Policy
from kernelwright.plan.reasons import Code, reason
from kernelwright.problem import Problem
from kernelwright.rules import first_pools, laws_of
from kernelwright.step import Trained, train
from kernelwright.targets import target_for, target_here
from kernelwright.targets.target import Target

Progress = Callable[[str, str], None]


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
    machine = machine or target_here(problem.device)
    report = progress or (lambda name, summary: None)
    found = plan_problem(problem, report, machine, policy, accuracies)
    front, planned = found.front, found.plan

    own = any(hasattr(problem.module, word) for word in FREEZING_NAMES)
    lowered = lower(planned, machine, tiles, keeps=not own)
    said = [f"{k.name} as {k.config.shape}" for k in lowered.kernels]
    report("lower", "; ".join(said) or "none")

    rows = ledger(front.captured, found.rewrites, planned, lowered.in_place)
    trained, why = None, "not asked for"
    if policy.backward:
        trained, why = _trained(found, lowered, machine, problem, policy)
        report("backward", str(trained) if trained else f"the original's: {why}")

    def written(trained: Trained | None) -> str:
        told = render((*rows, *(trained.rows if trained else ())), lowered.shared)
        step = trained.step if trained else None
        return emit(problem, planned, lowered, told, machine.device, step)

    try:
        source = written(trained)
    except UnsupportedError as error:
        if trained is None:
            raise
        trained, why = None, str(error)
        source = written(None)
    report("emit", f"{len(source.splitlines())} lines")
    laws = tuple(str(r) for r in found.rewrites)
    refused = tuple(str(r) for r in refusals(front.rewritten, front.rules))
    return Compiled(
        *(problem, front.captured, found.primitives, machine, planned, lowered),
        *(laws, refused, rows, source),
        *(trained, "" if trained else why),
    )


ON_GPU = True  # False: the backward of a file for a GPU stays the original's


def _trained(
    found: Settled, lowered: Lowered, machine: Target, problem: Problem, policy: Policy
) -> tuple[Trained | None, str]:
    """The backward through the same passes, or why it stays the original's."""
    if machine.lanes is not None and not ON_GPU:
        return None, "generated backwards are switched off for GPUs"
    of = (machine, problem.precision, problem.batch, policy, conv_time)
    context = Context(*of, tf32=problem.conv_tf32)

    def quiet(name: str, summary: str) -> None:
        """The passes have been told of once."""

    def passes(graph: Graph) -> Settled:
        return settle(lambda known: _primitives(graph, known, context, quiet), context)

    try:
        of_plan = (found.front.captured, found.plan.graph, lowered)
        return train(*of_plan, passes, machine, problem.batch), ""
    except UnsupportedError as error:
        return None, str(error)


def plan_problem(
    problem: Problem,
    report: Progress,
    machine: Target,
    policy: Policy = WHERE_IT_PAYS,
    accuracies: Accuracies | None = None,
) -> Settled:
    """The passes up to the plan, each again where the plan finds that it has to be."""
    of = (machine, problem.precision, problem.batch, policy, conv_time)
    context = Context(*of, tf32=problem.conv_tf32)

    @cache
    def captured(held: frozenset[int]) -> Graph:
        return _captured(replace(problem, held=problem.held | held), report)

    def front(known: Constraints) -> Front:
        found = _primitives(captured(known.held), known, context, report)
        return _measured(found, problem, accuracies, report)

    found = settle(front, context)
    counts = f"{len(found.plan.regions)} steps, {len(found.plan.refusals)} fusions refused"
    report("plan", counts + (f", planned {found.plans} times" if found.plans > 1 else ""))
    return found


def _captured(problem: Problem, report: Progress) -> Graph:
    captured = capture(problem)
    spec.check_graph(captured, "capture")
    fixed = f", for these sizes alone: {captured.contract.fixed}" if captured.contract.fixed else ""
    report("capture", f"{_count(captured)} operators, {captured.mode} mode{fixed}")
    return captured


def _primitives(captured: Graph, known: Constraints, context: Context, report: Progress) -> Front:
    """The captured graph as the laws leave it, and in primitives."""
    laws = laws_of(context.target, context.tf32)
    rules = first_pools(laws, known.folded) if context.target.conv_loops else laws
    try:
        rewritten, rewrites = rewrite(counted(captured), rules)
        spec.check_graph(rewritten, "rewrite")
        report("rewrite", f"{len(rewrites)} laws applied")

        of = (context.precision, context.batch, context.policy)
        opened = attends(context.target, *of) if context.target.attending else None
        primitives = expand(rewritten, opened, drops=context.on_gpu, flat=not context.on_gpu)
        spec.check_graph(primitives, "expand")
        report("expand", f"{_count(primitives)} primitives")
    except spec.SpecError as error:
        inputs = frozenset(i for i, n in enumerate(x for x in captured if x.op == "input"))
        if not captured.parts_the_batch or inputs <= known.held:
            raise
        raise NoPlan(NeedsSizes("the inputs", reason(Code.AGAIN_PARTED), inputs)) from error
    return Front(captured, rewritten, primitives, rewrites, laws, rules)


def _measured(
    front: Front, problem: Problem, accuracies: Accuracies | None, report: Progress
) -> Front:
    """With the accuracy of the library's convolutions on this machine, unless it is given."""
    if accuracies is None:
        accuracies = gauge.measure(front.captured, front.primitives, problem)
        if accuracies:
            report("measure", f"the accuracy of {len(accuracies)} convolutions")
    return replace(front, accuracies=accuracies)


def _count(graph: Graph) -> int:
    return sum(1 for n in graph if n.payload is not None)
