"""What the tiles of a generated convolution do, run on the CPU: the emitted programs as host code.

The convolution itself is torch's, in float64; its result is cut into slices with garbage beyond the
edges, and the programs, with what finishes their rows, must make of it what the model makes.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import conv_host
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from written import Written

from kernelwright.lower import ConvKernel, convolution
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module
from kernelwright.targets import SM_90
from kernelwright.targets.sm_90 import CONV_LOOPS

pytestmark = pytest.mark.skipif(
    shutil.which(conv_host.CXX) is None, reason=f"the C++ compiler {conv_host.CXX} is not here"
)
# Recomputing costs nothing on the first machine, storing on the second.
AGAIN = replace(SM_90, conv_loops=tuple(replace(c, overhead=0.0, memory=1.0) for c in CONV_LOOPS))
ONCE = replace(SM_90, conv_loops=tuple(replace(c, rate=1.0) for c in CONV_LOOPS))
SHAPE = (2, 3, 19, 37)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Boxes of a few places, so that there are many tiles, and edges on all sides."""
    monkeypatch.setattr(convolution, "tiles", conv_host.boxes)
    convolution.tile_of.cache_clear()
    yield
    convolution.tile_of.cache_clear()


def conv(channels: int = 20, **how: Any) -> nn.Module:
    return nn.Conv2d(3, channels, 3, **how)


class Case:
    """A model, its input, and how many passes and which regions it should have."""

    def __init__(
        self, forward: Callable[..., Any], *shape: int, kinds: str = "conv", **parts: Any
    ) -> None:
        self.forward, self.shape = forward, shape or SHAPE
        self.kinds, self.parts = kinds.split(), parts


def replaced(case: Case, shape: tuple[int, ...]) -> Case:
    return Case(case.forward, *shape, kinds=" ".join(case.kinds), **case.parts)


def each(channels: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(channels, 1, 1))


# Of 15 places, which one of the boxes holds.
ROWS = {
    "norm of rows": Case(
        lambda m, x: F.gelu(m.n(m.c(x))), 2, 3, 9, 17, c=conv(), n=nn.LayerNorm(15)
    ),
    "softmax of rows": Case(lambda m, x: torch.softmax(m.c(x), 3) * 2, 2, 3, 9, 17, c=conv()),
    "norm of lines": Case(
        lambda m, x: m.n(m.c(x)) + x,
        *(2, 8, 15),
        **{"c": nn.Conv1d(8, 8, 3, padding=1), "n": nn.LayerNorm(15)},
    ),
    "norm of rows in groups": Case(
        lambda m, x: torch.sigmoid(m.n(m.c(x))),
        *(2, 16, 5, 6, 15),
        **{"c": nn.Conv3d(16, 24, 3, padding=1, groups=2), "n": nn.LayerNorm(15)},
    ),
}
CASES = {
    "elements": Case(lambda m, x: torch.relu(m.c(x)) * m.p, c=conv(), p=each(20)),
    "a residual": Case(
        lambda m, x: torch.relu(m.c(x)) + x, 2, 16, 9, 36, c=nn.Conv2d(16, 16, 3, padding=1)
    ),
    "alone": Case(lambda m, x: m.c(x), c=conv(bias=False)),
    "a sequence": Case(lambda m, x: F.elu(m.c(x)), 2, 3, 50, c=nn.Conv1d(3, 9, 5, dilation=2)),
    "softmax": Case(lambda m, x: torch.softmax(m.c(x), 1), c=conv()),
    "logsumexp": Case(
        lambda m, x: torch.logsumexp(m.c(x), 1, keepdim=True).tanh(),
        *(2, 3, 5, 6, 9),
        c=nn.ConvTranspose3d(3, 12, 3, stride=2),
    ),
    "minimum": Case(lambda m, x: torch.tanh(m.c(x).amin(1, keepdim=True)), c=conv()),
    "logsumexp of a line": Case(
        lambda m, x: torch.logsumexp(m.c(x), 1), 2, 3, 50, c=nn.Conv1d(3, 9, 5)
    ),
    "groups of channels": Case(
        lambda m, x: (m.c(x).unflatten(1, (4, 5)) * m.p).amax((1, 2)),
        **{"c": conv(), "p": nn.Parameter(torch.randn(4, 1, 1, 1))},
    ),
    "every second channel": Case(lambda m, x: m.c(x)[:, ::2].amax(1), c=conv()),
    "every second place": Case(lambda m, x: m.c(x)[..., ::2].amax(1), c=conv()),
    "mean of places": Case(lambda m, x: torch.tanh(m.c(x)).mean((2, 3)), c=conv()),
    "mean of columns": Case(lambda m, x: torch.tanh(m.c(x)).mean(3), c=conv()),
    "largest of all": Case(lambda m, x: torch.tanh(m.c(x)).amax((1, 2, 3)), c=conv()),
    "logsumexp of places": Case(lambda m, x: torch.logsumexp(m.c(x), (2, 3)), c=conv()),
    "max pool": Case(lambda m, x: F.max_pool2d(m.c(x), 4) * 2 + m.p, c=conv(), p=each(20)),
    "wide windows": Case(lambda m, x: F.max_pool2d(m.c(x), 6).tanh(), c=conv()),
    "average pool": Case(lambda m, x: F.avg_pool2d(torch.relu(m.c(x)), 2), c=conv()),
    "pools": Case(
        lambda m, x: F.max_pool3d(F.max_pool3d(m.c(x), 2), 3),
        *(2, 3, 9, 9, 9),
        c=nn.ConvTranspose3d(3, 12, 5, stride=2, padding=2),
    ),
    "a pool of the stride": Case(
        lambda m, x: torch.tanh(F.max_pool2d(m.c(x), 2)).sum(1),
        *(2, 3, 9, 7),
        kinds="conv rowwise",
        c=nn.ConvTranspose2d(3, 12, 3, stride=2, output_padding=1),
    ),
    "a window with gaps": Case(lambda m, x: F.max_pool2d(m.c(x), 2, 3), c=conv()),
    "overlapping averages": Case(
        lambda m, x: F.avg_pool2d(torch.relu(m.c(x)), 3, 2, 1), kinds="conv rowwise", c=conv()
    ),
    "global average": Case(lambda m, x: F.adaptive_avg_pool2d(torch.relu(m.c(x)), 1), c=conv()),
    **ROWS,
}
NORMS = {
    "group norm": Case(lambda m, x: F.hardtanh(m.n(m.c(x))), c=conv(24), n=nn.GroupNorm(6, 24)),
    "wide groups": Case(lambda m, x: F.hardtanh(m.n(m.c(x))), c=conv(64), n=nn.GroupNorm(2, 64)),
    "odd groups": Case(lambda m, x: F.hardtanh(m.n(m.c(x))), c=conv(20), n=nn.GroupNorm(4, 20)),
    "group norm, pool": Case(
        lambda m, x: F.max_pool2d(m.n(m.c(x)) * m.p, 4).clamp(0, 1),
        **{"c": conv(24), "n": nn.GroupNorm(3, 24), "p": each(24)},
    ),
    "instance norm": Case(lambda m, x: m.n(m.c(x)) / 2, c=conv(), n=nn.InstanceNorm2d(20)),
    "layer norm": Case(lambda m, x: F.gelu(m.n(m.c(x))), c=conv(), n=nn.LayerNorm([20, 17, 35])),
    "batch norm": Case(lambda m, x: F.hardswish(m.n(m.c(x))), c=conv(), n=nn.BatchNorm2d(20)),
    "gelu, group norm": Case(lambda m, x: m.n(F.gelu(m.c(x))), c=conv(24), n=nn.GroupNorm(6, 24)),
    "mish, batch norm": Case(lambda m, x: m.n(F.mish(m.c(x))), c=conv(), n=nn.BatchNorm2d(20)),
    "batch norm, mean": Case(
        lambda m, x: (lambda y: y - y.mean((2, 3), keepdim=True))(m.n(m.c(x))),
        **{"c": conv(), "n": nn.BatchNorm2d(20)},
    ),
}


def gates(m: Any, x: torch.Tensor) -> torch.Tensor:
    values, gates = m.c(x).chunk(2, dim=1)
    return values * torch.sigmoid(gates)


def chunks(m: Any, x: torch.Tensor) -> torch.Tensor:
    one, two, three = m.c(x).chunk(3, dim=1)
    return torch.tanh(one) * two + three


def line(channels: int) -> nn.Module:
    return nn.Conv1d(3, channels, 5, dilation=2)


# Programs that read several channels of a tile for each element.
BESIDE = {
    "glu": Case(lambda m, x: F.glu(m.c(x), 1), c=conv()),
    "glu without a bias": Case(lambda m, x: F.glu(m.c(x), 1), c=conv(bias=False)),
    "max pool": Case(lambda m, x: F.max_pool2d(gates(m, x), 2), c=conv()),
    "max pool, many channels": Case(lambda m, x: F.max_pool2d(gates(m, x), 2), c=conv(128)),
    "average pool": Case(lambda m, x: F.avg_pool2d(gates(m, x), 3), c=conv()),
    "three chunks": Case(chunks, c=conv(21)),
    "three chunks, pool": Case(lambda m, x: F.max_pool2d(chunks(m, x), 4), c=conv(21)),
    "two of three": Case(lambda m, x: (lambda y: y[:, 7:14] * y[:, 14:])(m.c(x)), c=conv(21)),
    "the second half": Case(lambda m, x: F.max_pool2d(m.c(x)[:, 10:], 2), c=conv()),
    "neighbours": Case(lambda m, x: (lambda y: y[:, 1:] - y[:, :-1])(m.c(x)), c=conv(7)),
    "every second": Case(lambda m, x: (lambda y: y[:, ::2].maximum(y[:, 1::2]))(m.c(x)), c=conv()),
    "largest of two": Case(
        lambda m, x: F.max_pool2d((lambda y: y[:, :10].maximum(y[:, 10:]))(m.c(x)), 2), c=conv()
    ),
    "softmax": Case(lambda m, x: torch.softmax(gates(m, x), 1), c=conv()),
    "long rows": Case(lambda m, x: F.layer_norm(gates(m, x).transpose(1, 3), (64,)), c=conv(128)),
    "minimum": Case(lambda m, x: gates(m, x).amin(1), c=conv()),
    "mean of places": Case(lambda m, x: gates(m, x).mean((2, 3)), c=conv()),
    "largest of all": Case(lambda m, x: gates(m, x).amax((1, 2, 3)), c=conv()),
    "a sequence": Case(lambda m, x: F.glu(m.c(x), 1), 2, 3, 50, c=line(10)),
    "a transposed volume": Case(
        lambda m, x: F.max_pool3d(gates(m, x), 2),
        *(2, 3, 5, 6, 9),
        c=nn.ConvTranspose3d(3, 12, 3, stride=2),
    ),
}
# And such as no tile has: channels at other steps, or places that are not the element's own.
APART = {
    "a gate for all": Case(lambda m, x: (lambda y: y[:, :1] * y[:, 1:])(m.c(x)), c=conv(7)),
    "halves of a row": Case(lambda m, x: F.glu(m.c(x)[..., :34], 3), c=conv()),
    "overlapping windows": Case(lambda m, x: F.max_pool2d(gates(m, x), 3, 2, 1), c=conv()),
    "samples": Case(lambda m, x: F.glu(m.c(x), 0), c=conv()),
}
MEANS = {
    "batch norm": Case(lambda m, x: m.n(m.c(x)).mean((2, 3)), c=conv(), n=nn.BatchNorm2d(20)),
    "group norm": Case(lambda m, x: m.n(m.c(x)).mean((1, 2, 3)), c=conv(24), n=nn.GroupNorm(6, 24)),
    "batch norm, subtracted": Case(
        lambda m, x: (lambda y: y - y.mean((2, 3), keepdim=True))(m.n(m.c(x))),
        *(2, 3, 210, 210),
        **{"c": conv(8), "n": nn.BatchNorm2d(8)},
    ),
}


def pools(channels: int = 20, scale: bool = False, **how: Any) -> Case:
    """A convolution, what keeps the order of its results, a max pool, and what follows."""
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.normal_()  # of either sign

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(torch.relu(m.n(m.c(x)) if scale else m.c(x)), **how).square() + m.p

    return Case(forward, c=conv(channels, bias=not scale), n=norm, p=each(channels))


# Results are 17 x 35, or 18 x 36: windows end with them, or before, or beyond.
OVERLAPPING = {
    "stem": pools(kernel_size=3, stride=2, padding=1),
    "norm": pools(scale=True, kernel_size=3, stride=2, padding=1),
    "bare": pools(kernel_size=3, stride=2),
    "by one": pools(kernel_size=3, stride=1, padding=1),
    "two by one": pools(kernel_size=2, stride=1),
    "to the end": pools(kernel_size=3, stride=2, ceil_mode=True),
    "down": pools(kernel_size=(3, 1), stride=(2, 1), padding=(1, 0)),
    "across": pools(kernel_size=(1, 5), stride=(1, 2), padding=(0, 2)),
    "mixed": pools(kernel_size=(3, 2), stride=2, padding=(1, 0)),
    "beside, padded": pools(kernel_size=4, stride=4, padding=1),
    "line": Case(
        lambda m, x: F.max_pool1d(m.c(x), 3, 2, 1) * 2, 2, 3, 50, c=nn.Conv1d(3, 20, 5, dilation=2)
    ),
    "volume": Case(
        lambda m, x: F.max_pool3d(m.c(x), 3, 2, 1) * 2, 2, 3, 9, 8, 11, c=nn.Conv3d(3, 20, 3)
    ),
}


# Average pools that are folded into the weights, and what stands on either side of them.
UP = {"stride": 2, "padding": 1, "output_padding": 1}
AVERAGED = {
    "pool": Case(lambda m, x: F.avg_pool2d(m.c(x), 2) * 2 + m.p, c=conv(padding=1), p=each(20)),
    "pool alone": Case(lambda m, x: F.avg_pool2d(m.c(x), (4, 3)), c=conv(bias=False)),
    "scaled": Case(
        lambda m, x: F.elu(F.avg_pool2d(1 - (m.c(x) + 2) * m.p / 3, 2)), c=conv(), p=each(20)
    ),
    "line": Case(lambda m, x: torch.tanh(F.avg_pool1d(m.c(x), 3)), 2, 3, 50, c=nn.Conv1d(3, 9, 5)),
    "groups": Case(
        lambda m, x: F.avg_pool2d(m.c(x), 2).square(),
        *(2, 16, 19, 36),
        c=nn.Conv2d(16, 24, 3, groups=2),
    ),
    "volume": Case(
        lambda m, x: F.avg_pool3d(m.c(x), (1, 2, 3)) + 1, 2, 3, 6, 9, 11, c=nn.Conv3d(3, 20, 3)
    ),
    "the stride": Case(
        lambda m, x: F.selu(F.avg_pool2d(m.c(x), 2)),
        *(2, 3, 9, 17),
        c=nn.ConvTranspose2d(3, 12, 3, **UP),
    ),
    "two strides": Case(
        lambda m, x: F.avg_pool2d(m.c(x), 4).exp(),
        *(2, 3, 9, 17),
        c=nn.ConvTranspose2d(3, 12, 5, stride=2, padding=1),
    ),
    "a stride of one": Case(
        lambda m, x: F.avg_pool2d(m.c(x), (3, 2)).exp(),
        *(2, 3, 9, 17),
        c=nn.ConvTranspose2d(3, 12, 3, padding=1),
    ),
}
# With a kernel that reads the means, over other rows than a pool's.
RISEN = nn.ConvTranspose2d(3, 20, 3, **UP)
ONWARD = {
    "least channel": Case(
        lambda m, x: torch.tanh(F.avg_pool3d(m.c(x), 2)).amin(1),
        *(2, 3, 3, 4, 9),
        c=nn.ConvTranspose3d(3, 12, 3, **UP),
    ),
    "softmax": Case(
        lambda m, x: torch.softmax(F.avg_pool2d(m.c(x), 2) * m.p, 1), c=RISEN, p=each(20)
    ),
    "norm of channels": Case(
        lambda m, x: torch.linalg.vector_norm(F.elu(F.avg_pool2d(m.c(x), (2, 4))), dim=1) + 1,
        c=RISEN,
    ),
    "the largest of a line": Case(
        lambda m, x: F.avg_pool1d(m.c(x), 2).amax(1, keepdim=True),
        *(2, 3, 50),
        c=nn.ConvTranspose1d(3, 9, 5, stride=2),
    ),
    "another tensor": Case(
        lambda m, x: torch.logsumexp(F.avg_pool2d(m.c(x), 2).relu() + m.p, 1),
        **{"c": RISEN, "p": nn.Parameter(torch.randn(19, 37))},
    ),
}
# Not where somebody else wants the means.
KEPT = {
    "returned": Case(lambda m, x: (y := F.avg_pool2d(m.c(x), 2).exp(), y.amin(1)), c=RISEN),
    "read twice": Case(
        lambda m, x: (y := F.avg_pool2d(m.c(x), 2).tanh()).amin(1).sum((1, 2)) + y.sum((1, 2, 3)),
        c=RISEN,
    ),
}
# And such as are not.
UNAVERAGED = {
    "gelu": Case(lambda m, x: F.avg_pool2d(F.gelu(m.c(x)), 2), c=conv()),
    "squares": Case(lambda m, x: F.avg_pool2d(m.c(x) * m.c(x), 2), c=conv()),
    "other at each place": Case(
        lambda m, x: F.avg_pool2d(m.c(x) + m.p, 2),
        **{"c": conv(), "p": nn.Parameter(torch.randn(17, 35))},
    ),
    "no multiple of the stride": Case(
        lambda m, x: F.avg_pool2d(m.c(x), 3).exp(),
        *(2, 3, 9, 17),
        c=nn.ConvTranspose2d(3, 12, 3, stride=2),
    ),
    "strided": Case(lambda m, x: F.avg_pool2d(m.c(x), 2).exp(), c=conv(stride=2)),
    "variance": Case(lambda m, x: torch.var(m.c(x).unflatten(3, (7, 5)), 4), c=conv()),
}


def compiled(case: Case, target: Any, train: bool = False) -> Compiled:
    module = Written(case.forward, **copy.deepcopy(case.parts)).train(train)
    problem = problem_from_module(module, (torch.randn(*case.shape),))
    return compile_problem(problem, target=target, policy=ALWAYS)


def with_nans(shape: Sequence[int]) -> torch.Tensor:
    """Some in one channel of the first sample."""
    x = torch.randn(*shape).double()
    x[0, 1].view(-1)[::53] = torch.nan
    return x


def check(made: Compiled, x: torch.Tensor, folder: Path) -> None:
    exact = copy.deepcopy(made.problem.module).double()
    made.problem.module.double()
    with torch.no_grad():
        got = conv_host.outputs_of(made, (x,), folder)
        torch.testing.assert_close(got, exact(x), rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_what_one_kernel_does(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    made = compiled(case, ONCE)
    assert [r.kind for r in made.planned.regions] == case.kinds
    check(made, torch.randn(*case.shape).double(), tmp_path)


@pytest.mark.parametrize("name", ROWS)
def test_tiles_that_hold_rows_have_no_parts(name: str) -> None:
    made = compiled(ROWS[name], ONCE)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert kernel.region.why.code is Code.CONV_ROWS and kernel.tiled.finish is None


@pytest.mark.parametrize("name", BESIDE)
def test_several_channels_of_a_tile(name: str, tmp_path: Path) -> None:
    """Its slice has all of them; nothing is made of the results before they lie there."""
    case = BESIDE[name]
    made = compiled(case, ONCE)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert kernel.region.why.code is Code.CONV_CHANNELS
    assert kernel.tile.channels >= kernel.conv.form.cout
    assert not kernel.laid.early and not kernel.laid.across and kernel.laid.keeps != "slice"
    assert kernel.largest.pool.window == (1, 1, 1)
    check(made, torch.randn(*case.shape).double(), tmp_path)


@pytest.mark.parametrize("name", APART)
def test_channels_that_no_tile_has_together(name: str, tmp_path: Path) -> None:
    case = APART[name]
    made = compiled(case, ONCE)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert kernel.region.why.code is Code.CONV_ALONE
    check(made, torch.randn(*case.shape).double(), tmp_path)


@pytest.mark.parametrize(("target", "reads"), [(ONCE, [1]), (AGAIN, [1, 2])], ids=["once", "again"])
def test_a_gate_behind_statistics(target: Any, reads: list[int], tmp_path: Path) -> None:
    """The convolution is stored with the statistics, or made again."""
    case = Case(lambda m, x: F.glu(m.n(m.c(x)), 1), c=conv(), n=nn.BatchNorm2d(20))
    made = compiled(case, target, train=True)
    kernels = [k for k in made.kernels if isinstance(k, ConvKernel)]
    assert [len(k.tiled.reads) for k in kernels] == reads
    check(made, torch.randn(*case.shape).double(), tmp_path)


@pytest.mark.parametrize("name", ["minimum", "logsumexp of a line", "groups of channels"])
def test_channels_are_reduced_where_the_sums_are(name: str) -> None:
    """Slices are for tiles in doubt: a thread has a row of them, and keeps it there."""
    made = compiled(CASES[name], ONCE)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert (kernel.laid.across, kernel.laid.lanes, kernel.laid.keeps) == (True, 1, "slice")
    assert "kAcross = true;" in made.source and "struct ConvAcross {" in made.source


@pytest.mark.parametrize(
    "name",
    [
        "softmax",  # stores elements
        "logsumexp",  # phases meet in a slice
        "every second channel",
        "every second place",
        "mean of places",
        "largest of all",
        "max pool",
    ],
)
def test_others_are_reduced_in_slices(name: str) -> None:
    made = compiled(CASES[name], ONCE)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert not kernel.laid.across and "struct ConvAcross {" not in made.source


def test_long_programs_are_not_written_out_for_each_channel() -> None:
    long = Case(lambda m, x: torch.tanh(F.mish(m.c(x))).cos().amax(1), c=conv())
    (kernel,) = (k for k in compiled(long, ONCE).kernels if isinstance(k, ConvKernel))
    assert not kernel.laid.across


def test_a_kernel_hands_over_the_largest_of_its_phases() -> None:
    """Where windows are strides of a transposed convolution, or several of these side by side."""
    for name in ("pools", "a pool of the stride"):
        (kernel,) = (k for k in compiled(CASES[name], ONCE).kernels if isinstance(k, ConvKernel))
        assert dict(kernel.tile.constants)["kPhaseMax"] == 1


def test_a_kernel_hands_over_the_largest_of_windows() -> None:
    """Which lie in the registers of a warp: any rows, and eights of neighbours."""
    for name, window in (("max pool", (1, 4, 4)), ("wide windows", (1, 6, 2))):
        (kernel,) = (k for k in compiled(CASES[name], ONCE).kernels if isinstance(k, ConvKernel))
        assert kernel.largest.pool.window == window, name


@pytest.mark.parametrize("name", AVERAGED)
def test_average_pools_are_folded_into_the_weights(name: str, tmp_path: Path) -> None:
    """The epilogue is given means, and nothing is left to sum up."""
    case = AVERAGED[name]
    made = compiled(case, ONCE)
    assert [r.kind for r in made.planned.regions] == case.kinds
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    up = kernel.conv.form.transposed
    assert kernel.region.why.code is (Code.CONV_MEAN if up else Code.CONV_FOLDED)
    assert kernel.form.mean is not None and kernel.form.mean.kernel == kernel.conv.form.kernel
    assert not kernel.program.stages and "is folded into the weights" in str(kernel.region.why)
    check(made, with_nans(case.shape), tmp_path)


@pytest.mark.parametrize("name", ONWARD)
def test_what_reads_the_means_is_in_the_epilogue_too(name: str, tmp_path: Path) -> None:
    """The library's way has both kernels, and nobody is told that a second one follows."""
    case = ONWARD[name]
    made = compiled(case, ONCE)
    (region,) = made.planned.regions
    assert region.why.code is Code.CONV_ONWARD and region.conv is not None
    assert [r.kind for r in region.conv.library] == ["contract", "rowwise", "rowwise"]
    assert Code.ROWS_DIFFER not in {r.why.code for r in made.planned.refusals}
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert kernel.form.mean is not None and len(kernel.program.stages) == len(
        region.conv.library[-1].program.stages
    )
    check(made, with_nans(case.shape), tmp_path)


@pytest.mark.parametrize("name", KEPT)
def test_means_that_others_want_are_stored(name: str, tmp_path: Path) -> None:
    case = KEPT[name]
    made = compiled(case, ONCE)
    assert made.planned.regions[0].why.code is Code.CONV_MEAN
    assert "rowwise" in [r.kind for r in made.planned.regions]
    check(made, torch.randn(*case.shape).double(), tmp_path)


@pytest.mark.parametrize("name", UNAVERAGED)
def test_others_are_given_results(name: str, tmp_path: Path) -> None:
    case = UNAVERAGED[name]
    made = compiled(case, ONCE)
    kernels = [k for k in made.kernels if isinstance(k, ConvKernel)]
    assert kernels and all(k.form == k.conv.form for k in kernels)
    check(made, torch.randn(*case.shape).double(), tmp_path)


def test_halves_have_no_folded_pools() -> None:
    """Their results are not computed again, product by product, where infinities are."""
    half = Case(
        lambda m, x: F.avg_pool2d(m.c(x), 2), c=nn.ConvTranspose2d(3, 12, 3, **UP).bfloat16()
    )
    module = Written(half.forward, **half.parts)
    problem = problem_from_module(module, (torch.randn(*SHAPE).bfloat16(),))
    made = compile_problem(problem, target=ONCE, policy=ALWAYS)
    kernels = [k for k in made.kernels if isinstance(k, ConvKernel)]
    assert kernels and all(k.form.mean is None for k in kernels)


@pytest.mark.parametrize("more", [0, 1], ids=["odd", "even"])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_windows_that_overlap(name: str, more: int, tmp_path: Path) -> None:
    """They are in the epilogue, and what reaches beyond the results sees nothing there."""
    case = OVERLAPPING[name]
    shape = (*case.shape[:2], *(n + more for n in case.shape[2:]))
    made = compiled(replaced(case, shape), ONCE)
    (region,) = made.planned.regions
    assert region.why.code is Code.CONV_OVERLAP
    check(made, with_nans(shape), tmp_path)


def test_windows_that_overlap_turn_channels_around(tmp_path: Path) -> None:
    """And where statistics come first, the convolution is made again for the windows."""
    kernels = [k for k in compiled(OVERLAPPING["norm"], ONCE).kernels if isinstance(k, ConvKernel)]
    assert [sign.buffer for k in kernels for sign in k.largest.signs] == ["n_weight"]
    made = compiled(OVERLAPPING["norm"], AGAIN, train=True)
    first, last = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert first.largest.pool.window == (1, 1, 1) and last.largest.pool.window == (1, 3, 3)
    check(made, torch.randn(*SHAPE).double(), tmp_path)


def test_a_norm_turns_channels_around() -> None:
    """max(a * x) is a * min(x) where a is negative: the kernel is told of which channels."""
    made = compiled(NORMS["group norm, pool"], AGAIN)
    *_, last = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert [sign.buffer for sign in last.largest.signs] == ["p", "n_weight"]
    assert last.largest.pool.window == (1, 4, 4)
    assert "bool turned(const Args& a, int channel)" in made.source


def test_a_scale_that_is_found_by_the_batch_turns_no_channels() -> None:
    """The kernel is told where a channel's sign stands, as a number."""
    case = Case(
        lambda m, x: F.max_pool2d(m.n(m.c(x)) * x.flatten(1)[-1, :20, None, None], 4),
        c=conv(),
        n=nn.GroupNorm(4, 20),
    )
    kernels = [k for k in compiled(case, AGAIN).kernels if isinstance(k, ConvKernel)]
    assert kernels and not any(k.largest.signs for k in kernels)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: F.max_pool2d(m.c(x) * m.p, 4),  # 0 * inf would be lost
        lambda m, x: F.max_pool2d(F.gelu(m.c(x)), 4),
        lambda m, x: F.max_pool2d(m.c(x).abs(), 4),
    ],
    ids=["a scale alone", "gelu", "magnitudes"],
)
def test_others_see_all_results(forward: Callable[..., Any]) -> None:
    made = compiled(Case(forward, c=conv(), p=each(20)), ONCE)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert kernel.largest.pool.window == (1, 1, 1)


@pytest.mark.parametrize("target", [ONCE, AGAIN], ids=["once", "again"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_store_the_result_or_make_it_again(name: str, target: Any, tmp_path: Path) -> None:
    case = NORMS[name]
    made = compiled(case, target, train=True)
    kernels = [k for k in made.kernels if isinstance(k, ConvKernel)]
    reasons = {k.region.why.code for k in kernels}
    assert reasons == {Code.CONV_AGAIN if target is AGAIN else Code.CONV_STORED}
    assert len(kernels) == (1 if target is ONCE else 3 if "mean" in name else 2)
    assert kernels[0].tiled.finish is not None
    check(made, torch.randn(*case.shape).double(), tmp_path)


@pytest.mark.parametrize("name", MEANS)
def test_means_of_norms_need_no_pass(name: str, tmp_path: Path) -> None:
    """Sums of samples or channels come from the tiles, and all else is made of those."""
    case = MEANS[name]
    made = compiled(case, ONCE, train=True)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    stored = name == "batch norm, subtracted"
    assert kernel.region.why.code is (Code.CONV_STORED if stored else Code.CONV)
    readers = [r for r in made.planned.regions if kernel.conv.product in r.reads]
    assert len(readers) == int(stored)
    # What is left around a tile's own mean is nothing but rounding: two sums a tile, not three.
    assert kernel.tiled.finish is not None
    assert (len(kernel.program.stages), len(kernel.tiled.finish.stages)) == (2, 3)
    check(made, torch.randn(*case.shape).double() + 1, tmp_path)


def test_elements_that_await_no_stage_are_stored_with_the_first() -> None:
    """So that the slice can hold what both stages need of them."""
    made = compiled(NORMS["gelu, group norm"], ONCE, train=True)
    (kernel,) = (k for k in made.kernels if isinstance(k, ConvKernel))
    assert (kernel.laid.first, kernel.laid.keeps) == (True, "slice")
    assert made.source.count("kStoresFirst = true;") == 1


def test_addresses_have_64_bits_where_a_sample_is_large() -> None:
    """From its first element 32 bits count bytes, of which these results have too many."""
    stores = ("kw::element_at(a.relu_out, at.sample", "a.relu_out + at.sample")
    for side, way in ((64, 0), (4096, 1)):
        case = Case(lambda m, x: torch.relu(m.c(x)), 1, 1, side, side, c=nn.Conv2d(1, 64, 1))
        source = compiled(case, ONCE).source
        assert [text in source for text in stores] == [way == 0, way == 1]


def test_the_variance_of_values_with_a_large_mean(tmp_path: Path) -> None:
    """Sums of squares would have no digits left: each tile is centred on its own mean."""
    case = Case(lambda m, x: m.n(m.c(x) + 3000.0), c=conv(), n=nn.InstanceNorm2d(20))
    made = compiled(case, AGAIN, train=True)
    exact = copy.deepcopy(made.problem.module).double()
    made.problem.module.double()
    x = torch.randn(*case.shape).double()
    with torch.no_grad():
        got = conv_host.outputs_of(made, (x,), tmp_path)
        torch.testing.assert_close(got, exact(x), rtol=0, atol=2e-3)
