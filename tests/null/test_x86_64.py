"""What is planned for x86-64 alone, on any machine: its library has other strengths (targets/)."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from written import Written

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module
from kernelwright.rules import POOL_FIRST
from kernelwright.targets import CPU, X86_64, Target, target_of

CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...], tuple[bool, bool]]] = {
    "few to many channels": (nn.Conv2d(8, 64, 3, padding=1), (4, 8, 64, 64), (True, True)),
    "as many as before": (nn.Conv2d(64, 64, 1), (4, 64, 48, 48), (True, False)),
    "volumes": (nn.Conv3d(8, 32, 3), (4, 8, 12, 24, 24), (False, True)),
    "transposed by steps": (
        nn.ConvTranspose2d(48, 32, 4, stride=2, padding=1),
        (4, 48, 32, 32),
        (True, True),
    ),
}


def planned(function: Any, *shape: int, target: Target, **parts: nn.Module) -> Compiled:
    module = Written(function, **parts).eval()
    return compile_problem(problem_from_module(module, (torch.randn(*shape),)), target=target)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_order_of_a_convolution(name: str) -> None:
    conv, shape, last = CONVOLUTIONS[name]
    for target, expected in zip((CPU, X86_64), last, strict=True):
        made = planned(lambda m, x: torch.relu(m.conv(x)) * 2, *shape, target=target, conv=conv)
        assert ("in channels_last" in why_of_the_library(made)) == expected


# Whether the library is asked for a product: of float32 pixels with the channels first, one by one.
PRODUCTS: dict[str, tuple[nn.Module, tuple[int, ...], bool]] = {
    "pixels": (nn.Conv2d(64, 128, 1), (4, 64, 48, 48), True),
    "pixels, no bias": (nn.Conv2d(64, 128, 1, bias=False), (4, 64, 48, 48), True),
    "along a line": (nn.Conv1d(64, 128, 1), (4, 64, 4096), True),
    "places of volumes": (nn.Conv3d(16, 32, 1), (4, 16, 8, 24, 24), True),
    "a single place": (nn.Conv2d(64, 128, 1), (4, 64, 1, 1), True),
    "by steps": (nn.Conv2d(64, 128, 1, stride=2), (4, 64, 48, 48), False),
    "padded": (nn.Conv2d(64, 128, 1, padding=1), (4, 64, 48, 48), False),
    "in groups": (nn.Conv2d(64, 128, 1, groups=2), (4, 64, 48, 48), False),
    "transposed": (nn.ConvTranspose2d(64, 128, 1), (4, 64, 48, 48), False),
    "windows": (nn.Conv2d(64, 128, 3), (4, 64, 48, 48), False),
    "one window": (nn.Conv2d(64, 128, 3), (4, 64, 3, 3), False),
    "a picture": (nn.Conv2d(64, 128, 1), (64, 48, 48), False),
    "float64": (nn.Conv2d(64, 128, 1).double(), (4, 64, 48, 48), False),
    "bfloat16": (nn.Conv2d(64, 128, 1).bfloat16(), (4, 64, 48, 48), False),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_convolutions_of_single_places_are_products(name: str) -> None:
    conv, shape, product = PRODUCTS[name]
    x = torch.randn(*shape, dtype=conv.weight.dtype)
    for target, expected in ((CPU, False), (X86_64, product)):
        module = Written(lambda m, x: torch.tanh(m.conv(x)) * 2, conv=conv).eval()
        made = compile_problem(problem_from_module(module, (x,)), target=target)
        assert ("of_pixels(" in made.source) == expected
        assert ("asked for as a product of matrices" in made.source) == expected


def test_pixels_follow_what_they_read() -> None:
    """Behind a convolution in channels_last the operand lies so already."""

    def behind(m: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(m.conv(torch.relu(m.first(x))))

    parts = {"first": nn.Conv2d(8, 64, 3), "conv": nn.Conv2d(64, 64, 1)}
    made = planned(behind, 4, 8, 64, 64, target=X86_64, **parts)
    whys = [str(r.why) for r in made.planned.regions if r.kind == "contract"]
    assert ["in channels_last" in why for why in whys] == [True, True]
    assert "of_pixels(" not in made.source


def test_steps_of_a_transposed_convolution_count() -> None:
    """The library turns what it scatters at a rate of its own."""
    gains = {}
    for stride in (1, 2):
        conv = nn.ConvTranspose2d(24, 24, 3, stride=stride)
        made = planned(lambda m, x: m.conv(x).tanh() * 2, 4, 24, 40, 40, target=X86_64, conv=conv)
        why = why_of_the_library(made)
        gains[stride] = "in channels_last" in why
    assert gains == {1: False, 2: True}


def why_of_the_library(made: Compiled) -> str:
    (region,) = (r for r in made.planned.regions if r.kind == "contract")
    return str(region.why)


def test_a_pool_stays_behind_a_convolution_where_float64_is_slow() -> None:
    def pooled(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(m.conv(x), 2)

    conv = nn.Conv2d(8, 16, 3)
    fast, slow = (
        planned(pooled, 4, 8, 34, 34, target=target, conv=conv) for target in (CPU, X86_64)
    )
    assert any(POOL_FIRST in law for law in fast.rewrites)
    assert not any(POOL_FIRST in law for law in slow.rewrites)
    assert any("float64 would be left" in refusal for refusal in slow.refusals)


def test_long_rows_are_read_again_if_that_is_little_work() -> None:
    shapes = {}
    for name, before in (("plain", lambda x: x), ("costly", F.gelu)):
        norm = nn.GroupNorm(2, 16)
        made = planned(
            lambda m, x, f=before: m.norm(f(x)) * 2, 4, 16, 96, 96, target=CPU, norm=norm
        )
        shapes[name] = [kernel.config.shape for kernel in made.kernels]
    assert shapes == {"plain": ["streaming"], "costly": ["resident"]}


@pytest.mark.parametrize(
    ("machine", "expected"), [("x86_64", X86_64), ("AMD64", X86_64), ("aarch64", CPU)]
)
def test_the_target_of_this_machine(
    machine: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert target_of(torch.device("cpu")) is expected
