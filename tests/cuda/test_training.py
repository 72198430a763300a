"""The generated backward on a GPU: gradients against float64, and how people use them.

Every gradient is at most twice as far from float64 as eager's own, but for a few units in the last
place; two steps give the same bits; kernels computed them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS
from kernelwright.problem import problem_from_module

CUDA = "cuda"
ULPS = 16
WIDTH, HEADS, ROWS = 128, 4, 192


class Founding(nn.Module):
    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind
        self.gemm, self.norm = nn.Linear(256, 512), nn.GroupNorm(16, 512)
        self.bias = nn.Parameter(torch.randn((1, 512, 1, 1) if kind == 0 else (512,)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.gemm(x)
        if self.kind == 0:
            return torch.min(self.norm(x), dim=1, keepdim=True)[0] + self.bias
        if self.kind == 1:
            return self.norm(F.mish(F.hardtanh(x + self.bias)))
        x = F.leaky_relu(self.norm(x + self.bias), 0.01)
        return x + x


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).split(WIDTH, dim=2)
        q, k, v = (p.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Written(nn.Module):
    """Attention in single operators."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) * WIDTH**-0.5
        return torch.softmax(scores, -1) @ self.v(x)


class Block(nn.Module):
    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.attention, self.norm = Attention(causal), nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        return x + self.outer(F.gelu(self.inner(self.norm(x)), approximate="tanh"))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.gate, self.up = (nn.Linear(WIDTH, 320, bias=False) for _ in range(2))
        self.down = nn.Linear(320, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Gpt(nn.Module):
    """With its loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block = nn.Embedding(500, WIDTH), Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 500, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.block(self.tokens(ids)))[:, :-1]
        return F.cross_entropy(self.head(x).flatten(0, 1), ids[:, 1:].flatten())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.n, self.m = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x + self.m(self.b(F.silu(self.n(self.a(x))))))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.dropout(F.gelu(self.a(x)), 0.3, self.training))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = (
            nn.Parameter(torch.randn(WIDTH, WIDTH) / 8),
            nn.Parameter(torch.randn(WIDTH)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight + self.shift) @ self.weight.t()


class Rows(nn.Module):
    """Of no product."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(x * torch.sigmoid(x) * self.scale, -1)


def line(*layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for make in layer))


MLP = line(
    lambda: nn.Linear(WIDTH, 256),
    nn.GELU,
    lambda: nn.Linear(256, 256),
    nn.SiLU,
    lambda: nn.Linear(256, 64),
)
IMAGE = (6, 16, 12, 12)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "min": (lambda: Founding(0), (ROWS, 256)),
    "mish": (lambda: Founding(1), (ROWS, 256)),
    "leaky": (lambda: Founding(2), (ROWS, 256)),
    "linear": (line(lambda: nn.Linear(WIDTH, WIDTH)), (ROWS, WIDTH)),
    "mlp": (MLP, (ROWS, WIDTH)),
    "mlp of 3-D": (MLP, (3, 70, WIDTH)),
    "layer norm": (line(lambda: nn.LayerNorm(WIDTH), nn.GELU), (ROWS, WIDTH)),
    "group norm": (line(lambda: nn.GroupNorm(4, 16), nn.SiLU), IMAGE),
    "batch norm": (
        line(lambda: nn.Linear(WIDTH, 96), lambda: nn.BatchNorm1d(96), nn.SiLU),
        (ROWS, WIDTH),
    ),
    "log softmax": (Rows, (ROWS, WIDTH)),
    "tied": (Tied, (ROWS, WIDTH)),
    "attention": (lambda: Attention(False), (3, 64, WIDTH)),
    "written attention": (Written, (3, 64, WIDTH)),
    "encoder block": (lambda: Block(False), (3, 64, WIDTH)),
    "gpt block": (Block, (3, 64, WIDTH)),
    "llama block": (Llama, (3, 64, WIDTH)),
    "gpt": (Gpt, (3, 65)),
    "strided convolution": (line(lambda: nn.Conv2d(16, 24, 3, stride=2), nn.SiLU), IMAGE),
    "pooled": (
        line(lambda: nn.Conv2d(16, 24, 3), nn.GELU, lambda: nn.MaxPool2d(2)),
        IMAGE,
    ),
    "averaged": (
        line(lambda: nn.Conv2d(16, 24, 3), nn.SiLU, lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten),
        IMAGE,
    ),
    "resnet block": (Residual, IMAGE),
    "dropout": (Dropped, (ROWS, WIDTH)),
}
WIDE = {"wide mlp": (MLP, (2048, WIDTH)), "wide founding": (lambda: Founding(1), (1024, 256))}
NARROW = ("mlp", "gpt block", "layer norm")


@dataclass
class Case:
    """A model, inputs, and its file."""

    module: nn.Module
    x: Tensor
    compiled: Compiled

    def ours(self) -> Any:
        found = self.compiled.instantiate()
        found.load_state_dict(self.module.state_dict())
        return found

    def pair(self) -> tuple[Any, nn.Module]:
        return self.ours(), copy.deepcopy(self.module)


def made(name: str) -> tuple[nn.Module, Tensor]:
    key, _, dtype = name.partition(" in ")
    make, shape = (CASES | WIDE)[key]
    torch.manual_seed(7)
    module = make().train().to(CUDA)
    if make is Gpt:
        return module, torch.randint(500, shape, device=CUDA)
    x = torch.randn(shape, device=CUDA)
    return (module.bfloat16(), x.bfloat16()) if dtype else (module, x)


NAMES = [*CASES, *WIDE, *(f"{name} in bfloat16" for name in NARROW)]
ORIGINALS = {f"{name} in bfloat16": "half precision" for name in NARROW}
ORIGINALS["resnet block"] = "autograd records something else"  # cudnn's node of a batch norm


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, extensions: Path) -> Iterator[dict[str, Case]]:
    """All that is asked for, built side by side."""
    folder = tmp_path_factory.mktemp("training")
    found, builds = {}, []
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for i, name in enumerate(NAMES):
            module, x = made(name)
            policy = replace(WHERE_IT_PAYS if name in WIDE else ALWAYS, backward=True)
            problem = problem_from_module(copy.deepcopy(module), (x,), "highest")
            compiled = compile_problem(problem, policy=policy)
            file = folder / f"case_{i}.py"
            file.write_text(compiled.source)
            found[name] = Case(module, x, compiled)
            builds.append((name, pool.submit(checking.build, file)))
    failures = {name: text[-2000:] for name, done in builds if (text := done.result())}
    assert not failures, failures
    yield found


def cotangent(y: Tensor) -> Tensor:
    generator = torch.Generator(CUDA).manual_seed(5)
    return torch.randn(y.shape, generator=generator, device=CUDA, dtype=torch.float32)


def gradients(module: nn.Module, x: Tensor, seed: int = 3) -> list[Tensor]:
    """The results of a step, then the gradients of the input and of all parameters."""
    module.zero_grad(set_to_none=True)
    x = x.detach().clone()
    if x.is_floating_point():
        x.requires_grad_()
    torch.manual_seed(seed)
    y = module(x)
    torch.manual_seed(seed + 1)
    y.backward(cotangent(y).to(y.dtype))
    found = [y.detach(), *([x.grad] if x.grad is not None else [])]
    return [*found, *(p.grad for p in module.parameters() if p.grad is not None)]


def check(case: Case, x: Tensor) -> None:
    ours, eager = case.pair()
    mine, theirs = gradients(ours, x), gradients(eager, x)
    assert ours.backwards["kernels"] == 1 and len(ours.backwards) == 1, dict(ours.backwards)
    assert not ours.fallbacks, dict(ours.fallbacks)
    again = gradients(ours, x)
    steady = all(map(torch.equal, theirs, gradients(eager, x)))  # cuDNN may add up by atomics
    assert not steady or all(map(torch.equal, mine, again)), "other bits"
    truth = theirs
    if not isinstance(eager, Dropped):
        wide = copy.deepcopy(case.module).double()
        truth = gradients(wide, x.double() if x.is_floating_point() else x)
    assert len(mine) == len(theirs) == len(truth)
    for i, (a, b, c) in enumerate(zip(mine, theirs, truth, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype
        c = c.double()
        error, own = ((t.double() - c).abs().max().item() for t in (a, b))
        unit = torch.finfo(a.dtype).eps * c.abs().max().item()
        loose = 64 if isinstance(eager, Dropped) else ULPS
        assert error <= 2 * own + loose * unit, f"{i}: {error:.3g}, eager {own:.3g}, {unit:.3g}"


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_backward_that_stays_the_originals(cases: dict[str, Case], name: str) -> None:
    """For a reason that is told; gradients are eager's own."""
    case = cases[name]
    assert ORIGINALS[name] in (case.compiled.untrained or "")
    ours, eager = case.pair()
    for mine, theirs in zip(gradients(ours, case.x), gradients(eager, case.x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.1 * float(theirs.abs().max()))
    assert not ours.fallbacks, dict(ours.fallbacks)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ORIGINALS])
def test_gradients(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    assert case.compiled.trained is not None, case.compiled.untrained
    check(case, case.x)


@pytest.mark.parametrize("name", ["mlp", "mish", "gpt block", "layer norm"])
def test_another_batch(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    check(case, torch.cat([case.x, case.x[:2] * 0.5]))
    check(case, case.x[:2])


@pytest.fixture
def plain(cases: dict[str, Case]) -> tuple[Any, nn.Module]:
    return cases["mlp"].pair()


def leaf(rows: int = ROWS) -> Tensor:
    torch.manual_seed(rows)
    return torch.randn(rows, WIDTH, device=CUDA, requires_grad=True)


def compared(pair: tuple[Any, nn.Module], action: Callable[[Any, Tensor], Any]) -> None:
    found = []
    for module in pair:
        module.zero_grad(set_to_none=True)
        x = leaf()
        result = action(module, x)
        grads = [x.grad, *(p.grad for p in module.parameters())]
        found.append([*(result if isinstance(result, tuple | list) else []), *grads])
    for mine, other in zip(*found, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            scale = max(other.abs().max().item(), 1e-6)
            assert mine.stride() == other.stride()
            torch.testing.assert_close(mine, other, rtol=0, atol=2e-5 * scale)


def test_cotangents_of_all_kinds(plain: Any) -> None:
    def expanded(module: Any, x: Tensor) -> None:
        module(x).sum().backward()

    def transposed(module: Any, x: Tensor) -> None:
        y = module(x)
        y.backward(torch.linspace(-1, 1, y.numel(), device=CUDA).reshape(64, -1).t())

    def askew(module: Any, x: Tensor) -> None:
        y = module(x)
        memory = torch.linspace(-1, 1, y.numel() + 1, device=CUDA)
        y.backward(memory[1:].view(y.shape))

    for action in (expanded, transposed, askew):
        compared(plain, action)
    assert plain[0].backwards == {"kernels": 3}


def test_what_is_not_wanted(plain: Any) -> None:
    def partly(module: Any, x: Tensor) -> Any:
        return torch.autograd.grad(module(x).square().sum(), [module[0].weight, module[4].bias])

    def inputs_alone(module: Any, x: Tensor) -> Any:
        return torch.autograd.grad(module(x).square().sum(), [x])

    def frozen(module: Any, x: Tensor) -> None:
        module[2].requires_grad_(False)
        module(x.detach()).square().sum().backward()
        module[2].requires_grad_(True)

    def no_input(module: Any, x: Tensor) -> None:
        module(x.detach()).square().sum().backward()

    for action in (partly, inputs_alone, frozen, no_input):
        compared(plain, action)
    assert plain[0].backwards == {"kernels": 4}


def test_accumulated_and_retained(plain: Any) -> None:
    def action(module: Any, x: Tensor) -> None:
        loss = module(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        module(x * 2).square().mean().backward()

    compared(plain, action)
    assert plain[0].backwards == {"kernels": 3}


def test_a_weight_that_was_changed(plain: Any) -> None:
    for module in plain:
        loss = module(leaf()).square().sum()
        with torch.no_grad():
            module[4].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        loss = module(leaf()).square().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_second_derivatives(plain: Any) -> None:
    def twice(module: Any, x: Tensor) -> Any:
        (first,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, module[0].weight])

    compared(plain, twice)
    assert plain[0].backwards["the gradients are to be differentiated"] == 1


def test_on_a_stream_of_its_own(plain: Any) -> None:
    stream = torch.cuda.Stream()
    found = []
    for module in plain:
        module.zero_grad(set_to_none=True)
        x = leaf()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            module(x).square().mean().backward()
        torch.cuda.current_stream().wait_stream(stream)
        found.append([p.grad.clone() for p in module.parameters()])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_torch_set_to_another_precision(plain: Any) -> None:
    """Products run at the precision that the file was compiled for, backward too."""
    ours, _ = plain
    before = gradients(ours, leaf().detach())
    torch.set_float32_matmul_precision("high")
    try:
        after = gradients(ours, leaf().detach())
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_frozen_halves_of_weights(cases: dict[str, Case]) -> None:
    ours, eager = cases["wide mlp"].pair()
    if hasattr(ours, "freeze"):
        ours.freeze()
    x = cases["wide mlp"].x
    ours_are, theirs = gradients(ours, x), gradients(eager, x)
    for a, b in zip(ours_are, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * b.abs().max().item())


def test_twenty_steps_of_adamw(plain: Any) -> None:
    losses: list[list[float]] = []
    for module in plain:
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.001)
        x, own = leaf().detach(), []
        for _ in range(20):
            optimizer.zero_grad(set_to_none=True)
            loss = (module(x) - x[:, :64]).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            own.append(loss.item())
        losses.append(own)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert plain[0].backwards == {"kernels": 20}
