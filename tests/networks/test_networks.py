"""Whole networks, small, in train and eval mode: compiled for the CPU, built, run, and right.

The networks are those of benchmarks/networks, which are timed at ordinary sizes.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from alike import gradients, required
from torch import nn
from torch.overrides import TorchFunctionMode
from zoo.checks import randomise

from kernelwright.pipeline import compile_problem
from kernelwright.problem import in_mode, load_problem

sys.path.insert(0, str(checking.TESTS.parent / "benchmarks"))

import network_files

NETWORKS = network_files.networks(small=True)
# Of a family's further variants one mode tells enough: each build takes seconds.
ONCE = {
    "gpt_small_forward": "train",
    "gpt_small_torch": "eval",
    "mobilenet_small": "eval",
    "recurrent_small_gru": "train",
    "recurrent_small_rnn": "eval",
    "resnet_small_bottleneck": "eval",
    "transformer_small_attention": "train",
}
CASES = [
    (name, mode) for name in NETWORKS for mode in ("train", "eval") if ONCE.get(name, mode) == mode
]


def subject_of(name: str, mode: str, folder: Path) -> checking.Subject:
    family = NETWORKS[name]
    path = network_files.write(family, name.removeprefix(f"{family}_"), folder)
    compiled = compile_problem(in_mode(load_problem(path, "cpu"), mode == "train"))
    emitted = folder / f"{path.stem}_new.py"
    emitted.write_text(compiled.source)
    return checking.loaded(path, compiled, emitted, "cpu")


def modules(subject: checking.Subject, mode: str) -> list[nn.Module]:
    """The candidate, eager and the oracle, from one state; float64 where nothing is random."""
    arguments = subject.user.get_init_inputs()
    eager = subject.user.Model(*arguments)
    randomise(eager)
    candidate = subject.new_class(*arguments)
    candidate.load_state_dict(copy.deepcopy(eager.state_dict()), strict=True)
    oracle = copy.deepcopy(eager).double()
    return [m.train(mode == "train") for m in (candidate, eager, oracle)]


class MasksOfFloats(TorchFunctionMode):
    """A dropout in float64 drops what one in float32 does: generators give other bits for each."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.dropout and args[0].dtype == torch.float64:
            ones = torch.ones(args[0].shape)
            return args[0] * function(ones, *args[1:], **kwargs)
        return function(*args, **kwargs)


def arguments_of(module: nn.Module, inputs: list[Any]) -> list[Any]:
    wide = next(module.parameters()).dtype == torch.float64
    return [x.double() if wide and x.is_floating_point() else x for x in inputs]


def check(subject: checking.Subject, mode: str, batch: int | None) -> None:
    """Two steps of all three: outputs, and then the buffers that they left."""
    trio = modules(subject, mode)
    for step in range(2):
        torch.manual_seed(20 + step)
        given = subject.user.get_inputs()
        inputs = [torch.cat([x, x.flip(0)])[:batch] if batch else x for x in given]
        outcome = []
        for module in trio:
            torch.manual_seed(step)
            with torch.no_grad(), MasksOfFloats():
                outcome.append(module(*arguments_of(module, inputs)))
        checking.check_close(f"step {step}", *outcome)
    states = [dict(m.named_buffers()) for m in trio]
    for name in states[0]:
        checking.check_close(name, *(s[name] for s in states))
    assert not trio[0].fallbacks, trio[0].fallbacks


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_network(name: str, mode: str, tmp_path: Path, extensions: Path) -> None:
    subject = subject_of(name, mode, tmp_path)
    assert subject.compiled.captured.mode in (mode, "any")
    assert subject.compiled.kernels
    check(subject, mode, None)
    check(subject, mode, 1 + subject.compiled.problem.batch)


@pytest.mark.parametrize("name", ["vit_small", "resnet_small", "recurrent_small"])
def test_gradients(name: str, tmp_path: Path, extensions: Path) -> None:
    """In train mode; for the recurrence, through ATen's one call with all its weights."""
    subject = subject_of(name, "train", tmp_path)
    trio = modules(subject, "train")
    results, found = [], []
    for module in trio:
        torch.manual_seed(3)
        inputs = arguments_of(module, subject.user.get_inputs())
        required(inputs)
        torch.manual_seed(4)
        results.append(module(*inputs))
        found.append(gradients(module, results[-1], inputs))
    checking.check_close("outputs", *results)
    checking.check_close("gradients", *found, slack=checking.GRADIENTS)
    assert not trio[0].fallbacks, trio[0].fallbacks
