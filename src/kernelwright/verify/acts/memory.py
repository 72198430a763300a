"""What a call does to memory: what it leaves unwritten, recognises, or writes beside its tensors.

In: a module and inputs. Out: results, and bytes that nobody may have touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.verify import parameters
from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, copied, forward, map_tensors, tensors_in

BLOCKS = 4
BAND = 512  # bytes on either side
PATTERN = 0x5A
CANARIES = 9
ATTEMPTS = 64


def poisoned(module: nn.Module, inputs: Inputs, here: Here) -> Any:
    """Every new tensor and freed block full of NaN."""
    like = [x.detach() for x in tensors_in(forward(module, copied(inputs)))]
    blocks = [torch.empty_like(x) for x in like for _ in range(BLOCKS)]
    for block in blocks:
        block.fill_(float("nan") if block.is_floating_point() else 1)
    del blocks, like
    with _uninitialised_is_nan():
        return forward(module, inputs)


@contextmanager
def _uninitialised_is_nan() -> Iterator[None]:
    """torch fills empty tensors with NaN while it is asked for deterministic algorithms."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def reallocated(module: nn.Module, inputs: Inputs, here: Here) -> Any:
    """New tensors in the memory of ones that were given up, one set of inputs after another."""
    found = []
    last: set[int] = set()
    held: list[Tensor] = []
    for one in inputs.args:
        fresh = map_tensors(lambda x: _placed(x, last, held), one)  # noqa: B023
        last = {x.data_ptr() for x in tensors_in(fresh)}
        found.append(map_tensors(lambda x: x.detach().clone(), forward(module, fresh)))
        del fresh
    return found


def _placed(x: Tensor, wanted: set[int], held: list[Tensor]) -> Tensor:
    """A copy at a wanted address, if the allocator gives one in a few attempts.

    What it gives instead is held, so that it cannot give it again.
    """
    copy = x.clone()
    for _ in range(ATTEMPTS):
        if not wanted or copy.data_ptr() in wanted:
            break
        held.append(copy)
        copy = x.clone()
    return copy


def guarded(module: nn.Module, inputs: Inputs, here: Here, names: list[str]) -> Named:
    """Inputs and weights inside of bands, which must be there after the call as before.

    On a GPU also the blocks around those that the results are likely to get.
    """
    bands: dict[str, Tensor] = {}
    guarded_inputs = []
    for index, x in enumerate(tensors_in(inputs)):
        inner, bands[f"the memory around input {index}"] = _banded(x)
        guarded_inputs.append(inner)
    places = iter(guarded_inputs)
    given = map_tensors(lambda x: next(places), inputs)
    with parameters.types_kept(module):
        for name, value in parameters.tensors(module).items():
            if name not in names:  # of the candidate's own
                continue
            value.data, bands[f"the memory around {name}"] = _banded(value.data)
        canaries = _canaries(module, inputs, here)
        result = forward(module, given)
        here.finish()
        found = Named({name: torch.cat([x[:BAND], x[-BAND:]]) for name, x in bands.items()})
        for index, block in enumerate(canaries):
            found[f"block {index} beside the results"] = torch.stack([block.min(), block.max()])
    found["the result"] = result
    return found


def _banded(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same values in the same layout between two bands, and all the memory as bytes."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    span = (last + 1 if x.numel() else 0) * x.element_size()
    memory = torch.full((span + 2 * BAND,), PATTERN, dtype=torch.uint8, device=x.device)
    inner = memory.view(x.dtype) if x.dtype != torch.uint8 else memory
    placed = torch.as_strided(inner, x.shape, x.stride(), BAND // x.element_size())
    if x.numel():
        _copy(placed, x)
    return placed, memory


def _copy(target: Tensor, source: Tensor) -> None:
    """Also where elements overlap, as in an expanded tensor."""
    if 0 in source.stride():
        for dim, stride in enumerate(source.stride()):
            if stride == 0 and source.shape[dim] > 1:
                target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)


def _canaries(module: nn.Module, inputs: Inputs, here: Here) -> list[Tensor]:
    """Every other one of neighbouring blocks as large as the results; those between are free."""
    if here.device.type != "cuda":
        return []
    outputs = tensors_in(forward(module, copied(inputs)))
    kept: list[Tensor] = []
    for x in outputs:
        size = max(1, x.numel() * x.element_size())
        blocks = [
            torch.full((size,), PATTERN, dtype=torch.uint8, device=here.device)
            for _ in range(CANARIES)
        ]
        kept += blocks[::2]
    del outputs
    here.finish()
    return kept
