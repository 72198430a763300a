"""A whole training step, from zero_grad to backward; eager, torch.compile and ours in turns.

    PYTHONPATH=src python3 benchmarks/training.py --sizes small --only mlp gpt
    PYTHONPATH=src python3 benchmarks/training.py --sizes full --only founding_min gpt llama vit

The three founding models (their inputs ask for gradients too), an MLP, a GPT, a Llama, a ViT and an
encoder, all float32 in train mode; small sizes are for a CPU. A figure is the median of the steps
in `--seconds`, the variants one after the other; the memory is the peak of a step beyond what lay
there before it, on a GPU. `by` says how often the generated backward ran, and why else it did not.
With `--prepare` everything is compiled and nothing timed, which may run beside other things.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from measuring import HERE, published
from sheet import Sheet
from torch import Tensor, nn

import kernelwright

COLUMNS = ("model", "eager", "torch.compile", "ours", "over eager", "over the best", "MiB", "by")
WAYS = ("eager", "compile", "ours")
MIB = 1 << 20


class Founding(nn.Module):
    """A Linear and a GroupNorm with what follows it in one of the founding models."""

    def __init__(self, tail: str, width: int, groups: int) -> None:
        super().__init__()
        self.tail, self.gemm = tail, nn.Linear(width, width)
        self.norm = nn.GroupNorm(groups, width)
        self.bias = nn.Parameter(torch.randn((1, width, 1, 1) if tail == "min" else width))

    def forward(self, x: Tensor) -> Tensor:
        if self.tail == "min":
            return torch.min(self.norm(self.gemm(x)), 1, keepdim=True)[0] + self.bias
        if self.tail == "mish":
            return self.norm(F.mish(F.hardtanh(self.gemm(x) + self.bias)))
        y = F.leaky_relu(self.norm(self.gemm(x)), 0.01)
        return y + y


class Block(nn.Module):
    """Attention and a feed-forward part: a decoder's of GPT's kind, of Llama's, or an encoder's."""

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        self.gated, inner = kind == "llama", (8 * width // 3) // 32 * 32 or 32
        self.before, self.between = self.norm(width), self.norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=not self.gated)
        self.proj = nn.Linear(width, width, bias=not self.gated)
        self.up = nn.Linear(width, 2 * inner if self.gated else 4 * width, bias=not self.gated)
        self.down = nn.Linear(inner if self.gated else 4 * width, width, bias=not self.gated)

    def norm(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, 1e-6) if self.kind == "llama" else nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.kind != "encoder")
        x = x + self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        h = self.up(self.between(x))
        if self.gated:
            gate, h = h.chunk(2, -1)
            return x + self.down(F.silu(gate) * h)
        return x + self.down(F.gelu(h))


class Transformer(nn.Module):
    """Blocks over tokens, or over patches of images; with words, the cross entropy of the next."""

    def __init__(
        self, kind: str, layers: int, width: int, heads: int, words: int, patch: int
    ) -> None:
        super().__init__()
        self.words, self.patch = words, patch
        self.embed = nn.Embedding(words, width) if words else nn.Linear(3 * patch * patch, width)
        self.blocks = nn.Sequential(*(Block(width, heads, kind) for _ in range(layers)))
        self.head = nn.Linear(width, words or 10)

    def forward(self, x: Tensor) -> Tensor:
        if not self.words:
            patches = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
            return self.head(self.blocks(self.embed(patches)).mean(1))
        y = self.head(self.blocks(self.embed(x[:, :-1])))
        return F.cross_entropy(y.flatten(0, 1), x[:, 1:].flatten())


def founding(tail: str) -> Callable[[bool], tuple[nn.Module, Tensor]]:
    def made(full: bool) -> tuple[nn.Module, Tensor]:
        rows, width, groups = (1024, 8192, 512) if full else (128, 256, 16)
        return Founding(tail, width, groups), torch.rand(rows, width).requires_grad_()

    return made


def mlp(full: bool) -> tuple[nn.Module, Tensor]:
    rows, width = (4096, 4096) if full else (128, 512)
    layers = [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)] * 3
    return nn.Sequential(*map(copy.deepcopy, layers), nn.Linear(width, 64)), torch.randn(
        rows, width
    )


def words(kind: str, *sizes: int) -> Callable[[bool], tuple[nn.Module, Tensor]]:
    layers, width, heads, count, batch, tokens = sizes

    def made(full: bool) -> tuple[nn.Module, Tensor]:
        if full:
            net = Transformer(kind, layers, width, heads, count, 0)
            return net, torch.randint(0, count, (batch, tokens + 1))
        return Transformer(kind, 2, 128, 4, 512, 0), torch.randint(0, 512, (4, 65))

    return made


def vit(full: bool) -> tuple[nn.Module, Tensor]:
    if full:
        return Transformer("encoder", 12, 768, 12, 0, 16), torch.randn(16, 3, 224, 224)
    return Transformer("encoder", 2, 128, 4, 0, 8), torch.randn(4, 3, 64, 64)


MODELS: dict[str, Callable[[bool], tuple[nn.Module, Tensor]]] = {
    "founding_min": founding("min"),
    "founding_mish": founding("mish"),
    "founding_leaky": founding("leaky"),
    "mlp": mlp,
    "gpt": words("gpt", 6, 384, 6, 65, 64, 256),
    "llama": words("llama", 8, 1024, 16, 8192, 4, 512),
    "vit": vit,
    "encoder": words("encoder", 6, 512, 8, 8192, 16, 128),
}


class Step:
    """A training step of one variant, on a copy of the model."""

    def __init__(self, way: str, module: nn.Module, x: Tensor) -> None:
        self.module, self.x = copy.deepcopy(module), x
        if way == "ours":
            self.module = kernelwright.optimize(self.module, (x,), train=True)
        self.call = torch.compile(self.module) if way == "compile" else self.module
        self.cotangent = torch.randn_like(self.module(x).detach())

    def __call__(self) -> None:
        self.module.zero_grad(set_to_none=True)
        self.x.grad = None
        (self.call(self.x) * self.cotangent).sum().backward()


def timed(step: Step, device: torch.device) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)
    begin = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - begin)


def peak(step: Step, device: torch.device) -> float:
    """MiB of a step beyond those before it; nobody counts them on a CPU."""
    if device.type != "cuda":
        return 0.0
    step.module.zero_grad(set_to_none=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def measured(name: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    module, x = MODELS[name](options.sizes == "full")
    module, x = module.to(device), x.detach().to(device).requires_grad_(x.requires_grad)
    torch.compiler.reset()
    steps = {way: Step(way, module, x) for way in WAYS}
    for step in steps.values():
        for _ in range(3):
            step()
    memory = {way: peak(step, device) for way, step in steps.items()}
    readings: dict[str, list[float]] = {way: [] for way in WAYS}
    end = time.perf_counter() + (0 if options.prepare else options.seconds)
    while time.perf_counter() < end:
        for way, step in steps.items():
            readings[way].append(timed(step, device))
    times = {way: statistics.median(values or [1.0]) for way, values in readings.items()}
    ours: Any = steps["ours"].module
    assert not ours.fallbacks, f"{name} ran the original: {dict(ours.fallbacks)}"
    ran = dict(getattr(ours, "backwards", {"none was generated": 0}))
    return {"model": name, **times, "memory": memory, "by": ran}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", choices=("small", "full"), default="small")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", metavar="DIR", default=str(HERE / "results"))
    parser.add_argument("--name", default="training")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(options.device)
    sheet = Sheet(f"A training step, float32, {options.sizes} sizes, ms", COLUMNS)
    if options.prepare:
        for name in options.only:
            print(name, measured(name, options, device)["by"], flush=True)
        return
    with published(options, device, "Training steps", sheet):
        for name in options.only:
            found = measured(name, options, device)
            times = [found[way] for way in WAYS]
            overs = times[0] / times[2], min(times[:2]) / times[2]
            memory = " / ".join(f"{found['memory'][way]:.0f}" for way in WAYS)
            cells = [name, *(f"{t:.3f}" for t in times), *(f"{o:.2f}x" for o in overs), memory]
            sheet.add([*cells, str(found["by"])], {**found, "over": overs})
        overs = [record["over"] for record in sheet.record]
        means = [statistics.geometric_mean(column) for column in zip(*overs, strict=True)]
        cells = ["geometric mean", "", "", "", *(f"{mean:.2f}x" for mean in means), "", ""]
        sheet.add(cells, {"geometric_mean": means})


if __name__ == "__main__":
    main()
