"""A training step of a compiled model: its backward through the same passes as its forward.

In: the captured graph, its plan, and the passes as one function. Out: a TrainingStep and the rows
of its ledger, or an UnsupportedError that says why the backward stays the original's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from kernelwright import spec
from kernelwright.errors import UnsupportedError
from kernelwright.expand import LOWERINGS
from kernelwright.expand.contractions import LOWERINGS as CONTRACTIONS
from kernelwright.expand.pools import LOWERINGS as POOLS
from kernelwright.graph import Graph, Ref
from kernelwright.handed import handed_back
from kernelwright.ledger import LedgerRow, ledger
from kernelwright.lower.lowered import Lowered, lower
from kernelwright.lower.together import together
from kernelwright.lower.trained import TrainingStep
from kernelwright.plan.loop import Settled
from kernelwright.targets.target import Target
from kernelwright.training.histories import recorded
from kernelwright.training.joint import joint
from kernelwright.training.partition import Training, partition

FORWARD, BACKWARD = "forward with gradients", "backward"


@dataclass(frozen=True)
class Trained:
    """A training step, and what became of the operators of its backward."""

    step: TrainingStep
    rows: tuple[LedgerRow, ...]

    @property
    def told(self) -> str:
        """What is kept, and the plan of the backward."""
        saved = [f"kept for the backward: {value}" for value in self.step.found.saved]
        return "\n".join([f"backward: {self}", *saved, str(self.step.backward)])

    def __str__(self) -> str:
        found = self.step.found
        calls = sum(1 for n in found.backward if n.payload is not None)
        made = f"{len(found.made)} values kept for it" if found.made else "nothing kept for it"
        return f"{calls} operators, {len(self.step.backward.regions)} steps, {made}"


def train(
    captured: Graph,
    plan: Graph,
    lowered: Lowered,
    passes: Callable[[Graph], Settled],
    target: Target,
    batch: int,
) -> Trained:
    """`plan` is the graph of the plan that `lowered` is of; `passes` plan a captured graph."""
    found = divided(captured, plan, batch, on_gpu=target.lanes is not None)
    spec.check_graph(found.forward, "capture")
    spec.check_graph(found.backward, "capture")
    settled = passes(found.forward), passes(found.backward)
    plans = [s.plan for s in settled]
    made = [lower(p, target, keeps=False) for p in plans]
    _, saving, backward = together(
        [(plan, lowered), *((p.graph, low) for p, low in zip(plans, made, strict=True))]
    )
    step = TrainingStep(found, plans[0], saving, plans[1], backward)
    rows = ledger(found.backward, settled[1].rewrites, plans[1], backward.in_place)
    return Trained(step, tuple(replace(row, op=f"{row.op} (backward)") for row in rows))


def divided(captured: Graph, plan: Graph, batch: int, on_gpu: bool = False) -> Training:
    """The two graphs of a training step, as captured graphs.

    On a GPU the backward of attention is products and a softmax: torch's own adds up by atomics.
    """
    contract = captured.contract
    if contract.refused:
        raise UnsupportedError(contract.refused)
    leaves = pytree.tree_leaves(captured.outputs)
    if contract.reaches is None or contract.history is None or len(contract.reaches) != len(leaves):
        raise UnsupportedError("torch cannot differentiate the forward on tensors without values")
    if any(node.type.dtype in (torch.float16, torch.bfloat16) for node in captured):
        # A norm of nearly equal values was off by more than eager is (random model 7021).
        raise UnsupportedError("in half precision what is computed again is rounded otherwise")
    if not any(contract.reaches):
        raise UnsupportedError("no gradient flows through the forward")
    if recorded(captured) != contract.history:
        raise UnsupportedError("autograd records something else of the forward than of its graph")
    results = [r.leaf for r in handed_back(plan) if r.leaf is not None]
    flowing = [i for i in results if contract.reaches[i]]
    names = [leaf.name for i in flowing if isinstance(leaf := leaves[i], Ref)]
    sources = set().union(*(contract.reaches[i] for i in flowing))
    if not sources:
        raise UnsupportedError("no gradient flows through what kernels compute")
    with sdpa_kernel(SDPBackend.MATH) if on_gpu else nullcontext():
        found = joint(captured, names, sources, LOWERINGS.__contains__)
    every = {leaf.name for leaf in leaves if isinstance(leaf, Ref)}
    return partition(found, every, _computed_again, batch)


def _computed_again(op: str) -> bool:
    """Whether a kernel computes it from what it reads anyhow: no product, no window."""
    return op in LOWERINGS and op not in CONTRACTIONS and op not in POOLS
