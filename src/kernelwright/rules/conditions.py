"""Reasons why a law does not hold, shared by the rules; None where there is no objection."""

from __future__ import annotations

import math

import torch

from kernelwright.graph import Ref
from kernelwright.pattern import Condition, Match


def floating(match: Match) -> str | None:
    """Integers wrap, truncate and are promoted: the laws are about one floating-point type."""
    dtype = match.root.type.dtype
    if not dtype.is_floating_point:
        return f"{match.root.name} is {_short(dtype)}, not floating-point"
    for value in match.bound:
        if is_value(match, value) and match.type(value).dtype != dtype:
            return (
                f"{value} is {_short(match.type(value).dtype)}, but the result is {_short(dtype)}"
            )
    return None


def wide(match: Match) -> str | None:
    """Sums of weights or inputs that would be rounded to a narrow type lose what eager keeps."""
    dtype = match.root.type.dtype
    if dtype not in (torch.float32, torch.float64):
        return f"sums kept as {_short(dtype)} would be rounded where eager's product rounds once"
    return None


def single_precision(match: Match) -> str | None:
    """Half precision overflows at numbers that models have, where float32 does not."""
    dtype = match.root.type.dtype
    if dtype != torch.float32:
        return f"{match.root.name} is {_short(dtype)}, and the law is for float32"
    return None


def unit_alpha(*names: str) -> Condition:
    """add(x, y, alpha) is x + alpha * y; a law about x + y needs alpha = 1."""

    def check(match: Match) -> str | None:
        scaled = [n for n in names if match[n] != 1]
        return f"alpha is {match[scaled[0]]}, not 1" if scaled else None

    return check


def in_range(value: float, dtype: torch.dtype) -> bool:
    """Far from overflow and underflow: for float32, zero or within 2^-60 to 2^60 in magnitude."""
    limit = largest(dtype)
    return value == 0 or (math.isfinite(value) and 1 / limit <= abs(value) <= limit)


def largest(dtype: torch.dtype) -> float:
    """Not quite the root of the largest number of the type: 2^60 for float32, 2^7.5 for float16."""
    return float(torch.finfo(dtype).max ** (60 / 128))


def is_value(match: Match, name: str) -> bool:
    """Whether the name is bound to a tensor."""
    return isinstance(match[name], Ref)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
