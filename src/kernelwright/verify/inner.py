"""The values inside of a model, by the names that an emitted file has for them.

In: a Problem, its module and the float64 one, inputs and names. Out: for each name that the plan
knows, its value by torch in the model's own type and in float64. The model is planned once more for
that, in the process that has the original.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright import interpret
from kernelwright.graph import Graph
from kernelwright.pipeline import plan_problem
from kernelwright.problem import Problem
from kernelwright.targets import target_of
from kernelwright.verify.inputs import Inputs, widen

Pairs = list[list[Tensor]]  # of a value in its type and in float64


def planned(problem: Problem) -> Graph:
    """The graph whose values the kernels store."""
    machine = target_of(problem.device)
    return plan_problem(problem, lambda name, summary: None, machine).plan.graph


def values(
    graph: Graph, modules: tuple[nn.Module, nn.Module], inputs: Inputs, names: list[str]
) -> dict[str, Pairs]:
    """Each name with what it may stand for: a value, or the one that it is a view of."""
    if graph.contract.random:
        return {}
    plain, wide = (
        interpret.every_value(graph, module, pytree.tree_leaves((given.args, given.kwargs)))
        for module, given in zip(modules, (inputs, widen(inputs)), strict=True)
    )
    known = {name: dict.fromkeys((name, graph.base(name))) for name in names if name in plain}
    return {
        name: [[plain[x], wide[x]] for x in both if isinstance(plain[x], Tensor)]
        for name, both in known.items()
    }
