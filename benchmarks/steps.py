"""A training step: eager, torch.compile and ours in turns, with the peak of memory.

    PYTHONPATH=src python3 benchmarks/steps.py

A step is zero_grad(set_to_none), forward, loss and backward. Each case has a process of its own,
which compiles and builds beside the others and then waits for its turn to measure alone. The table
has milliseconds of the GPU (it is kept busy until the host has queued the step), those of a step
that is waited for, and the most memory that a step takes besides weights and inputs.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import SETTINGS, arguments, published
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.pipeline import compile_problem
from kernelwright.plan import WHERE_IT_PAYS
from kernelwright.problem import problem_from_module, resolve_device

ROUNDS, WARMUPS, LEAD_CYCLES = 15, 3, 30_000_000
READY_SECONDS = 300.0
WAYS = ("eager", "torch.compile", "ours")
COLUMNS = ("model", "precision", "of the input", *(f"{w}, ms" for w in WAYS), "over eager",
           "over compile", *(f"{w}, waited" for w in WAYS), *(f"{w}, MiB" for w in WAYS),
           "worst error over eager's")  # fmt: skip


class Founding(nn.Module):
    def __init__(self, kind: int, size: int) -> None:
        super().__init__()
        self.kind = kind
        self.gemm, self.norm = nn.Linear(size, size), nn.GroupNorm(size // 16, size)
        self.bias = nn.Parameter(torch.randn((1, size, 1, 1) if kind == 0 else (size,)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.gemm(x)
        if self.kind == 0:
            return torch.min(self.norm(x), dim=1, keepdim=True)[0] + self.bias
        if self.kind == 1:
            return self.norm(F.mish(F.hardtanh(x + self.bias)))
        x = F.leaky_relu(self.norm(x), 0.01)
        return x + x


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split(x.shape[2], dim=2)
        q, k, v = (p.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.outer(F.gelu(self.inner(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, tokens: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(width, heads, True, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, 2816) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Vit(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.places = nn.Parameter(torch.randn(1, 196, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def mlp(width: int, inner: int) -> nn.Module:
    layers = [m for _ in range(2) for m in (nn.Linear(width, inner), nn.GELU(),
              nn.Linear(inner, width), nn.LayerNorm(width))]  # fmt: skip
    return nn.Sequential(*layers)


def encoder(layers: int, width: int, heads: int) -> nn.Module:
    return nn.Sequential(*(Block(width, heads, False) for _ in range(layers)))


@dataclass(frozen=True)
class Case:
    """A model, the shapes of its inputs (words: ids of so many, twice), and its precisions."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: int = 0
    precisions: tuple[str, ...] = ("highest",)
    of_input: tuple[bool, ...] = (False,)


BOTH = (False, True)
CASES = {
    "min": Case(lambda: Founding(0, 8192), (1024, 8192), of_input=BOTH),
    "mish": Case(lambda: Founding(1, 8192), (1024, 8192), of_input=BOTH),
    "leaky": Case(lambda: Founding(2, 8192), (1024, 8192), of_input=BOTH),
    "mlp 1024": Case(lambda: mlp(1024, 4096), (4096, 1024)),
    "encoder 6x512": Case(lambda: encoder(6, 512, 8), (8, 128, 512)),
    "gpt 6x384": Case(
        lambda: Gpt(6, 384, 6, 256, 65), (64, 256), 65, precisions=("highest", "bfloat16")
    ),
    "llama 8x1024": Case(lambda: Llama(8, 1024, 16, 4096), (4, 512), 4096),
    "vit 6x768": Case(lambda: Vit(6, 768, 12), (16, 3, 224, 224)),
}


# ---- one case, in a process of its own ----------------------------------------------------------


def inputs_of(case: Case, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    if case.words:
        return tuple(torch.randint(case.words, case.shape, device=device) for _ in range(2))
    return (torch.randn(case.shape, device=device, dtype=dtype),)


def step(call: Any, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    module.zero_grad(set_to_none=True)
    for x in inputs:
        x.grad = None
    y = call(*inputs)
    loss = y if y.ndim == 0 else y.float().square().mean()
    loss.backward()
    return loss


class Measured:
    """The three ways of one case: module, what is called, inputs."""

    def __init__(self, name: str, precision: str, device: torch.device) -> None:
        self.name, self.precision, self.case = name, precision, CASES[name]
        self.device, setting = device, SETTINGS[precision]
        torch.set_float32_matmul_precision(setting.matmul)
        torch.manual_seed(0)
        self.module = self.case.make().train().to(device, setting.dtype)
        self.inputs = inputs_of(self.case, device, setting.dtype)
        problem = problem_from_module(copy.deepcopy(self.module), self.inputs, setting.matmul)
        began = time.perf_counter()
        compiled = compile_problem(problem, policy=replace(WHERE_IT_PAYS, backward=True))
        self.seconds = time.perf_counter() - began
        self.untrained = compiled.untrained
        self.lines = len(compiled.source.splitlines())
        self.ours: Any = compiled.instantiate()
        self.ours.load_state_dict(self.module.state_dict())
        fast = copy.deepcopy(self.module)
        self.ways = {
            "eager": (self.module, self.module),
            "torch.compile": (fast, torch.compile(fast, dynamic=False)),
            "ours": (self.ours, self.ours),
        }

    def run(self, way: str) -> Tensor:
        module, call = self.ways[way]
        return step(call, module, self.inputs)

    def prepare(self) -> None:
        for asks in self.case.of_input:
            self.ask(asks)
            for way in WAYS:
                self.run(way)

    def ask(self, asks: bool) -> None:
        for x in self.inputs:
            if x.is_floating_point():
                x.requires_grad_(asks)

    def measured(self, asks: bool) -> dict[str, Any]:
        self.ask(asks)
        for _ in range(WARMUPS):
            for way in WAYS:
                self.run(way)
        found = {"gpu_ms": self.times(busy=True), "waited_ms": self.times(busy=False)}
        return {
            **{"model": self.name, "precision": self.precision, "of_input": asks},
            **found,
            "mib": {way: self.peak(way) for way in WAYS},
            "error_over_eager": self.error(),
            "backwards": dict(getattr(self.ours, "backwards", {})),
            "fallbacks": dict(getattr(self.ours, "fallbacks", {})),
            **{"untrained": self.untrained, "compile_s": self.seconds, "lines": self.lines},
        }

    def times(self, busy: bool) -> dict[str, float]:
        """Medians over rounds; `busy`: the GPU has work until the host has queued the step."""
        readings: dict[str, list[float]] = {way: [] for way in WAYS}
        for k in range(ROUNDS):
            for way in (*WAYS[k % 3 :], *WAYS[: k % 3]):
                readings[way].append(self.one(way, busy))
        return {way: statistics.median(of) for way, of in readings.items()}

    def one(self, way: str, busy: bool) -> float:
        if self.device.type == "cpu":
            began = time.perf_counter()
            self.run(way)
            return 1e3 * (time.perf_counter() - began)
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if busy:
            torch.cuda._sleep(LEAD_CYCLES)
            begin.record()
            self.run(way)
            end.record()
            torch.cuda.synchronize()
            return begin.elapsed_time(end)
        began = time.perf_counter()
        self.run(way)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began)

    def peak(self, way: str) -> float:
        """MiB that a step takes at most, gradients included."""
        if self.device.type == "cpu":
            return math.nan
        for module, _ in self.ways.values():
            module.zero_grad(set_to_none=True)
        for x in self.inputs:
            x.grad = None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.run(way)
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def error(self) -> float:
        """The largest error of a gradient against float64, over eager's own (and an ulp)."""
        wide = copy.deepcopy(self.module).double()
        inputs = tuple(
            x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
            for x in self.inputs
        )
        step(wide, wide, inputs)
        found = {}
        for way in ("eager", "ours"):
            self.run(way)
            module = self.ways[way][0]
            pairs = [*zip(module.parameters(), wide.parameters(), strict=True)]
            pairs += [*zip(self.inputs, inputs, strict=True)]
            found[way] = [
                ((a.grad.double() - b.grad).abs().max() / b.grad.abs().max()).item()
                for a, b in pairs
                if b.grad is not None
            ]
        unit = torch.finfo(self.module.parameters().__next__().dtype).eps
        return max(a / (b + unit) for a, b in zip(found["ours"], found["eager"], strict=True))


def child(name: str, precision: str, device: torch.device) -> None:
    """Says `ready`, waits for a line, and answers with the figures as JSON."""
    try:
        measured = Measured(name, precision, device)
        measured.prepare()
        print("ready", flush=True)
        sys.stdin.readline()
        rows = [measured.measured(asks) for asks in measured.case.of_input]
        print(json.dumps(rows), flush=True)
    except Exception as error:  # of one case; the others go on
        text = f"{type(error).__name__}: {error}"[:1500]
        print(json.dumps({"failed": text}), flush=True)
        raise


# ---- all of them --------------------------------------------------------------------------------


def cells(row: dict[str, Any]) -> list[str]:
    ms, waited, mib = row["gpu_ms"], row["waited_ms"], row["mib"]
    ours = ms["ours"]
    return [
        *(row["model"], row["precision"], "yes" if row["of_input"] else "no"),
        *(f"{ms[w]:.2f}" for w in WAYS),
        *(f"{ms[w] / ours:.2f}" for w in WAYS[:2]),
        *(f"{waited[w]:.2f}" for w in WAYS),
        *(f"{mib[w]:.0f}" for w in WAYS),
        f"{row['error_over_eager']:.2f}",
    ]


def answered(process: Any, seconds: float) -> str:
    """The next line that a case says, or nothing in time."""
    ready, _, _ = select.select([process.stdout], [], [], max(seconds, 0.0))
    return process.stdout.readline().strip() if ready else ""


def main() -> None:
    parser = arguments(__doc__, "steps", ["highest", "bfloat16"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--wait", type=float, default=READY_SECONDS)
    options = parser.parse_args()
    device = resolve_device(options.device)
    if options.child:
        child(options.child, options.precisions[0], device)
        return
    command = [sys.executable, str(Path(__file__)), "--device", str(device.type)]
    processes = {}
    for name in options.cases:
        for precision in CASES[name].precisions:
            if precision in options.precisions:
                of = [*command, "--child", name, "--precisions", precision]
                processes[name, precision] = subprocess.Popen(
                    of, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
    until = time.monotonic() + options.wait
    sheet = Sheet("A training step: zero_grad, forward, loss, backward", COLUMNS, left=3)
    waiting, failed = {}, []
    try:
        for key, process in processes.items():
            said = answered(process, until - time.monotonic())
            if said == "ready":
                waiting[key] = process
            else:
                failed.append((key, said or "was not ready in time"))
                process.kill()
        with published(options, device, "Training", sheet) as save:
            for key, process in waiting.items():
                process.stdin.write("go\n")
                process.stdin.flush()
                said = json.loads(answered(process, 60.0) or '{"failed": "took too long"}')
                if isinstance(said, dict):
                    failed.append((key, said["failed"]))
                    continue
                for row in said:
                    sheet.add(cells(row), row)
                    print(key, row["backwards"], row["fallbacks"], row["untrained"], flush=True)
                save()
    finally:
        for process in processes.values():
            process.kill()
    for key, why in failed:
        print(f"FAILED {key}: {why}")


if __name__ == "__main__":
    main()
