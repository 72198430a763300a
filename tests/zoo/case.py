"""What an entry of the zoo is: a factory of a module, its inputs by batch size, and its exceptions.

A case is a value; `checks.py` decides what it must satisfy. The exceptions from "it compiles, and
the kernels ran in every plain call" are `refused`, `falls_back` and `only_aten`, each with its
reason in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = Callable[[int], tuple[Any, ...]]


def _no_keywords(n: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Case:
    """One module of the zoo.

    `inputs` and `kwargs` give the arguments of forward for a batch size. `other` is the second
    batch size, None where the module takes one size only. `mode` is that in which it is compiled.
    A `random` module draws from the generator, so float64 cannot be its oracle. Where the mode
    matters, the other one may fall back; where eager lays its result out otherwise in the other
    mode (`strides_by_mode` says why), strides are not compared there. A `refused` module may be
    unsupported, with an error that says so.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Inputs
    kwargs: Callable[[int], dict[str, Any]] = _no_keywords
    batch: int = 4
    other: int | None = 7
    mode: str = "train"
    random: bool = False
    refused: str = ""
    falls_back: str = ""
    only_aten: str = ""
    mode_matters: bool = False
    strides_by_mode: str = ""


def x(*shape: int) -> Inputs:
    """One normal input of batch x shape."""
    return lambda n: (torch.randn(n, *shape),)


def xs(*shapes: tuple[int, ...]) -> Inputs:
    """Several normal inputs, each of batch x its shape."""
    return lambda n: tuple(torch.randn(n, *shape) for shape in shapes)


def tokens(length: int, vocabulary: int = 11) -> Inputs:
    """One input of integers, batch x length."""
    return lambda n: (torch.randint(vocabulary, (n, length)),)
