"""What people do with a module, in words: a history is lines that are made of these.

The same lines run in the process of the original and of the candidate, and stand in the script that
tells of a failure, with the text of this file before them: so it imports torch alone. What changes
weights does so by numbers that no type rounds, so that the oracle has the same ones.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

WIDE = False  # whether this is the oracle, which stays in float64
MOST_GRADIENTS = 1 << 18  # elements of one that are looked at
MOST_TURNED, SAMPLE = 1 << 20, 1000
TIMES = 40


def call(m: nn.Module, given: Any) -> Any:
    return m(*given[0], **given[1])


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def each(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return pytree.tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, tree)


def fresh(given: Any) -> Any:
    return each(lambda x: x.detach().clone(), given)


# Calls


def quiet(m: nn.Module, given: Any) -> Any:
    with torch.no_grad():
        return call(m, given)


def loud(m: nn.Module, given: Any) -> Any:
    """With gradients enabled, of which nobody wants to know."""
    with torch.enable_grad():
        return each(Tensor.detach, call(m, given))


def inferred(m: nn.Module, given: Any) -> Any:
    with torch.inference_mode():
        found = call(m, fresh(given))
    return each(Tensor.clone, found)


def often(m: nn.Module, given: Any) -> Any:
    for _ in range(TIMES):
        found = quiet(m, given)
    return found


def later(m: nn.Module, given: Any) -> Any:
    time.sleep(0.06)
    return quiet(m, given)


def in_thread(do: Callable[..., Any], *given: Any) -> Any:
    """In a thread that ends with it."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(do(*given))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def at_once(m: nn.Module, one: Any, other: Any) -> list[Any]:
    """Two threads, a few calls of each."""
    found: list[Any] = [None, None]
    together = threading.Barrier(2)

    def work(place: int, given: Any) -> None:
        try:
            together.wait(timeout=20)
            for _ in range(3):
                found[place] = quiet(m, given)
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in found:
        if isinstance(result, Exception):
            raise result
    return found


def in_child(m: nn.Module, given: Any) -> Any:
    """In a process that was forked just now, with one thread."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = b""
        try:
            torch.set_num_threads(1)
            file = io.BytesIO()
            torch.save(pytree.tree_leaves(quiet(m, given)), file)
            text = file.getvalue()
        finally:
            with os.fdopen(theirs, "wb") as end:
                end.write(text)
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as end:
        text = end.read()
    os.waitpid(pid, 0)
    if not text:
        raise RuntimeError("it raised in a forked process")
    return torch.load(io.BytesIO(text), weights_only=False)


def aside(do: Callable[..., Any], *given: Any) -> None:
    """What nobody looks at, whether it works or not."""
    with contextlib.suppress(Exception):
        do(*given)


def in_half(m: nn.Module, given: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16, enabled=not WIDE):
        return quiet(m, given)


def as_half(m: nn.Module, given: Any) -> Any:
    other = copy.deepcopy(m).bfloat16()
    return quiet(other, each(lambda x: x.bfloat16() if x.is_floating_point() else x, given))


def deterministic(m: nn.Module, given: Any) -> Any:
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        return quiet(m, given)
    finally:
        torch.set_deterministic_debug_mode(before)


# What happens to memory


@torch.no_grad()
def rewrite(given: Any) -> None:
    """Other numbers in the same memory, and no version tells."""
    for x in tensors(given):
        if x.is_floating_point() and 0 not in x.stride():
            x.data.mul_(-0.5)


@torch.no_grad()
def touch(given: Any) -> None:
    """One number."""
    for x in tensors(given):
        if x.is_floating_point() and x.numel() and 0 not in x.stride():
            x.data[(-1,) * x.ndim] *= -2.0


@torch.no_grad()
def swap(given: Any) -> None:
    """The same numbers in another order: of rows, or where there are none of all."""
    for x in tensors(given):
        if x.numel() and 0 not in x.stride():
            x.data.copy_(x.data.flip(0) if x.ndim else x.data)


@torch.no_grad()
def spoil(found: Any) -> None:
    """Results belong to whoever asked for them."""
    for x in tensors(found):
        if x.numel() and 0 not in x.stride():
            x.fill_(7)


def stain() -> None:
    """Memory that is given back is full of NaN."""
    blocks = [torch.full((size,), float("nan")) for size in (16, 64, 256, 1024) for _ in range(16)]
    del blocks


# Weights


def weights(m: nn.Module) -> dict[str, Tensor]:
    found = dict(m.named_parameters())
    return {name: x for name, x in found.items() if x.is_floating_point()}


def turned(x: Tensor) -> Tensor:
    """Other numbers of about the same size: none of them is rounded."""
    sample = x.detach().reshape(-1)[:SAMPLE]
    factor = 0.5 if sample.numel() and float(sample.abs().max()) > 0.5 else 2.0
    return x.flip(0) * factor if 0 < x.numel() <= MOST_TURNED and x.ndim else x * -factor


@torch.no_grad()
def write(m: nn.Module) -> None:
    for x in weights(m).values():
        x.copy_(turned(x))


@torch.no_grad()
def write_unseen(m: nn.Module) -> None:
    for x in weights(m).values():
        x.data.copy_(turned(x.data))


@torch.no_grad()
def write_one(m: nn.Module) -> None:
    """One number of each, and no version tells."""
    for x in weights(m).values():
        if x.numel():
            x.data[(x.shape[0] // 2, *(-1,) * (x.ndim - 1)) if x.ndim else ()] *= -4.0


@torch.no_grad()
def nudge(m: nn.Module) -> None:
    """Every weight off by a thousandth, and no version tells."""
    for x in weights(m).values():
        x.data.mul_(1 + 2.0**-10)


@torch.no_grad()
def reorder(m: nn.Module) -> None:
    """The same weights in another order, and no version tells."""
    for x in weights(m).values():
        x.data.copy_(x.data.flip(0) if x.ndim else x.data)


@torch.no_grad()
def write_buffers(m: nn.Module, names: list[str]) -> None:
    """Those of the original: a candidate may have some for a use of its own."""
    for name, x in m.named_buffers():
        if name in names and x.is_floating_point():
            x.data.mul_(2.0)


@torch.no_grad()
def give(m: nn.Module) -> None:
    """Other memory under the same parameters."""
    for x in weights(m).values():
        x.data = turned(x.data)


def replace(m: nn.Module) -> None:
    for name, x in list(weights(m).items()):
        path, _, last = name.rpartition(".")
        setattr(m.get_submodule(path), last, nn.Parameter(turned(x.detach()), x.requires_grad))


def load(m: nn.Module, strict: bool) -> None:
    """Strictly all of them, or every other one."""
    names = list(weights(m))
    chosen = set(names if strict else names[::2])
    state = {k: turned(v) if k in chosen else v for k, v in m.state_dict().items()}
    m.load_state_dict(state if strict else {k: state[k] for k in chosen}, strict=strict)


def step(m: nn.Module) -> None:
    """Of an optimizer, with gradients that depend on nothing."""
    used = [x for x in weights(m).values() if x.requires_grad]
    if not used:
        return
    before = [x.grad for x in used]
    for x in used:
        x.grad = torch.arange(x.numel()).remainder(5).sub(2).view(x.shape).to(x)
    torch.optim.SGD(used, lr=0.125).step()
    for x, grad in zip(used, before, strict=True):
        x.grad = grad


def snapshot(m: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in weights(m).items()}


@torch.no_grad()
def back(m: nn.Module, state: dict[str, Tensor]) -> None:
    """The weights that there were in the beginning."""
    for name, x in weights(m).items():
        if name in state and state[name].shape == x.shape:
            x.data.copy_(state[name])


def freeze(m: nn.Module, number: int) -> None:
    for place, x in enumerate(weights(m).values()):
        x.requires_grad_((place + number) % 2 == 0)


# Gradients


def leaves(given: Any) -> Any:
    return each(lambda x: x.detach().clone().requires_grad_(x.is_floating_point()), given)


def cotangent(x: Tensor, kind: str) -> Tensor:
    numbers = torch.arange(x.numel()).remainder(7).sub(3).view(x.shape).to(x) / 4
    if kind == "expanded":
        return numbers[:1].expand_as(x) if x.ndim else numbers
    if kind == "transposed":
        order = tuple(reversed(range(x.ndim)))
        return numbers.permute(order).contiguous().permute(order)
    if kind == "one row" and x.ndim and x.shape[0] > 1:
        numbers[1:] = 0
    return numbers * {"large": 2.0**20, "small": 2.0**-40}.get(kind, 1.0)


def gradients(m: nn.Module, given: Any, kind: str) -> dict[str, Any]:
    return _gradients(m, *_forward(m, given), kind)


def _forward(m: nn.Module, given: Any) -> tuple[Any, Any]:
    with torch.enable_grad():
        given = leaves(given)
        return given, call(m, given)


def _gradients(m: nn.Module, given: Any, found: Any, kind: str, **more: Any) -> dict[str, Any]:
    wanted = {f"input {i}": x for i, x in enumerate(tensors(given)) if x.requires_grad}
    wanted |= {name: x for name, x in m.named_parameters() if x.requires_grad}
    used = [x for x in tensors(found) if x.requires_grad]
    kinds = {"results that require gradients": [x.requires_grad for x in tensors(found)]}
    if not used or not wanted:
        return kinds
    given = [cotangent(x, kind) for x in used]
    grads = torch.autograd.grad(used, list(wanted.values()), given, allow_unused=True, **more)
    return {**kinds, **dict(zip(wanted, map(part, grads), strict=True))}


def part(x: Tensor | None) -> Tensor | None:
    """Of a large one so many elements, of every row and column."""
    if x is None or x.numel() <= MOST_GRADIENTS:
        return x
    return x.reshape(-1)[:: x.numel() // MOST_GRADIENTS | 1].clone()


def backward(m: nn.Module, given: Any, kind: str) -> dict[str, Any]:
    """Added to what is there."""
    _, found = _forward(m, given)
    used = [x for x in tensors(found) if x.requires_grad]
    if used:
        torch.autograd.backward(used, [cotangent(x, kind) for x in used])
    return {name: part(x.grad) for name, x in m.named_parameters()}


def twice(m: nn.Module, given: Any, kind: str) -> list[Any]:
    """Through one graph."""
    pair = _forward(m, given)
    return [_gradients(m, *pair, kind, retain_graph=more) for more in (True, False)]


def interleaved(m: nn.Module, one: Any, other: Any, kind: str) -> list[Any]:
    """Two graphs, the older one first; and a call without gradients in between."""
    pairs = [_forward(m, one), _forward(m, other)]
    quiet(m, one)
    return [_gradients(m, *pair, kind) for pair in pairs]


def in_place(m: nn.Module, given: Any, kind: str) -> dict[str, Any]:
    """Results that are changed in place before the backward."""
    given, found = _forward(m, given)
    with torch.enable_grad():
        for x in tensors(found):
            if x.is_floating_point() and x.requires_grad:
                x.mul_(2.0)
    return _gradients(m, given, found, kind)


def checkpointed(m: nn.Module, given: Any, kind: str) -> dict[str, Any]:
    with torch.enable_grad():
        given = leaves(given)
        found = checkpoint(call, m, given, use_reentrant=False)
    return _gradients(m, given, found, kind)


# The module


def children(m: nn.Module) -> list[nn.Module]:
    return list(m.modules())


def mode(m: nn.Module, number: int, training: bool) -> None:
    """Of one of its modules."""
    found = children(m)
    found[number % len(found)].train(training)


def saved(m: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def pickled(m: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(m))
    return loaded


def carried_over(m: nn.Module, other: nn.Module) -> nn.Module:
    """The state of one in the other, over a file."""
    file = io.BytesIO()
    torch.save(m.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other.train(m.training)


def cast_and_back(m: nn.Module) -> None:
    """Through a type that rounds."""
    kinds = {x.dtype for x in weights(m).values()}
    if len(kinds) == 1:
        m.bfloat16().to(kinds.pop())


# What stands around it


def with_hook(m: nn.Module, given: Any) -> Any:
    """A hook that doubles what it gives."""

    def double(module: nn.Module, given: Any, result: Any) -> Any:
        return each(lambda x: x * 2 if x.is_floating_point() else x, result)

    handle = m.register_forward_hook(double)
    try:
        return quiet(m, given)
    finally:
        handle.remove()


def functional(m: nn.Module, given: Any) -> Any:
    """With other tensors in the place of its own."""
    other = {name: turned(x.detach()) for name, x in weights(m).items()}
    with torch.no_grad():
        return torch.func.functional_call(m, other, tuple(given[0]), dict(given[1]))


def subclassed(m: nn.Module) -> None:
    m.__class__ = type(f"My{type(m).__name__}", (type(m),), {})
