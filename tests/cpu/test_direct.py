"""Small convolutions in a kernel of our own: all sizes against float64, and whole models."""

from __future__ import annotations

import copy
import ctypes
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Written

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS, Policy
from kernelwright.problem import problem_from_module
from kernelwright.targets import X86_64

KERNELS = Path(__file__).parents[2] / "src" / "kernelwright" / "kernels"
CXX = os.environ.get("CXX", "g++")
DRIVER = """
#include "direct.hpp"
extern "C" void run(const float* x, const float* w, const float* b, float* y, const int64_t* n) {
  const kw::DirectConv g{x, w, b, y, n[0], n[1], n[2], n[3], {n[4], n[5]}, {n[6], n[7]},
                         {n[8], n[9]}, {n[10], n[11]}, {n[12], n[13]}, {n[14], n[15]}};
  kw::convolve(g, static_cast<int>(n[16]));
}
"""


@pytest.fixture(scope="module", params=["-march=native", ""], ids=["native", "plain"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("direct")
    source, built = folder / "direct.cpp", folder / "direct.so"
    source.write_text(DRIVER)
    flags = ["-O3", "-std=c++17", "-fopenmp", "-shared", "-fPIC", f"-I{KERNELS}"]
    flags += [request.param] if request.param else []
    subprocess.run([CXX, *flags, str(source), "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


def convolve(
    library: Any, x: Tensor, w: Tensor, b: Tensor | None, how: Any, threads: int
) -> Tensor:
    stride, padding, dilation, groups = how
    shape = F.conv2d(x.to("meta"), w.to("meta"), None, *how).shape
    out = torch.full(shape, torch.nan)
    sizes = [x.shape[0], groups, w.shape[1], w.shape[0] // groups, *x.shape[2:], *shape[2:]]
    sizes += [*w.shape[2:], *stride, *dilation, *padding, threads]
    given = [None if t is None else ctypes.c_void_p(t.data_ptr()) for t in (x, w, b, out)]
    library.run(*given, (ctypes.c_int64 * len(sizes))(*sizes))
    return out


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor | None, Any]:
    """A convolution of any kind: remainders of vectors, of filters, of stacks of samples."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    groups = rng.choice((1, 1, 1, 2, 3, 5))
    inside, filters = rng.choice((1, 2, 3, 7, 17)), rng.choice((1, 2, 5, 6, 7, 12, 13))
    window = rng.choice((1, 2, 3, 5)), rng.choice((1, 3, 4, 7))
    stride, dilation = rng.choice(((1, 1), (2, 2), (1, 3), (4, 1))), rng.choice(((1, 1), (2, 3)))
    padding = rng.randrange(4), rng.randrange(4)
    least = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    size = [n + rng.choice((0, 1, 2, 5, 11, 30)) for n in least]
    samples = rng.choice((1, 2, 3, 9))
    x = torch.randn(samples, groups * inside, *size)
    w = torch.randn(groups * filters, inside, *window)
    b = torch.randn(groups * filters) if rng.random() < 0.5 else None
    return x, w, b, (stride, padding, dilation, groups)


@pytest.mark.parametrize("seed", range(80))
def test_any_convolution(library: Any, seed: int) -> None:
    x, w, b, how = drawn(seed)
    found = convolve(library, x, w, b, how, threads=1 + seed % 4)
    doubles = [t if t is None else t.double() for t in (x, w, b)]
    expected = F.conv2d(*doubles, *how)
    largest = F.conv2d(x.double().abs(), w.double().abs(), None, *how)
    assert ((found - expected).abs() <= 4e-7 * (1 + largest)).all()
    again = convolve(library, x, w, b, how, threads=1 + (seed + 1) % 4)
    assert torch.equal(found, again)  # whoever computes it


def test_what_is_no_number_goes_where_the_window_does(library: Any) -> None:
    x, w = torch.randn(3, 4, 9, 10), torch.randn(7, 4, 3, 3)
    x[0, 1, 4, 5], x[1, 0, 0, 0], x[2, 3, 8, 9] = torch.nan, torch.inf, -torch.inf
    how = ((1, 1), (1, 1), (1, 1), 1)
    found, expected = convolve(library, x, w, None, how, 2), F.conv2d(x, w, None, *how)
    torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-5, rtol=1e-5)


# ---- in models -----------------------------------------------------------------------------------


def chain(m: Any, x: Tensor) -> Any:
    y = F.max_pool2d(torch.relu(m.norm(m.first(x))), 2)
    z = y + m.second(y)
    return m.third(z).flatten(1) @ m.weight, m.deep(z[:, :6].reshape(-1, 3, 2, 3, 4))


def small_model(policy: Policy) -> tuple[nn.Module, Compiled]:
    torch.manual_seed(0)
    module = Written(
        chain,
        first=nn.Conv2d(3, 8, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(8),
        second=nn.Conv2d(8, 8, (1, 3), padding=(0, 1), groups=4),
        third=nn.Conv2d(8, 5, 3, stride=2, padding=2, dilation=2),
        deep=nn.Conv3d(3, 2, 2),
    ).eval()
    module.weight = nn.Parameter(torch.randn(20, 3))
    problem = problem_from_module(module, (torch.randn(4, 3, 6, 8),))
    return module, compile_problem(problem, target=X86_64, policy=policy)


@pytest.mark.parametrize("policy", [WHERE_IT_PAYS, ALWAYS], ids=["where it pays", "always"])
def test_models(policy: Policy) -> None:
    module, made = small_model(policy)
    small = [r.direct for r in made.planned.regions if r.direct is not None]
    assert len(small) == (2 if policy is ALWAYS else 3)  # else one is a sum over windows
    fast, oracle = made.instantiate(), copy.deepcopy(module).double()
    for batch in (4, 1, 3, 0, 200):
        x = torch.randn(batch, 3, 6, 8)
        values = (checking.run(f, (x,)) for f in (fast, module))
        checking.check_close(str(batch), *values, checking.run(oracle, (x.double(),)))
    assert not fast.fallbacks
