"""A machine is one value: the passes compile for one that nobody has built, and name none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from written import Written

import kernelwright
from kernelwright.lower.convolution import ConvKernel
from kernelwright.lower.kernel import GemmKernel
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import problem_from_module
from kernelwright.report import notices
from kernelwright.targets import SM_80, SM_90, ConvLoop, Loop, Target, target_of_capability

HOME = Path(kernelwright.__file__).parent
NAMED = re.compile(r"sm_?\d\d\d?a?\b|hopper|ampere|blackwell", re.IGNORECASE)


def invented() -> Target:
    """Another GPU: fewer processors, less shared memory, other instructions, types of its own."""
    capability = (12, 3)

    def loop(own: Loop) -> Loop:
        tiling = replace(
            own.tiling,
            capability=capability,
            processors=7,
            shared_bytes=90 << 10,
            major="odd::Side",
        )
        return replace(own, symbol=f"Invented{own.symbol}", tiling=tiling, thin=None)

    def conv_loop(own: ConvLoop) -> ConvLoop:
        tiles = replace(own.tiles, processors=7, shared_bytes=90 << 10)
        return replace(own, symbol=f"Invented{own.symbol}", tiles=tiles, capability=capability)

    return replace(
        SM_90,
        name="sm_123",
        loops=tuple(map(loop, SM_90.loops)),
        conv_loops=tuple(map(conv_loop, SM_90.conv_loops)),
        attending=(),
    )


def test_a_product_for_an_invented_machine() -> None:
    module = Written(lambda m, x: torch.relu(m.linear(x)), linear=nn.Linear(256, 512))
    problem = problem_from_module(module, (torch.randn(64, 256),))
    compiled = compile_problem(problem, target=invented(), policy=ALWAYS)
    (kernel,) = (k for k in compiled.kernels if isinstance(k, GemmKernel))
    constants = dict(kernel.config.constants)
    stage = (constants["kBlockM"] + constants["kBlockN"]) * 2 * 128
    assert constants["kStages"] * stage <= 90 << 10
    assert "kw::InventedSplitFloat" in compiled.source and "odd::Side" in compiled.source
    assert "(12, 3)" in compiled.source and "(9, 0)" not in compiled.source


def test_a_convolution_for_an_invented_machine() -> None:
    module = Written(lambda m, x: torch.relu(m.conv(x)), conv=nn.Conv2d(32, 64, 3))
    problem = problem_from_module(module, (torch.randn(8, 32, 40, 40),))
    compiled = compile_problem(problem, target=invented(), policy=ALWAYS)
    (kernel,) = (k for k in compiled.kernels if isinstance(k, ConvKernel))
    assert kernel.tile.shared_bytes <= 90 << 10
    assert "kw::InventedConvSplitFloat" in compiled.source
    assert "(12, 3)" in compiled.source and "(9, 0)" not in compiled.source


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), SM_80), ((8, 9), SM_80), ((9, 0), SM_90)]
)
def test_a_gpu_that_there_are_kernels_for(capability: tuple[int, int], target: Target) -> None:
    assert target_of_capability(*capability) is target
    assert target.notice == ""


@pytest.mark.parametrize("capability", [(7, 5), (10, 0), (12, 0)])
def test_an_unknown_gpu_gets_the_portable_kernels_and_says_so(capability: tuple[int, int]) -> None:
    target = target_of_capability(*capability)
    assert target.name == "sm_{}{}".format(*capability)
    problem = problem_from_module(Written(lambda m, x: torch.relu(x) * 2), (torch.randn(4, 8),))
    compiled = compile_problem(problem, target=target)
    assert compiled.source == compile_problem(problem, target=SM_80).source
    (notice,) = notices.of_compiled(compiled)
    assert "compute capability {}.{}".format(*capability) in notice
    assert "portable" in notice


@pytest.mark.parametrize("folder", ["plan", "lower", "emit"])
def test_no_pass_names_an_architecture(folder: str) -> None:
    named = {
        f"{path.name}: {found[0]}"
        for path in (HOME / folder).glob("*.py")
        if (found := NAMED.search(path.read_text()))
    }
    assert named == set()
