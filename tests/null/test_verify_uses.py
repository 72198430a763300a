"""How people use a module: gradients in all their ways, casts, copies, modes, layouts.

Each wrong candidate is right in the plain forward and wrong in one of these; the model itself, as a
candidate, passes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from verifying import certified, run_all, run_some

from kernelwright.verify.candidate import fallbacks_of
from kernelwright.verify.checks import MAIN
from kernelwright.verify.checks.fallbacks import judge_fallbacks
from kernelwright.verify.checks.gradients import FOR_NOTHING
from kernelwright.verify.compare import same_bits

LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return F.silu(self.linear(x))

def get_inputs():
    return [torch.rand(6, 8)]
"""

BATCH_NORM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.rand(6, 8)]
"""

POINTWISE = """
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2

def get_inputs():
    return [torch.rand(4, 3, 5, 6)]
"""

SAME = "class ModelNew(Model): pass\n"

# The backward computes its gradients without a graph: right once, not twice.
ONCE = """
class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        return Model.forward(module, x)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = Model.forward(ctx.module, x)
            BACKWARD

class ModelNew(Model):
    def forward(self, x):
        return Recomputed.apply(self, x, *self.parameters())
"""

GRAD = "return None, *torch.autograd.grad(y, [x, *ctx.module.parameters()], gradient)"
REENTRANT = "torch.autograd.backward(y, gradient); return None, x.grad, None, None"


def forward(code: str, model: str = LINEAR) -> str:
    lines = code.replace("\n", "\n        ")
    return f"{model}\nclass ModelNew(Model):\n    def forward(self, x):\n        {lines}\n"


@dataclass(frozen=True)
class Wrong:
    """A candidate that one use tells from its model."""

    name: str
    check: str
    candidate: str
    model: str = LINEAR


WRONG = [
    Wrong(
        "a backward without a graph", "gradients: twice", LINEAR + ONCE.replace("BACKWARD", GRAD)
    ),
    Wrong(
        "gradients added behind autograd's back",
        "gradients: hooks",
        LINEAR + ONCE.replace("BACKWARD", REENTRANT),
    ),
    Wrong(
        "outputs that always require gradients",
        "gradients: frozen",
        forward(
            "return super().forward(x) + torch.zeros(1, requires_grad=torch.is_grad_enabled())"
        ),
    ),
    Wrong(
        "an output that cannot be changed in place",
        "uses: gradients",
        forward("y = super().forward(x)\nreturn torch.stack([y, y]).unbind(0)[0]"),
        LINEAR.replace("F.silu(self.linear(x))", "F.silu(self.linear(x)) + 1"),
    ),
    Wrong(
        "no forward inside of a backward",
        "uses: gradients",
        forward(
            "assert torch._C._current_graph_task_id() == -1, 'called in a backward'\n"
            "return super().forward(x)"
        ),
    ),
    Wrong(
        "a weight kept from the first step",
        "gradients: optimizer steps",
        forward(
            "if not hasattr(self, 'kept'):\n    self.kept = self.linear.weight.detach().clone()\n"
            "w = self.linear.weight\n"
            "return F.silu(F.linear(x, self.kept + w - w.detach(), self.linear.bias))"
        ),
    ),
    Wrong(
        "a tensor kept from inference_mode",
        "inference_mode",
        forward(
            "if not hasattr(self, 'ones'):\n    self.ones = torch.ones(8)\n"
            "return super().forward(x) * self.ones"
        ),
    ),
    Wrong(
        "gradients of the input lost", "gradients", forward("return super().forward(x.detach())")
    ),
    Wrong("float32 for good", "weights: .double()", forward("return super().forward(x).float()")),
    Wrong(
        "float32 for good, from half",
        "weights: .half()",
        forward("return super().forward(x).float()"),
    ),
    Wrong(
        "a weight kept over an optimizer",
        "uses: function",
        forward(
            "if not hasattr(self, 'kept'):\n    self.kept = self.linear.weight.detach().clone()\n"
            "return F.silu(F.linear(x, self.kept, self.linear.bias))"
        ),
    ),
    Wrong(
        "a weight kept over a file",
        "uses: function",
        forward(
            "if not hasattr(self, 'kept'):\n    self.kept = self.linear.weight.detach().clone()\n"
            "return F.silu(F.linear(x, self.kept, self.linear.bias))"
        ),
    ),
    Wrong(
        "no pickle",
        "uses: module",
        forward("self.f = lambda: None\nreturn super().forward(x)"),
    ),
    Wrong(
        "the mode of the first call",
        "uses: module",
        forward(
            "if not hasattr(self, 'mode'):\n    self.mode = self.training\n"
            "n = self.norm\n"
            "return F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, self.mode)",
            BATCH_NORM,
        ),
        BATCH_NORM,
    ),
    *(
        Wrong(
            f"contiguous where eager is {layout}",
            f"layout: {layout}",
            forward("return super().forward(x).contiguous()", POINTWISE),
            POINTWISE,
        )
        for layout in ("transposed", "permuted", "channels_last")
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_use_fails_and_the_model_passes(wrong: Wrong, tmp_path: Path) -> None:
    found = run_some(tmp_path, wrong.model, wrong.candidate, wrong.check)[wrong.check]
    assert found.passed is False, found
    right = run_some(tmp_path, wrong.model, wrong.model + SAME, wrong.check)[wrong.check]
    assert right.passed is True, right


def test_recomputing_backward_passes_but_for_second_derivatives(tmp_path: Path) -> None:
    names = ("gradients", "gradients: frozen", "inference_mode")
    checks = run_some(tmp_path, LINEAR, LINEAR + ONCE.replace("BACKWARD", GRAD), *names)
    failed = [str(check) for name, check in checks.items() if not check.passed]
    assert failed == [str(checks["gradients: frozen"])]  # GRAD asks for gradients of frozen ones


TWO = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x):
        return self.first(x), torch.tanh(self.second(x))

def get_inputs():
    return [torch.rand(6, 8)]
"""
JOINED = """
class Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, *tensors):
        ctx.tensors = tensors
        ctx.set_materialize_grads(False)
        return Model.forward(module, tensors[0])

    @staticmethod
    def backward(ctx, *given):
        with torch.enable_grad():
            x, w, b, v, c = fresh = [t.detach().requires_grad_() for t in ctx.tensors]
            both = F.linear(x, w, b), torch.tanh(F.linear(x, v, c))
            pairs = [(y, dy) for y, dy in zip(both, given) if dy is not None]
        results, cotangents = zip(*pairs)
        return None, *torch.autograd.grad(results, fresh, cotangents, allow_unused=True)

class ModelNew(Model):
    def forward(self, x):
        return Joined.apply(self, x, *self.parameters())
"""
STEEPER = """
class ModelNew(Model):
    def forward(self, x):
        first, second = super().forward(x)
        return first, second + 0.3 * (second - second.detach())
"""


def test_two_results_with_one_backward_are_a_limit(tmp_path: Path) -> None:
    """Hooks of what a result does not depend on are called with None, and by eager not at all."""
    names = ("gradients", "gradients: hooks")
    joined = certified(tmp_path, TWO, TWO + JOINED, names)
    assert not [check for check in joined.checks if check.passed is False]
    assert joined.limits == (FOR_NOTHING,)
    assert not certified(tmp_path, TWO, TWO + SAME, names).limits


def test_hooks_leave_nothing_behind(tmp_path: Path) -> None:
    """They double gradients: where one is left, eager's own are off, and much is allowed."""
    found = run_some(tmp_path, TWO, TWO + STEEPER, "gradients: hooks", "gradients")
    assert found["gradients: hooks"].passed is False
    assert found["gradients"].passed is False


def test_one_element_of_a_larger_step_has_bits() -> None:
    wide = torch.tensor([1.0, 2.0, float("nan"), 4.0])
    assert same_bits(wide[2::2][:1], wide[2:3].clone())
    assert not same_bits(wide[::2][:1], wide[1:2])


COUNTING = """
from collections import Counter
from types import SimpleNamespace

class ModelNew(Model):
    def __init__(self):
        super().__init__()
        self._kernelwright = SimpleNamespace(fallbacks=Counter())

    def forward(self, x):
        if CONDITION:
            self._kernelwright.fallbacks["a cause"] += 1
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("condition", "passed"),
    [
        pytest.param("torch.is_grad_enabled() and self.linear.weight.requires_grad", False, id="g"),
        pytest.param("self.linear._forward_hooks or x.shape[1] != 8", True, id="hooks"),
        pytest.param("torch.is_inference_mode_enabled()", False, id="inference"),
    ],
)
def test_fallbacks_with_gradients_certify_nothing(
    condition: str, passed: bool, tmp_path: Path
) -> None:
    checks = run_all(tmp_path, LINEAR, LINEAR + COUNTING.replace("CONDITION", condition))
    assert not [str(check) for check in checks.values() if check.passed is False]
    found = judge_fallbacks(checks.values(), MAIN)
    assert found.passed is passed, found
    assert "a cause" in found.detail


def test_fallbacks_are_read_from_the_instance_first() -> None:
    module = nn.Module()
    assert fallbacks_of(module) is None
    counted = type("Counted", (nn.Module,), {"fallbacks": Counter(a=2)})()
    assert fallbacks_of(counted) == Counter(a=2)
    counted.__dict__["_kernelwright"] = SimpleNamespace(fallbacks=Counter(b=1))
    assert fallbacks_of(counted) == Counter(b=1)
