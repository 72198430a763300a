"""Live dropout for a GPU: a mask that is drawn, and a product with it that is fused anywhere."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn
from written import Written

from kernelwright import dropout
from kernelwright.graph import Call
from kernelwright.lower import ConvKernel, GemmKernel
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.plan.reasons import Code
from kernelwright.problem import load_problem, problem_from_module
from kernelwright.runtime.dropout import KeepMask

CHAIN = Path(__file__).parents[2] / "benchmarks" / "corpus" / "conv2d_dropout_relu_max_pool.py"
Forward = Callable[..., object]


def planned(forward: Forward, x: Tensor, target: str = "cuda", **parts: nn.Module) -> Compiled:
    module = Written(forward, **parts)
    return compile_problem(problem_from_module(module, (x,)), target=target, policy=ALWAYS)


def masks(compiled: Compiled) -> list[str]:
    return [r.name for r in compiled.planned.regions if dropout.is_mask(r.call)]


def fates(compiled: Compiled) -> set[str]:
    return {row.fate for row in compiled.ledger if row.op == "dropout"}


def test_the_chain_of_the_corpus_is_a_mask_a_convolution_and_windows_of_both() -> None:
    """An epilogue would wait for the mask: the convolution is stored, with the reason."""
    compiled = compile_problem(load_problem(CHAIN, "cpu"), target="sm_90")
    convolution, mask, windows = compiled.planned.regions
    assert dropout.is_mask(mask.call) and convolution.conv is not None
    assert windows.outputs[0].name == "pool" and mask.name in windows.reads
    assert sum(isinstance(k, ConvKernel) for k in compiled.kernels) == 1
    assert any(r.why.code is Code.WAITS for r in compiled.planned.refusals)
    rows = [row for row in compiled.ledger if row.op == "dropout"]
    assert [row.where for row in rows] == ["dropout_mask", windows.name]
    assert fates(compiled) == {"fused"} and "eager's dropout" in rows[0].why
    assert "native_dropout(alike" in compiled.source  # what a captured graph gets
    assert "launch_dropout_mask" in compiled.source


def with_linear(m: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(m.linear(x), 0.3).sigmoid()


def residual(m: nn.Module, x: Tensor) -> Tensor:
    return F.layer_norm(x + F.dropout(m.linear(x.relu()), 0.1), (x.shape[1],))


def twice(m: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(F.dropout(m.linear(x), 0.5).exp(), 0.2).sum(1)


def crossed(m: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The second mask is needed first: the kernel that it is for stores what the product reads."""
    y = m.linear(x).relu()
    return F.dropout(m.linear(y), 0.4), F.dropout(y, 0.6), y.sum(1)


def beside_another(m: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The mask could be drawn before the softmax is there, but alpha_dropout comes first."""
    y = m.linear(x).softmax(1)
    return F.alpha_dropout(y, 0.5, True).exp(), F.dropout(y, 0.3).amax(1)


def flattened(m: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(m.linear(x).view(-1, 4, 8), 0.25).amax(2)


def copied(m: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(m.linear(x).exp().t().contiguous(), 0.5).sigmoid()


def with_its_mask(m: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.native_dropout(m.linear(x), 0.3, True))


@pytest.mark.parametrize(
    "forward", [with_linear, residual, twice, crossed, beside_another, flattened, copied]
)
@pytest.mark.parametrize("target", ["sm_90", "sm_80"])
def test_values_are_those_of_eager_under_the_same_seed(forward: Forward, target: str) -> None:
    """On the CPU the operator of the mask draws what eager's dropout does there."""
    x = torch.randn(33, 32)
    compiled = planned(forward, x, target=target, linear=nn.Linear(32, 32))
    assert masks(compiled) and fates(compiled) == {"fused"}
    module, x = copy.deepcopy(compiled.problem.module).double(), x.double()
    with torch.no_grad():
        torch.manual_seed(3)
        exact, after = module(x), torch.rand(3)
        torch.manual_seed(3)
        torch.testing.assert_close(run_plan(compiled.planned, module, (x,)), exact)
        assert torch.equal(torch.rand(3), after)


def test_masks_are_drawn_in_the_order_of_the_model() -> None:
    compiled = planned(crossed, torch.randn(33, 32), linear=nn.Linear(32, 32))
    calls = [(n.name, n.payload) for n in compiled.primitives if isinstance(n.payload, Call)]
    in_order = [name for name, call in calls if dropout.is_mask(call)]
    assert masks(compiled) == in_order and len(in_order) == 2


def test_the_epilogue_of_a_product_multiplies_by_the_mask() -> None:
    compiled = planned(with_linear, torch.randn(512, 256), linear=nn.Linear(256, 256))
    (kernel,) = [k for k in compiled.kernels if isinstance(k, GemmKernel)]
    assert masks(compiled)[0] in kernel.reads


def test_the_mask_itself_may_be_asked_for() -> None:
    compiled = planned(with_its_mask, torch.randn(33, 32), linear=nn.Linear(32, 32))
    assert len(masks(compiled)) == 1


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: F.dropout(x, 0.5).exp(),
        lambda m, x: F.dropout(m.linear(x)[:, 1:], 0.5).exp(),
        lambda m, x: F.dropout(m.linear(x).t(), 0.5).exp(),
        lambda m, x: F.dropout(m.linear(x).t().exp(), 0.5).exp(),
        lambda m, x: F.dropout(m.linear(x).double(), 0.5).float().exp(),
        lambda m, x: F.alpha_dropout(m.linear(x), 0.5, True).exp(),
    ],
    ids=["an input", "a slice", "a transpose", "its order", "float64", "another operator"],
)
def test_what_does_not_lie_as_expected_stays_with_aten(forward: Forward) -> None:
    compiled = planned(forward, torch.randn(33, 32), linear=nn.Linear(32, 32))
    assert not masks(compiled)


def test_the_call_of_aten_gets_the_order_of_eagers_operand() -> None:
    """A kernel would store it row by row, and the call draw for other elements."""
    compiled = planned(lambda m, x: F.dropout(x.t().exp(), 0.5).sum(1), torch.randn(33, 32))
    assert compiled.captured.contract.placed == {"native_dropout": ((1, 32),)}
    (call,) = (n for n in compiled.primitives if n.origin.op == "dropout" and n.op == "opaque")
    (operand,) = call.inputs
    stored = compiled.primitives[compiled.primitives.base(operand)]
    assert stored.op == "map" and stored.name != operand


def test_on_the_cpu_dropout_stays_with_aten() -> None:
    compiled = planned(with_linear, torch.randn(33, 32), target="cpu", linear=nn.Linear(32, 32))
    assert not masks(compiled) and fates(compiled) == {"aten"}
    assert "KeepMask" not in compiled.source


class Generator:
    """A generator of the GPU, as far as a mask asks it."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def initial_seed(self) -> int:
        return 2**63 + 5

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


@pytest.mark.parametrize(
    ("dtype", "count", "vec"),
    [
        (torch.float32, 1 << 22, 4),
        (torch.float16, 1 << 22, 8),
        (torch.bfloat16, 3 * 2**20 + 4, 4),
        (torch.float32, 10_000_002, 2),
        (torch.float16, 10_000_001, 1),
        (torch.float32, 1, 1),
    ],
)
def test_a_mask_takes_its_numbers_from_the_generator(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, count: int, vec: int
) -> None:
    """And leaves it where ATen's launch of so many threads would."""
    chip = SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    generator, launched = Generator(40), []
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    library = SimpleNamespace(launch=lambda *given: launched.append(given))
    mask = KeepMask(library, torch.device("cuda", 0), (count,), dtype, 0.2)
    monkeypatch.setattr(mask, "empty", lambda: None)
    mask.by_kernel()
    grid = min(-(-count // 256), 132 * 8)
    assert generator.offset == 40 + ((count - 1) // (256 * grid * 4) + 1) * 4
    keep = struct.unpack("I", struct.pack("f", 1.0 - 0.2))[0]
    ((name, _, _, *numbers),) = launched
    assert name == dropout.KERNEL
    signed = 2**63 + 5 - 2**64  # as C takes it
    assert numbers == [signed, 10, count, grid, keep, vec]


def test_scales_are_rounded_as_aten_rounds_them() -> None:
    for rate in (0.1, 0.2, 0.3, 0.5, 0.9):
        keep, scale = dropout.keep_and_scale(rate)
        assert keep == torch.tensor(1.0 - rate, dtype=torch.float32).item()
        assert scale == torch.tensor(1.0 / keep, dtype=torch.float64).float().item()
