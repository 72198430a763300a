"""The random numbers of one run, given once more to another: dropout masks for the oracle.

In: a run of eager under a Recorder. Out: the draws, which a Replay puts in the place of those of
the float64 run. A float64 dropout draws other numbers than a float32 one under the same seed, so
only this makes the oracle the same function. It works on the operators that ATen dispatches, below
autograd, and so in a backward too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# Operators whose results are the random numbers; any other mixes them with its input.
PURE = frozenset(
    [
        *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
        *("bernoulli", "bernoulli_", "uniform", "uniform_", "normal", "normal_", "random_"),
        *("exponential", "exponential_", "geometric_", "cauchy_", "log_normal_"),
        *("multinomial", "poisson", "binomial"),
    ]
)


class Unreplayable(Exception):
    """The second run asks for random numbers in another way than the first one did."""


@dataclass(frozen=True)
class Draw:
    """One operator that moved the generator, and the numbers that it drew."""

    operator: Any
    noise: tuple[Tensor, ...]


def rng_state(device: torch.device) -> tuple[Tensor, ...]:
    """Where the generators stand: the CPU's, and the GPU's if the model runs on one."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return tuple(states)


def moved(before: Sequence[Tensor], device: torch.device) -> bool:
    """Whether any random number was drawn since."""
    return not all(map(torch.equal, before, rng_state(device)))


class Recorder(TorchDispatchMode):
    """Keeps the numbers of every operator that moves a generator, in order."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.draws: list[Draw] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, drew = _run(self, func, args, kwargs or {})
        if drew:
            noise = tuple(x.detach().clone() for x in _noise(func, args, result))
            self.draws.append(Draw(func, noise))
        return result


class Replay(TorchDispatchMode):
    """Gives the recorded numbers back, cast to the types of the run they are given to."""

    def __init__(self, draws: Sequence[Draw], device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.left = list(draws)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, drew = _run(self, func, args, kwargs or {})
        if not drew:
            return result
        if not self.left:
            raise Unreplayable(f"{func} draws random numbers that the first run did not draw")
        draw = self.left.pop(0)
        places = _noise(func, args, result)
        if not places:
            raise Unreplayable(f"{func} keeps the random numbers that it draws to itself")
        if draw.operator is not func or [x.shape for x in places] != [x.shape for x in draw.noise]:
            raise Unreplayable(f"{func} draws where the first run had {draw.operator}")
        for place, noise in zip(places, draw.noise, strict=True):
            place.copy_(noise)
        return _with_noise(func, args, result)


def _run(mode: Recorder | Replay, func: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """The operator's result, and whether it drew: a seeded one may not (attention, p = 0).

    One that is made of others is taken apart under the mode: autograd does that before a mode sees
    it, but inference_mode does not.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return func(*args, **kwargs), False
    with mode:
        result = func.decompose(*args, **kwargs)
    if result is not NotImplemented:
        return result, False
    before = rng_state(mode.device)
    result = func(*args, **kwargs)
    return result, moved(before, mode.device)


def _noise(func: Any, args: Any, result: Any) -> list[Tensor]:
    """The tensors of a call that hold random numbers and nothing else."""
    if func is aten.native_dropout.default:
        return [result[1]]
    if func is aten.rrelu_with_noise.default:
        return [args[1]]
    if func.overloadpacket.__name__ not in PURE:
        return []
    return [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor)]


def _with_noise(func: Any, args: Any, result: Any) -> Any:
    """The result anew, for operators that mix their numbers with their input."""
    if func is aten.native_dropout.default:
        kept = 1.0 - args[1]
        return args[0] * result[1] * (1.0 / kept if kept else 0.0), result[1]
    if func is aten.rrelu_with_noise.default:
        return args[0] * args[1]
    return result
