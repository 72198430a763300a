"""A history: lines of `words`, one after the other, and all that can be seen after each of them.

In: a module, sets of inputs, and lines. Out: after each line its results and the facts, by name, up
to the first line that raises. `m` is the module, `x` are the inputs, `another` makes an instance,
`weights_then` is what the weights were. The module is afterwards what it was before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.verify import parameters, words
from kernelwright.verify.acts import world
from kernelwright.verify.acts.calls import overlap
from kernelwright.verify.acts.here import Here
from kernelwright.verify.attributes import preserved
from kernelwright.verify.compare import same_bits
from kernelwright.verify.inputs import Inputs, Named, forward, map_tensors, tensors_in
from kernelwright.verify.replay import rng_state

RESULTS, FACTS, RAISED = "the results of", "what is seen after", "raised by"
NOTHING = object()
GRADIENTS = re.compile(r"\b(gradients|backward|twice|interleaved|in_place|checkpointed)\b")
HELD = 4  # earlier results that a new one may share memory with
STATE = 1 << 20  # elements of each tensor that are looked at in the end


def used(
    module: nn.Module,
    inputs: Inputs,
    here: Here,
    lines: list[str],
    facts: list[str],
    names: list[str],
    writes: bool,
) -> Named:
    """What every line gives.

    `facts` names those to look at, `names` the original's state, which the lines write to if they
    do (`writes`): a copy of it takes time.
    """
    words.call, words.WIDE = forward, here.wide  # type: ignore[assignment]
    with preserved(module), _kept(module, writes), torch.enable_grad():
        return _played(module, inputs, here, lines, facts, names)


def _played(
    module: nn.Module,
    inputs: Inputs,
    here: Here,
    lines: list[str],
    facts: list[str],
    names: list[str],
) -> Named:
    found = Named()
    space: dict[str, Any] = {
        **vars(words),
        "m": module,
        "names": names,
        "x": list(inputs.args),
        "another": here.make or (lambda seed: module),
        "weights_then": words.snapshot(module) if any("_then" in x for x in lines) else {},
    }
    held: list[tuple[str, Any, Any]] = []
    settings = world.values()
    for number, line in enumerate(lines, 1):
        label = f"line {number}, {line.splitlines()[-1]}"
        watch = _Watch(space, here, facts, names, bool(GRADIENTS.search(line)))
        space["y"] = NOTHING
        try:
            exec(compile(line, "<input>", "exec"), space)
            here.finish()
        except Exception as error:
            found[f"{RAISED} {label}"] = f"{type(error).__name__}: {error}"[:200]
            return found
        result = space["y"]
        found[f"{FACTS} {label}"] = watch.facts(result, [x for _, x, _ in held[-HELD:]])
        if result is not NOTHING:
            kept = map_tensors(lambda x: x.detach().clone(), result)
            held.append((label, result, kept))
            found[f"{RESULTS} {label}"] = kept
    found["earlier results that have changed"] = ", ".join(
        label for label, result, kept in held if not _equal(result, kept)
    )
    found["settings that have changed"] = ", ".join(world.changed(settings, world.values()))
    found["the inputs in the end"] = space["x"]
    state = _state(space["m"], names)
    found["the state in the end"] = {k: _part(v.detach()) for k, v in state.items()}
    return found


def _state(module: nn.Module, names: list[str]) -> parameters.State:
    """In the original's order, and without what else the candidate has."""
    known = parameters.tensors(module)
    return {name: known[name] for name in names if name in known}


class _Watch:
    """What there is before a line, to see afterwards what has changed."""

    def __init__(
        self,
        space: dict[str, Any],
        here: Here,
        facts: list[str],
        names: list[str],
        gradients: bool,
    ) -> None:
        self.gradients = gradients
        self.space, self.here, self.wanted, self.names = space, here, facts, names
        self.inputs = _versions(space["x"])
        self.module = space["m"]
        self.weights = _versions(list(self.state.values()))
        self.generators = rng_state(here.device)

    @property
    def state(self) -> parameters.State:
        return _state(self.space["m"], self.names)

    def facts(self, result: Any, earlier: list[Any]) -> dict[str, Any]:
        return {name: FOUND[name](self, result, earlier) for name in self.wanted}


def _versions(found: list[Any]) -> list[int]:
    return [x._version for x in tensors_in(found) if not x.is_inference()]


def _written(watch: _Watch, result: Any, earlier: list[Any]) -> bool:
    return _versions(watch.space["x"]) != watch.inputs


def _weights_written(watch: _Watch, result: Any, earlier: list[Any]) -> bool:
    same = watch.space["m"] is watch.module
    return same and _versions(list(watch.state.values())) != watch.weights


def _moved(watch: _Watch, result: Any, earlier: list[Any]) -> bool:
    """By a call; how a copy is made is nobody's business."""
    called = result is not NOTHING
    return called and not all(map(torch.equal, watch.generators, rng_state(watch.here.device)))


def _shared(watch: _Watch, result: Any, earlier: list[Any]) -> list[str]:
    """Each result with what else lies in its memory; where gradients lie is autograd's business."""
    if result is NOTHING or watch.gradients:
        return []
    others = {f"input {i}": x for i, x in enumerate(tensors_in(watch.space["x"]))}
    others |= watch.state
    others |= {f"an earlier result {i}": x for i, x in enumerate(tensors_in(earlier))}
    found = []
    for index, x in enumerate(tensors_in(result)):
        found += [f"{index} and {name}" for name, other in others.items() if overlap(x, other)]
        others[f"result {index}"] = x
    return found


# Each of the level that it is looked at from.
FOUND: dict[str, Callable[[_Watch, Any, list[Any]], Any]] = {
    "inputs written": _written,
    "inputs that require gradients": lambda w, y, e: [
        x.requires_grad for x in tensors_in(w.space["x"])
    ],
    "memory shared": _shared,
    "generators moved": _moved,
    "weights written": _weights_written,
    "weights that require gradients": lambda w, y, e: [x.requires_grad for x in w.state.values()],
    "weights with a gradient": lambda w, y, e: [x.grad is not None for x in w.state.values()],
    "training": lambda w, y, e: w.space["m"].training,
}


def _equal(result: Any, kept: Any) -> bool:
    pairs = zip(tensors_in(result), tensors_in(kept), strict=True)
    return all(same_bits(x.detach(), y) for x, y in pairs)


def _part(x: Tensor) -> Tensor:
    return x if x.numel() <= STATE else x.reshape(-1)[:: x.numel() // STATE | 1].clone()


@contextlib.contextmanager
def _kept(module: nn.Module, writes: bool) -> Iterator[None]:
    """Data, gradients and their being asked for of every tensor, as they were.

    A buffer that was written to in a graph is a part of it, and has to leave it.
    """
    before = [
        (x, x.data, x.detach().clone() if writes else x.data, x.grad, x.requires_grad, x.is_leaf)
        for x in pytree.tree_leaves(parameters.tensors(module))
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for x, data, values, grad, required, leaf in before:
                if leaf and not x.is_leaf:
                    x.detach_()
                x.data = data
                if writes:
                    data.copy_(values)
                x.grad = grad
                if x.is_leaf:
                    x.requires_grad_(required)
