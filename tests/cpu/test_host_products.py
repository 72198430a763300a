"""The CPU's own products: the kernel against float64, for every instruction set that is here.

Sizes lie around every tile and in between, operands in every layout; some threads give the bits of
one. Numbers that are not finite, or so small that parts of them vanish, are right as well.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kernelwright.emit.headers import flatten
from kernelwright.graph import hint
from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from cpu_products import FLAGS, LAUNCHER, multiply  # noqa: E402

CXX = os.environ.get("CXX", "g++")
CPU_INFO = Path("/proc/cpuinfo")
HAS = set(CPU_INFO.read_text().split()) if CPU_INFO.exists() else set()
# By what the processor has: the flags that leave so much of it to the compiler.
SETS = {
    "amx_bf16": (),
    "avx512f": ("-mno-amx-bf16",),
    "avx2": ("-march=haswell",),
    "sse2": ("-march=x86-64",),
}
SIZES = (
    *((1, 1, 1), (1, 64, 96), (2, 3, 5), (4, 4, 16), (5, 130, 2100), (7, 9, 31), (16, 96, 100)),
    *((17, 33, 65), (20, 300, 128), (21, 70, 129), (32, 32, 128), (47, 65, 191), (64, 64, 256)),
    *((65, 100, 300), (96, 257, 64), (130, 129, 600), (257, 40, 130), (300, 300, 33), (40, 5, 700)),
    *((12, 1500, 1440), (24, 520, 260), (32, 1100, 2050), (272, 300, 140), (300, 24, 520)),
    *((0, 5, 7), (6, 0, 7), (3, 4, 0)),
)

pytestmark = [
    pytest.mark.skipif(shutil.which(CXX) is None, reason=f"the C++ compiler {CXX} is not here"),
    pytest.mark.skipif(
        platform.machine() != "x86_64" or not HAS, reason="the flags are those of x86-64 on Linux"
    ),
]


@pytest.fixture(params=SETS)
def flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if request.param not in HAS:
        pytest.skip(f"this processor has no {request.param}")
    return SETS[request.param]


def matrix(rows: int, depth: int, turned: bool) -> Tensor:
    return torch.randn(depth, rows).t() if turned else torch.randn(rows, depth)


def assert_accurate(ours: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None) -> None:
    """No larger an error against float64 than eager's, but for what is a few last bits."""
    exact = x.double() @ w.double().mT + (0 if bias is None else bias.double())
    eager = x @ w.mT + (0 if bias is None else bias)
    size = exact.square().mean().sqrt() if exact.any() else 1.0
    error, theirs = ((y.double() - exact).abs().max() / size for y in (ours, eager))
    assert error <= 1.2 * theirs + 5e-7, (tuple(x.shape), tuple(w.shape), error, theirs)


@pytest.mark.parametrize("x_turned", [False, True])
@pytest.mark.parametrize("w_turned", [False, True])
def test_every_size_in_every_layout(flags: tuple[str, ...], x_turned: bool, w_turned: bool) -> None:
    torch.manual_seed(0)
    for rows, columns, depth in SIZES:
        x, w, bias = matrix(rows, depth, x_turned), matrix(columns, depth, w_turned), None
        for bias in (None, torch.randn(columns)):
            one = multiply(x, w, bias, 1, flags)
            if one.numel():
                assert_accurate(one, x, w, bias)
            for threads in (2, 3, 4):
                assert torch.equal(multiply(x, w, bias, threads, flags), one)


def test_random_products(flags: tuple[str, ...]) -> None:
    """Strides of a view, a step between numbers, an offset: whatever there is."""
    draw = random.Random(os.environ.get("KERNELWRIGHT_SEED", "products"))
    torch.manual_seed(1)
    for _ in range(60):
        rows, columns, depth = (
            draw.choice((draw.randint(1, 40), draw.randint(1, 400))) for _ in "rcd"
        )
        step, more = draw.choice((1, 1, 1, 2)), draw.randint(0, 9)
        x = matrix(rows + more, step * depth + more, draw.random() < 0.5)[more:, more::step]
        w = matrix(columns + more, depth + more, draw.random() < 0.5)[:columns, :depth]
        w = w * 10.0 ** draw.randint(-20, 20)
        assert_accurate(multiply(x, w, None, draw.randint(1, 4), flags), x, w)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batches(flags: tuple[str, ...], batch: int) -> None:
    torch.manual_seed(2)
    for rows, columns, depth in ((3, 40, 60), (70, 65, 130)):
        x, w = torch.randn(batch, rows, depth), torch.randn(batch, depth, columns).mT
        for threads in (1, 2, 4):
            assert_accurate(multiply(x, w, None, threads, flags), x, w)


@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_not_finite_or_hardly_there(
    flags: tuple[str, ...], rows: int, turned: bool
) -> None:
    torch.manual_seed(3)
    x, w = torch.randn(rows, 300), matrix(60, 300, turned)
    x[1, 5], x[2, 9], w[8, 100] = float("inf"), float("nan"), -float("inf")
    x[3], w[9] = 0.0, 0.0
    x[4, ::2] *= 1e-38
    w[10] *= 1e-38
    w[11] *= 1e-30
    ours, exact = multiply(x, w, None, 2, flags), (x.double() @ w.double().T).float()
    assert torch.equal(ours.isnan(), exact.isnan())
    assert torch.equal(ours.isinf(), exact.isinf())
    assert torch.equal(ours.sign()[exact.isinf()], exact.sign()[exact.isinf()])
    there = exact.isfinite()
    scale = (x.double().abs() @ w.double().abs().T)[there]
    # Sums of numbers below 2^-126 have fewer bits.
    error = (ours.double() - exact.double())[there].abs()
    assert (error <= 1e-6 * scale + 300 * 2.0**-149).all()
    assert (ours[3][there[3]] == 0).all()


def test_numbers_that_overflow_are_where_eager_has_them(flags: tuple[str, ...]) -> None:
    x, w = torch.full((40, 64), 1e30), torch.full((50, 64), 1e30)
    w[7] = -1e30
    w[9] = 1e-30
    assert torch.equal(multiply(x, w, None, 2, flags).isinf(), (x @ w.T).isinf())
    assert torch.allclose(multiply(x, w, None, 2, flags)[:, 9], torch.tensor(64.0))


def test_the_sanitizers_find_nothing(flags: tuple[str, ...], tmp_path: Path) -> None:
    driver = Path(__file__).with_name("product_check.cpp").read_text()
    source = tmp_path / "check.cpp"
    source.write_text(flatten(["product.hpp"], LAUNCHER + driver, "cpu") + driver)
    shared = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
    checks = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = tmp_path / "check"
    command = [CXX, *shared, *checks, "-fopenmp", *flags, str(source), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    if "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizers here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(" of ")[0]) == (0, "0"), done.stdout + done.stderr


class Network(nn.Module):
    """Products as models have them: a Linear, a weight as it lies, a batch, a view before one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(512, 768)
        self.second = nn.Linear(768, 640)
        self.weight = nn.Parameter(torch.randn(640, 700) * 0.05)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.relu(self.first(x)) * 2
        out = torch.tanh(self.second(hidden) @ self.weight)
        return out, torch.relu(torch.bmm(y.mT, y) - 1), torch.sigmoid(self.first(x[:, 1]))


def test_a_model_launches_them_from_as_many_rows_on_as_the_plan_says() -> None:
    if "amx_bf16" not in HAS:
        pytest.skip("this processor has no amx_bf16")
    torch.manual_seed(4)
    network = Network()
    y = torch.randn(3, 300, 600)
    problem = problem_from_module(network, (torch.randn(8, 40, 512), y), "highest")
    compiled = compile_problem(problem)
    model = compiled.instantiate()
    emitted = sys.modules[type(model).__module__]
    own = [r for r in compiled.planned.regions if r.host is not None]
    assert len(own) == 5
    for count in (2, 8, 70):
        x = torch.randn(count, 40, 512)
        names: list[str] = []
        emitted._KW_KERNEL_LIBRARY.watchers.append(names.extend)
        with torch.no_grad():
            ours, eager = model(x, y), network(x, y)
            exact = network.double()(x.double(), y.double())
        network.float()
        emitted._KW_KERNEL_LIBRARY.watchers.clear()
        made = {name.removeprefix("launch_") for name in names if name.endswith("_by_tiles")}
        assert made == {
            compiled.lowered.shared[f"{r.name}_by_tiles"]
            for r in own
            if r.host and any(way.takes(hint(r.host.rows, count)) for way in r.host.ways)
        }
        assert made
        for mine, other, true in zip(ours, eager, exact, strict=True):
            error, theirs = (float((v - true).norm() / true.norm()) for v in (mine, other))
            assert error <= 1.2 * theirs + 1e-7
    assert not model.fallbacks
