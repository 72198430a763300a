"""Convolutions of single places as products of matrices: what eager's convolution gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import checking
import pytest
import torch
from torch import Tensor, nn
from written import Written

from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module
from kernelwright.runtime.pixels import of_pixels
from kernelwright.targets import X86_64


def pixelwise(m: Any, x: Tensor) -> Any:
    y = m.one(torch.relu(x))
    z = m.two(torch.tanh(y) * 2)
    return torch.sigmoid(z), m.line(z.flatten(2)).exp()


PARTS = {
    "one": nn.Conv2d(12, 20, 1, bias=False),
    "two": nn.Conv2d(20, 7, 1),
    "line": nn.Conv1d(7, 5, 1),
}


def test_pixels_along_planes_and_lines() -> None:
    module = Written(pixelwise, **PARTS).eval()
    problem = problem_from_module(module, (torch.randn(3, 12, 9, 10),))
    made = compile_problem(problem, target=X86_64)
    calls = [region.call for region in made.planned.regions if region.kind == "contract"]
    assert [call.of_pixels for call in calls] == [True, True, True]
    fast = made.instantiate()
    samples = [torch.randn(batch, 12, 9, 10) for batch in (3, 1, 0, 16)]
    strange = torch.randn(4, 12, 9, 10)
    strange[0, 3, 4, 5], strange[2, 1, 0, 0], strange[3] = torch.nan, torch.inf, 3e37
    oracle = copy.deepcopy(module).double()
    for what, x in enumerate((*samples, strange)):
        values = (checking.run(f, (x,)) for f in (fast, module))
        checking.check_close(str(what), *values, checking.run(oracle, (x.double(),)))
    assert not fast.fallbacks


@pytest.fixture
def rounded() -> Iterator[None]:
    """What a caller may set who wants products of bfloat16, and nothing of convolutions."""
    matmul = torch.backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    yield
    matmul.fp32_precision = before


def test_products_that_are_rounded_are_convolutions(rounded: None) -> None:
    x, w, b = torch.randn(2, 64, 5, 5), torch.randn(8, 64, 1, 1), torch.randn(8)
    convolve = torch.nn.functional.conv2d
    assert torch.equal(of_pixels(convolve, x, w, b), convolve(x, w, b))
