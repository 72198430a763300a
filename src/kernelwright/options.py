"""The further options of `verify`, `bench` and the backend, by name, for whoever checks types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict


class VerifyOptions(TypedDict, total=False):
    """What `verify` and `assert_certified` take besides (see kernelwright.verify.session)."""

    time_limit: float | None
    progress: Callable[[str], None] | None
    quick: bool
    thorough: bool
    only: Sequence[str]
    seed: int | None
    training: bool | None
    sanitize: bool
    level: Literal["function", "gradients", "module", "drop-in"]


class BenchOptions(TypedDict, total=False):
    """What `bench` takes besides (see kernelwright.bench.runner)."""

    batch: int | None
    baselines: Sequence[str] | None
    seconds: float
    progress: Callable[[str, str], None] | None
    verify_after: bool
    training: bool | None


class BackendOptions(TypedDict, total=False):
    """What `torch.compile(model, backend="kernelwright", options=...)` takes.

    `target` is a machine by its name and `precision` one of torch's words, by default what the
    tensors are on and what torch is set to. Without `fallback` a graph that cannot be compiled
    raises the error, instead of running as in eager with a warning.
    """

    target: str
    precision: str
    fallback: bool
