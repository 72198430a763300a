"""Averages of convolutions in float32 proper: what is left of the product is float64's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernelwright.capture import capture
from kernelwright.interpret import run
from kernelwright.pattern import refusals, rewrite
from kernelwright.problem import problem_from_module
from kernelwright.rules import ALL_RULES, in_double
from kernelwright.rules.spaces import MEAN, POOL_FIRST

LAWS = {POOL_FIRST, MEAN}


class Averaged(nn.Module):
    def __init__(self, conv: nn.Module, average: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.average = conv, average

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.average(self.conv(x)))


MODELS: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "strided": (
        nn.Conv2d(12, 40, (3, 5), stride=(1, 2), padding=(1, 2)),
        lambda y: y.mean((2, 3)),
        (45, 62),
    ),
    "padded": (nn.Conv2d(12, 40, 3, padding=1), lambda y: y.mean((2, 3)), (40, 40)),
    "narrow": (nn.Conv2d(12, 40, 3), lambda y: y.mean((2, 3)), (200, 9)),
    "line": (nn.Conv1d(12, 40, 5), lambda y: y.mean(2), (900,)),
    "whole": (nn.ConvTranspose2d(12, 40, 3), lambda y: y.mean((2, 3)), (40, 40)),
    "volume": (nn.Conv3d(8, 40, 3), lambda y: y.mean((2, 3, 4)), (12, 14, 20)),
    "windows": (nn.Conv2d(12, 40, 3), lambda y: functional.avg_pool2d(y, 3), (38, 38)),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_input_far_from_zero_costs_no_accuracy(name: str) -> None:
    """Eager averages the errors of its products; one float32 product of means is off by more."""
    conv, average, size = MODELS[name]
    errors: dict[str, list[float]] = {"eager": [], "float32": [], "double": []}
    for seed in range(6):
        torch.manual_seed(seed)
        conv.reset_parameters()  # type: ignore[operator]
        module, channels = Averaged(conv, average), conv.weight.shape[not conv_first(conv)]
        x = torch.randn(4, int(channels), *size) + 100
        graph = capture(problem_from_module(module, (x,)))
        with torch.no_grad():
            exact = module.double()(x.double())
            module.float()
            found = {"eager": module(x)}
            for key, rules in (("float32", ALL_RULES), ("double", in_double(ALL_RULES))):
                after, log = rewrite(graph, rules)
                assert LAWS & {step.rule for step in log}
                found[key] = run(after, module, (x,))[0]
        for key, y in found.items():
            errors[key].append(float((y.double() - exact).abs().max()))
    worst = {key: max(values) for key, values in errors.items()}
    floor = 4 * torch.finfo(torch.float32).eps
    assert worst["double"] <= 2 * worst["eager"] + floor, worst
    assert worst["double"] < worst["float32"], worst


def conv_first(conv: nn.Module) -> bool:
    """Whether the weight's first axis is that of the inputs."""
    return isinstance(conv, nn.ConvTranspose2d)


def test_float64_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2)).double()
    graph = capture(problem_from_module(module, (torch.randn(2, 3, 12, 12).double(),)))
    assert rewrite(graph, in_double(ALL_RULES)) == rewrite(graph, ALL_RULES)


def test_no_average_of_many_places_is_rounded_before_its_product() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(4))
    graph = capture(problem_from_module(module, (torch.randn(2, 3, 18, 18),)))
    laws = [rule for rule in in_double(ALL_RULES) if rule.name == POOL_FIRST]
    assert rewrite(graph, laws) == (graph, ())
    (refusal,) = refusals(graph, laws)
    assert "over 16 places" in refusal.why
