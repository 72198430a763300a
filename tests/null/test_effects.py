"""What a forward does besides computing makes its original run; compiling leaves no trace of it."""

from __future__ import annotations

import datetime
import logging
import os
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelwright import effects
from kernelwright.capture import capture
from kernelwright.errors import UnsupportedError
from kernelwright.problem import problem_from_module

LOG: list[int] = []
CACHE: dict[str, int] = {}
COUNT = 0
LOGGER = logging.getLogger("a model")
GENERATOR = torch.Generator()


class Model(nn.Module):
    calls = 0

    def __init__(self, act: Callable[[Tensor], Any], probed: bool = True) -> None:
        super().__init__()
        self.act, self.probed = act, probed
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not self.probed and not torch.compiler.is_compiling():
            x.data_ptr()  # which fake tensors have none of
        self.act(x)
        return self.linear(x).relu()


def count(x: Tensor) -> None:
    global COUNT
    COUNT += 1


def count_in_class(x: Tensor) -> None:
    Model.calls += 1


def log_in_vain(x: Tensor) -> None:
    LOGGER.debug("%s", x.shape)


def fill_a_cache(x: Tensor) -> None:
    CACHE.setdefault("width", x.shape[-1])


def without_gradients(x: Tensor) -> None:
    with torch.no_grad():
        x.sin()


def seed_inside(x: Tensor) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)


def set_cudnn(x: Tensor) -> None:
    torch.backends.cudnn.benchmark = True


EFFECTS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "seed": (lambda x: torch.manual_seed(0), "calls torch.manual_seed"),
    "seed inside": (seed_inside, "calls torch.manual_seed"),
    "generator": (lambda x: GENERATOR.manual_seed(0), "calls manual_seed of a generator"),
    "dtype": (lambda x: torch.set_default_dtype(torch.float64), "calls torch.set_default_dtype"),
    "threads": (lambda x: torch.set_num_threads(1), "calls torch.set_num_threads"),
    "gradients": (lambda x: torch.set_grad_enabled(False), "sets whether gradients are recorded"),
    "cudnn": (set_cudnn, "changes torch.backends.cudnn.benchmark"),
    "print": (lambda x: print(end=""), "prints"),
    "log": (lambda x: LOGGER.error("%s", x.shape), "logs"),
    "warn": (lambda x: warnings.warn("odd", stacklevel=2), "warns"),
    "file": (lambda x: open(os.devnull, "w").close(), "opens a file"),
    "list": (lambda x: LOG.append(1), f"changes LOG of {__name__}"),
    "global": (count, f"changes COUNT of {__name__}"),
    "class": (count_in_class, "changes calls of Model"),
    "environment": (lambda x: os.environ.update(A_MODEL="1"), "changes the environment"),
    "time": (lambda x: time.perf_counter(), "asks for the time by perf_counter"),
    "date": (lambda x: datetime.datetime.now(), "asks for the time"),
    "random": (lambda x: random.random(), "changes the state of Python's random"),
}
NONE: dict[str, Callable[[Tensor], Any]] = {
    "a message of no interest": log_in_vain,
    "a cache": fill_a_cache,
    "no_grad": without_gradients,
    "dropout": F.dropout,
    "a constant": lambda x: torch.tensor([1.0, 2.0]),
    "shapes": lambda x: f"{x.shape} {len(LOG)}",
}


def refused(module: nn.Module) -> str | None:
    return capture(problem_from_module(module, (torch.randn(3, 4),))).contract.refused


@pytest.mark.parametrize("probed", [True, False], ids=["probed", "traced alone"])
@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_is_named_and_undone(name: str, probed: bool) -> None:
    act, words = EFFECTS[name]
    if name == "gradients" and not probed:
        pytest.skip("torch.export undoes that itself")
    problem = problem_from_module(Model(act, probed), (torch.ones(3, 4),))
    torch.manual_seed(0)  # so that the state does not tell
    with effects.undone() as changed:
        assert (capture(problem).contract.refused or "").startswith(f"the forward {words}")
        assert changed() is None and torch.is_grad_enabled()


def test_records_of_a_librarys_own_kind_are_logged_all_the_same() -> None:
    before = logging.getLogRecordFactory()

    def timed(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.at = time.time_ns()
        return record

    act, words = EFFECTS["log"]
    problem = problem_from_module(Model(act, True), (torch.ones(3, 4),))
    logging.setLogRecordFactory(timed)
    try:
        assert (capture(problem).contract.refused or "").startswith(f"the forward {words}")
    finally:
        logging.setLogRecordFactory(before)


@pytest.mark.parametrize("name", NONE)
def test_what_computes_alone_has_no_effect(name: str) -> None:
    assert refused(Model(NONE[name])) in (None, "nobody reads what aten.dropout.default draws")


def test_what_cannot_be_traced_for_its_effect_says_so() -> None:
    sentence = "The forward sets whether gradients are recorded, so it has no graph; leave that"
    with pytest.raises(UnsupportedError, match=sentence):
        refused(Model(lambda x: torch.set_grad_enabled(True)))


def test_libraries_are_not_the_users() -> None:
    assert effects.is_users(__file__) and effects.is_users("<stdin>")
    for other in (torch.__file__, logging.__file__, effects.__file__):
        assert not effects.is_users(str(other))
