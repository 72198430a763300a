"""Gradients as eager's: of every input and every parameter, for one fixed cotangent.

In: a Subject. Out: a Finding. A candidate without kernels for the backward may run the original
instead; then its counter of fallbacks says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.judge import judge
from kernelwright.verify.subject import Inputs, Subject

BATCH = 8
OTHER_SEED = 100


def gradients(subject: Subject) -> Finding:
    """Two draws may decide, because a kink (ReLU at 0) can fall to either side by rounding."""
    finding = _on_seed(subject, 0)
    return _on_seed(subject, OTHER_SEED) if finding.passed is False else finding


def _on_seed(subject: Subject, start: int) -> Finding:
    size = min(subject.small, BATCH)
    case = Case(
        f"the gradients at batch {size}",
        lambda seed: subject.draw(size, start + seed),
        strides=False,
    )
    return judge(subject, case, backward)


def backward(module: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Which outputs require gradients, and the gradient of each input and parameter."""
    with torch.enable_grad():
        leaves = pytree.tree_map(_as_leaf, inputs)
        outputs = [x for x in pytree.tree_leaves(module(*leaves)) if isinstance(x, Tensor)]
        wanted = {f"input {i}": x for i, x in enumerate(pytree.tree_leaves(leaves))}
        wanted.update(module.named_parameters())
        wanted = {k: x for k, x in wanted.items() if isinstance(x, Tensor) and x.requires_grad}
        found: dict[str, Any] = {"requires_grad": tuple(x.requires_grad for x in outputs)}
        used = [x for x in outputs if x.requires_grad]
        if used and wanted:
            grads = torch.autograd.grad(
                used, list(wanted.values()), [_cotangent(x) for x in used], allow_unused=True
            )
            found.update(zip(wanted, grads, strict=True))
    return found


def _as_leaf(x: Any) -> Any:
    if isinstance(x, Tensor) and x.is_floating_point():
        return x.detach().requires_grad_()
    return x


def _cotangent(x: Tensor) -> Tensor:
    """Quarters from -3/4 to 3/4, which no dtype rounds and no normalisation cancels."""
    steps = torch.arange(x.numel(), device=x.device).remainder(7).sub(3)
    return steps.to(x.dtype).div(4).view(x.shape)
