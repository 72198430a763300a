"""Convolutions are run on the device, to see what eager is accurate to there.

In: the captured graph, its primitives and the Problem. Out: for each convolution of the primitives
its Accuracy. PyTorch allows TF32 in float32 convolutions, but the library decides by shape whether
it takes it, and the contract is eager's own error. So each convolution is run, as eager runs it, on
random numbers, beside a float64 convolution of two samples; the figures are kept by shape, device
and version. The batch is free and the library chooses by it too, so several are tried. Without a
GPU nothing is measured, and float32's accuracy is owed.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright import cache
from kernelwright.accuracy import UNKNOWN, Accuracies, Accuracy, is_tf32
from kernelwright.errors import InputError
from kernelwright.fakes import CHANNELS_LAST
from kernelwright.graph import Call, Contraction, Graph, Node, hint
from kernelwright.interpret import resolve
from kernelwright.notebook import Notebook
from kernelwright.problem import Problem

SAMPLES = 2
BATCHES = (1, 2, 5, 16)
NOTEBOOK = Notebook(cache.accuracies_file, "accuracies", format=1)


def measure(captured: Graph, primitives: Graph, problem: Problem) -> Accuracies:
    """The accuracy of each float32 convolution, by the name of its contraction."""
    if problem.device.type != "cuda" or not problem.conv_tf32 or not torch.cuda.is_available():
        return {}
    batches = tuple(sorted({problem.batch, *(b for b in BATCHES if b < problem.batch)}))
    ask = _Asking(problem.device, batches)
    found: dict[str, Accuracy] = {}
    for node in primitives:
        if not _convolves(node):
            continue
        written = [captured[s] for s in node.sources if s in captured.by_name]
        eager = [ask.errors(captured, w, None) for w in written if is_convolution(w)]
        order = CHANNELS_LAST.get(len(node.type.shape))
        last: list[float | None] = [None]
        if order is not None:
            last = ask.errors(primitives, node, order)
        found[node.name] = _accuracy(batches, eager, last)
    return found


def _accuracy(
    batches: tuple[int, ...], eager: list[list[float | None]], last: list[float | None]
) -> Accuracy:
    """What follows from the errors by batch: of each of the user's convolutions, and of this one.

    TF32 is owed from the batch on from which all of them take it.
    """
    known = [[e for e in errors if e is not None] for errors in eager]
    if not known or any(len(errors) < len(batches) for errors in known):
        return UNKNOWN
    least = [min(errors) for errors in zip(*known, strict=True)]
    first = len(batches)
    while first and is_tf32(least[first - 1]):
        first -= 1
    tf32 = first < len(batches)
    errors = [e for e in last if e is not None]
    return Accuracy(
        min(least[first:] if tf32 else least),
        max(errors) if len(errors) == len(last) else None,
        batches[first] if tf32 and first else 1,
    )


def is_convolution(node: Node) -> bool:
    """Of the captured operators."""
    return node.op.partition(".")[0].startswith(("conv1d", "conv2d", "conv3d", "conv_transpose"))


def _convolves(node: Node) -> bool:
    payload = node.payload
    convolution = isinstance(payload, Contraction) and not payload.is_product
    return convolution and node.type.dtype is torch.float32


@dataclass(frozen=True)
class _Asking:
    """Questions to one device, at several batch sizes."""

    device: torch.device
    batches: tuple[int, ...]

    def errors(
        self, graph: Graph, node: Node, memory_format: torch.memory_format | None
    ) -> list[float | None]:
        """Those of the library's call of a node; None where it cannot be found out."""
        return [self.error(graph, node, memory_format, batch) for batch in self.batches]

    def error(
        self, graph: Graph, node: Node, memory_format: torch.memory_format | None, batch: int
    ) -> float | None:
        payload = node.payload
        call = payload.call if isinstance(payload, Contraction) else payload
        assert isinstance(call, Call)
        types = [graph[ref.name].type for ref in call.args[:2]]
        shapes = [tuple(hint(d, batch) for d in t.shape) for t in types]
        if len(shapes[0]) != len(shapes[1]):
            return None  # one sample without a batch
        settings = list(call.args[3:])  # behind the operands and the bias
        key = self.key(call.target, shapes, settings, memory_format)
        kept = NOTEBOOK.recall(key)
        if isinstance(kept, float) and math.isfinite(kept):
            return kept
        found = relative_error(call.target, shapes, settings, memory_format, self.device)
        if found is not None:
            with contextlib.suppress(OSError, InputError):  # then it is measured again
                NOTEBOOK.keep(key, found)
        return found

    def key(
        self,
        target: str,
        shapes: list[tuple[int, ...]],
        settings: list[Any],
        memory_format: torch.memory_format | None,
    ) -> str:
        versions = [torch.__version__, torch.backends.cudnn.version()]  # type: ignore[no-untyped-call]
        device = torch.cuda.get_device_name(self.device)
        order = str(memory_format or torch.contiguous_format).removeprefix("torch.")
        return json.dumps([device, *versions, target, shapes, settings, order])


def relative_error(
    target: str,
    shapes: list[tuple[int, ...]],
    settings: list[Any],
    memory_format: torch.memory_format | None,
    device: torch.device,
) -> float | None:
    """The error of a convolution on normal numbers, as eager runs it, of the first samples.

    The whole batch is run, since the library chooses by it.
    """
    function = resolve(target)
    generator = torch.Generator(device).manual_seed(0)
    try:
        x, w = (torch.randn(s, generator=generator, device=device) for s in shapes)
        if memory_format is not None:
            x, w = (t.contiguous(memory_format=memory_format) for t in (x, w))
        got = function(x, w, None, *settings)[:SAMPLES].double()
        with torch.backends.cudnn.flags(enabled=False):
            wanted = function(x[:SAMPLES].double(), w.double(), None, *settings)
        error = (got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        return float(error) if bool(error.isfinite()) else None
    except torch.cuda.OutOfMemoryError:
        return None
