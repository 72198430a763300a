"""Which convolutions have a kernel of their own on x86-64, and up to how many samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from written import Written

from kernelwright.details import plan_record
from kernelwright.lower.steps import Choice, Guard, Launch
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module
from kernelwright.targets import CPU, X86_64, Target

# The convolution, its input, and whether the kernel of ours is faster.
CASES: dict[str, tuple[nn.Module, tuple[int, ...], bool]] = {
    "few channels": (nn.Conv2d(8, 8, 3, padding=1), (4, 8, 16, 16), True),
    "by steps": (nn.Conv2d(3, 8, 7, stride=2, padding=3), (4, 3, 16, 16), True),
    "depthwise": (nn.Conv2d(16, 16, 3, padding=1, groups=16), (4, 16, 8, 8), True),
    "along a line": (nn.Conv1d(8, 8, 3, padding=1), (4, 8, 16), True),
    "much work": (nn.Conv2d(64, 64, 3, padding=1), (4, 64, 56, 56), False),
    "many samples": (nn.Conv2d(16, 16, 3, padding=1), (64, 16, 16, 16), False),
    "depthwise, much to copy": (nn.Conv2d(64, 64, 3, groups=64), (64, 64, 16, 16), False),
    "volumes": (nn.Conv3d(2, 2, 3), (4, 2, 4, 4, 4), False),
    "transposed": (nn.ConvTranspose2d(4, 4, 3), (4, 4, 8, 8), False),
    "a tap more than there is room for": (nn.Conv2d(1, 1, (257, 1)), (4, 1, 258, 2), False),
}


def planned(conv: nn.Module, shape: tuple[int, ...], target: Target = X86_64) -> Compiled:
    module = Written(lambda m, x: torch.relu(m.conv(x)) * 2, conv=conv).eval()
    return compile_problem(problem_from_module(module, (torch.randn(shape),)), target=target)


@pytest.mark.parametrize("name", CASES)
def test_which_have_a_kernel(name: str) -> None:
    conv, shape, small = CASES[name]
    made = planned(conv, shape)
    assert any(region.direct is not None for region in made.planned.regions) == small
    whys = [str(region.why) for region in made.planned.regions if region.kind == "contract"]
    assert any("a kernel of its own for up to" in why for why in whys) == small
    assert ("kw::convolve(" in made.source) == small
    assert "kw::convolve(" not in planned(conv, shape, CPU).source


def test_the_library_takes_more_samples() -> None:
    conv, shape, _ = CASES["few channels"]
    made = planned(conv, shape)
    (region,) = (r for r in made.planned.regions if r.direct is not None)
    assert region.direct is not None
    inside = [s for routine in made.lowered.routines for s in routine.steps]
    (choice,) = (s for s in (*inside, *made.lowered.steps) if isinstance(s, Choice))
    assert choice.guards == (Guard("<=", region.direct.form.batch, region.direct.most),)
    assert any(isinstance(s, Launch) and s.kernel.endswith("_direct") for s in choice.steps)
    assert not any(isinstance(s, Launch) and s.kernel.endswith("_direct") for s in choice.otherwise)


def test_a_large_weight_keeps_its_channels_first() -> None:
    """In channels_last the library takes longer for the weight than it saves elsewhere."""
    for channels, last in ((64, True), (512, False)):
        conv = nn.Sequential(nn.Hardtanh(), nn.Conv2d(channels, channels, 3, padding=1))
        shape = (16, channels, 16, 16) if last else (16, channels, 4, 4)
        why = next(r.why for r in planned(conv, shape).planned.regions if r.kind == "contract")
        assert ("in channels_last" in str(why)) == last


def test_what_lies_otherwise_is_left_to_the_library() -> None:
    def turned(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.transpose(1, 2), m.weight)

    module = Written(turned)
    module.weight = nn.Parameter(torch.randn(3, 6, 1, 1))
    problem = problem_from_module(module.eval(), (torch.randn(4, 5, 6, 7),))
    made = compile_problem(problem, target=X86_64)
    assert all(region.direct is None for region in made.planned.regions)


def test_a_report_shows_the_kernels_beside_the_library() -> None:
    """A small convolution, a product by tiles and an attention, each with what it is estimated."""

    def forward(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        tokens = m.conv(x).flatten(2).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*([tokens[:, None]] * 3))[:, 0]
        return torch.relu(m.linear(mixed.flatten(1)))

    conv, linear = nn.Conv2d(8, 16, 3, padding=1), nn.Linear(1024, 512)
    module = Written(forward, conv=conv, linear=linear).eval()
    problem = problem_from_module(module, (torch.randn(4, 8, 8, 8),))
    found = plan_record(compile_problem(problem, target=X86_64))["details"]
    whys = {kernel["template"]: kernel["why"] for kernel in found["kernels"]}
    assert {"direct", "product", "attention"} <= whys.keys()
    assert "AVX-512" in whys["product"] and "small convolution" in whys["direct"]
    assert all(kernel["config"] and kernel["steps"] for kernel in found["kernels"])
    (attention,) = (step for step in found["steps"] if step["kind"] == "attention")
    assert 0 < attention["model_us"] < 100
