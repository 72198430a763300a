"""A random model through the passes, without a compiler: each graph, and the plan's programs.

Every level is run by torch in float64 and compared with the model: what capture read, what the laws
and the lowerings made of it, and the programs that the planner wrote for each target.
"""

from __future__ import annotations

import copy
import warnings

import torch
from program_interpreter import carry_out_plan
from torch import nn

from fuzzing.judge import Truth, check, module_of, widened
from fuzzing.recipe import Recipe
from kernelwright import interpret, spec
from kernelwright.capture import capture
from kernelwright.errors import UnsupportedError
from kernelwright.expand import expand
from kernelwright.graph import Graph, smallest_batch
from kernelwright.lower import lower
from kernelwright.lower.convolution import conv_time
from kernelwright.pattern import rewrite
from kernelwright.plan import ALWAYS, Plan, attends
from kernelwright.plan.context import Context
from kernelwright.plan.loop import plan_graph
from kernelwright.problem import Problem, problem_from_module
from kernelwright.rules import ALL_RULES
from kernelwright.targets import CPU, SM_90, Target

BATCHES = (5, 1)
TINY = 2.0**-49
TARGETS = (CPU, SM_90)


def problem_of(recipe: Recipe) -> Problem:
    return problem_from_module(module_of(recipe), recipe.make_inputs(recipe.batch, 0))


def check_planned(recipe: Recipe) -> bool:
    """For every target. Whether it was captured at all; raises Wrong, or what the passes raise."""
    problem = problem_of(recipe)
    try:
        captured = capture(problem)
    except UnsupportedError:
        return False
    spec.check_graph(captured, "capture")
    rewritten, _ = rewrite(captured, ALL_RULES)
    spec.check_graph(rewritten, "rewrite")
    primitives = expand(rewritten)
    spec.check_graph(primitives, "expand")
    opened = {target: for_target(rewritten, target, problem) for target in TARGETS}
    plans = {t.name: planned(graph, t, problem) for t, graph in opened.items()}
    for batch in BATCHES if captured.symbols else BATCHES[:1]:
        inputs = recipe.make_inputs(batch, batch)
        if batch < smallest_batch(primitives) or not holds(captured, inputs):
            continue
        try:
            truth = Truth.of(recipe, problem.module, inputs, TINY)
        except (RuntimeError, ValueError, IndexError):
            continue  # eager refuses, as BatchNorm does a batch of one
        graphs = {"captured": captured, "rewritten": rewritten, "expanded": primitives}
        check_levels(graphs, plans, problem.module, widened(inputs), truth, f"batch {batch}")
    return True


def holds(graph: Graph, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether the graph was traced for such sizes."""
    nodes = [n for n in graph if n.op == "input"]
    named = {n.name: x for n, x in zip(nodes, inputs, strict=True)}
    for node in nodes:
        given = zip(node.type.shape, named[node.name].shape, strict=True)
        if any(isinstance(wanted, int) and wanted != found for wanted, found in given):
            return False
    sizes = {symbol: named[name].shape[axis] for symbol, (name, axis) in graph.symbols.items()}
    return all(guard.holds(sizes) for guard in graph.contract.guards)


def for_target(rewritten: Graph, target: Target, problem: Problem) -> Graph:
    """Torch's own attention is taken apart where there is a kernel for it."""
    worth = attends(target, problem.precision, problem.batch, ALWAYS)
    primitives = expand(rewritten, worth if target.attending else None)
    spec.check_graph(primitives, "expand")
    return primitives


def planned(primitives: Graph, target: Target, problem: Problem) -> Plan:
    """With every product generated that can be, and lowered, which has invariants of its own."""
    context = Context(target, problem.precision, problem.batch, ALWAYS, conv_time)
    made = plan_graph(primitives, context, {})
    lower(made, target)
    return made


def check_levels(
    graphs: dict[str, Graph],
    plans: dict[str, Plan],
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    truth: Truth,
    what: str,
) -> None:
    """What each pass left computes the model, its buffers included."""
    wide = copy.deepcopy(module).double()
    kept = dict(wide.named_buffers())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, graph in graphs.items():
            outputs, written = interpret.run(graph, wide, inputs)
            check(f"{name}, {what}", (outputs, kept | written), truth)
        for name, plan in plans.items():
            outputs, written = carry_out_plan(plan, wide, inputs, block_n=64)
            check(f"planned for {name}, {what}", (outputs, kept | written), truth)
