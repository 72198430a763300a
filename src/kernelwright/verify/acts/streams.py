"""Work in the right order on a GPU: other streams, late data, captured graphs.

In: a module and inputs on a GPU; the arguments are the Inputs of one call each. Out: results. What
a kernel on the wrong stream reads or writes too early shows, because the right stream is kept busy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, forward, map_tensors, tensors_in

SLEEP_CYCLES = 40_000_000  # some 20 ms


def behind_a_sleep(module: nn.Module, inputs: Inputs, here: Here) -> Any:
    """On a stream of its own that first sleeps and then writes the inputs, without a sync.

    The results are copied on that stream too, and waited for there alone.
    """
    first, second = inputs.args
    forward(module, map_tensors(Tensor.clone, first))
    here.finish()
    given = map_tensors(Tensor.clone, first)
    stream = torch.cuda.Stream(here.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(here.device))
    with torch.cuda.stream(stream):
        _sleep()
        for place, value in zip(tensors_in(given), tensors_in(second), strict=True):
            place.copy_(value)
        found = map_tensors(lambda x: x.to("cpu", non_blocking=False), forward(module, given))
    stream.synchronize()
    torch.cuda.current_stream(here.device).wait_stream(stream)
    return map_tensors(lambda x: x.to(here.device), found)


def _sleep() -> None:
    torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]


def unsynchronised(module: nn.Module, inputs: Inputs, here: Here) -> Any:
    """Inputs that are written behind a sleep on the current stream, and overwritten after the call.

    Whatever reads them on another stream reads too early or too late.
    """
    first, second = inputs.args
    forward(module, map_tensors(Tensor.clone, first))
    here.finish()
    given = map_tensors(Tensor.clone, first)
    _sleep()
    for place, value in zip(tensors_in(given), tensors_in(second), strict=True):
        place.copy_(value)
    outputs = forward(module, given)
    kept = map_tensors(lambda x: x.detach().clone(), outputs)
    for place, value in zip(tensors_in(given), tensors_in(first), strict=True):
        place.copy_(value)
    return kept


def in_a_graph(module: nn.Module, inputs: Inputs, here: Here) -> Any:
    """Captured on the first inputs, and replayed on the others at the same addresses."""
    first, *others = inputs.args
    static = map_tensors(Tensor.clone, first)
    side = torch.cuda.Stream(here.device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(here.device))
    with torch.cuda.stream(side):
        for _ in range(2):
            forward(module, static)
    torch.cuda.current_stream(here.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = forward(module, static)
    found = []
    for one in others:
        for place, value in zip(tensors_in(static), tensors_in(one), strict=True):
            place.copy_(value)
        graph.replay()
        found.append(map_tensors(Tensor.clone, outputs))
    here.finish()
    return found
