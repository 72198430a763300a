"""The two graphs of a training step, run by torch in float64, beside autograd: no compiler needed.

In: a Problem. Out: for each source the gradient that the graphs give and that of the module itself,
for the same cotangents.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.capture import capture
from kernelwright.counters import counted
from kernelwright.expand import expand
from kernelwright.graph import Graph, Ref, is_differentiable
from kernelwright.interpret import every_value
from kernelwright.pattern import rewrite
from kernelwright.problem import Problem
from kernelwright.rules import ALL_RULES
from kernelwright.step import divided
from kernelwright.training.partition import Training


def training(problem: Problem) -> Training:
    captured = capture(problem)
    rewritten, _ = rewrite(counted(captured), ALL_RULES)
    return divided(captured, expand(rewritten, flat=True), problem.batch)


def both(problem: Problem, found: Training) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """Each gradient, ours and autograd's."""
    problem = _wide(problem)
    module = problem.module
    inputs = [x.detach().requires_grad_(is_differentiable(x.dtype)) for x in problem.tensors]
    given = iter(inputs)
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda _: next(given), (problem.inputs, dict(problem.kwargs))
    )
    for parameter in module.parameters():
        parameter.requires_grad_(is_differentiable(parameter.dtype))
    before = copy.deepcopy(module)
    torch.manual_seed(0)
    outputs = pytree.tree_leaves(module(*args, **kwargs))
    torch.manual_seed(0)
    values = every_value(found.forward, before, inputs)
    names = [leaf.name if isinstance(leaf, Ref) else "" for leaf in
             pytree.tree_leaves(found.forward.outputs[0])]  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    cotangents, roots = {}, []
    for name, y in zip(names, outputs, strict=True):
        if name in found.cotangents and found.cotangents[name] not in cotangents:
            cotangents[found.cotangents[name]] = torch.randn(y.shape, generator=generator).to(y)
            roots.append((y, cotangents[found.cotangents[name]]))
    handed = [
        cotangents[n.name] if n.name in cotangents else values[n.name].detach()
        for n in found.backward
        if n.op == "input"
    ]
    with torch.no_grad():
        ours = _results(found.backward, before, handed)
    torch.autograd.backward([y for y, _ in roots], [c for _, c in roots])
    places = dict(zip((n.name for n in found.forward if n.op == "input"), inputs, strict=True))
    places |= {n: module.get_parameter(t) for n, t in found.forward.targets.items()
               if found.forward[n].op == "parameter"}  # fmt: skip
    mine = dict(zip(found.gradients, ours, strict=True))
    return {name: (mine.get(name), x.grad) for name, x in places.items()}


def _wide(problem: Problem) -> Problem:
    def wide(x: Tensor) -> Tensor:
        return x.double() if x.is_floating_point() else x

    module = copy.deepcopy(problem.module).double()
    inputs, kwargs = pytree.tree_map_only(Tensor, wide, (problem.inputs, dict(problem.kwargs)))
    return replace(problem, module=module, inputs=inputs, kwargs=kwargs)


def _results(graph: Graph, module: Any, inputs: list[Tensor]) -> list[Tensor]:
    values = every_value(graph, module, inputs)
    return [values[ref.name] for ref in graph.outputs]


def worst(pairs: dict[str, tuple[Tensor | None, Tensor | None]]) -> dict[str, str]:
    """What differs, in words."""
    found = {}
    for name, (ours, theirs) in pairs.items():
        if (ours is None) != (theirs is None):
            found[name] = f"{ours is None} instead of {theirs is None}"
        elif ours is not None and theirs is not None:
            if ours.shape != theirs.shape:
                found[name] = f"{tuple(ours.shape)} instead of {tuple(theirs.shape)}"
            elif not torch.allclose(ours, theirs, rtol=1e-8, atol=1e-9, equal_nan=True):
                found[name] = f"off by {float((ours - theirs).abs().max()):.1e}"
    return found
