"""Models that draw random numbers: the very numbers of eager, or the same distribution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from verifying import run_all, run_some

from kernelwright.verify.certificate import Certificate
from kernelwright.verify.replay import Recorder, Replay, Unreplayable
from kernelwright.verify.statistic import LEVEL, two_samples

DROPOUT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.4)

    def forward(self, x):
        return self.dropout(self.linear(x))

def get_inputs():
    return [torch.rand(4, 8)]
"""

CANDIDATE = """
class ModelNew(Model):
    def forward(self, x):
        y = self.linear(x)
        if not self.dropout.training:
            return y
        BODY
"""

OWN_NUMBERS = "keep = torch.rand_like(y.detach()) >= self.dropout.p"
RIGHT = f"{OWN_NUMBERS}; return y * keep / (1 - self.dropout.p)"


def candidate(body: str) -> str:
    return DROPOUT + CANDIDATE.replace("BODY", body)


def test_candidate_with_eagers_numbers_is_certified(tmp_path: Path) -> None:
    model = candidate("return F.dropout(y, self.dropout.p)").replace("y = self.linear(x)", BY_HAND)
    checks = run_all(tmp_path, DROPOUT, model)
    failed = {name for name, check in checks.items() if check.passed is False}
    assert failed <= {"submodules", "hooks"}, [str(x) for x in checks.values()]
    assert "float64 with eager's random numbers" in checks["oracle"].detail
    assert "the very numbers of eager" in checks["random numbers"].detail
    assert checks["gradients"].passed and checks["uses: gradients"].passed


BY_HAND = "y = x @ self.linear.weight.t() + self.linear.bias"


def test_model_itself_is_certified(tmp_path: Path) -> None:
    checks = run_all(tmp_path, DROPOUT, DROPOUT + "class ModelNew(Model): pass\n")
    certificate = Certificate("m", "c", "cpu", "highest", tuple(checks.values()))
    assert certificate.passed, certificate


def test_candidate_with_its_own_numbers_is_judged_by_statistics(tmp_path: Path) -> None:
    names = ("oracle", "inputs: normal", "random numbers", "eval mode", "gradients")
    checks = run_some(tmp_path, DROPOUT, candidate(RIGHT), *names)
    assert all(check.passed for check in checks.values()), [str(x) for x in checks.values()]
    assert "draws of each have the same means and variances" in checks["oracle"].detail
    assert "false alarms once in" in checks["oracle"].detail
    assert "draws other numbers than eager" in checks["random numbers"].detail


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("return F.dropout(y.half().float(), self.dropout.p)", id="less precise"),
        pytest.param(f"{OWN_NUMBERS}; return y * keep", id="not scaled"),
        pytest.param(
            RIGHT.replace("self.dropout.p", "(self.dropout.p - 0.08)"), id="another probability"
        ),
        pytest.param(
            "keep = torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) >= 0.4; "
            "return y * keep / 0.6",
            id="always the same mask",
        ),
        pytest.param(RIGHT.replace("(y.", "(y[:1]."), id="one mask for all rows"),
        pytest.param(RIGHT + " + 0.1", id="a shift"),
        pytest.param("return y", id="no dropout"),
    ],
)
def test_wrong_distribution_fails(body: str, tmp_path: Path) -> None:
    checks = run_some(tmp_path, DROPOUT, candidate(body), "oracle")
    assert checks["oracle"].passed is False, checks["oracle"]


def test_candidate_that_ignores_the_seed_fails(tmp_path: Path) -> None:
    """Under one seed eager repeats itself; so must a candidate."""
    body = RIGHT.replace("torch.rand_like(y.detach())", "torch.rand(y.shape, generator=GENERATOR)")
    source = "GENERATOR = torch.Generator().manual_seed(0)\n" + candidate(body)
    checks = run_some(tmp_path, DROPOUT, source, "oracle", "repeats")
    assert checks["oracle"].passed is True
    assert checks["repeats"].passed is False


def test_generator_left_elsewhere_fails(tmp_path: Path) -> None:
    body = "z = F.dropout(y, self.dropout.p); torch.rand(3); return z"
    checks = run_some(tmp_path, DROPOUT, candidate(body), "oracle", "random numbers")
    assert checks["oracle"].passed is True
    assert checks["random numbers"].passed is False


def test_wrong_gradient_fails_under_the_same_mask(tmp_path: Path) -> None:
    body = "z = F.dropout(y, self.dropout.p); return z + (y - y.detach()) * 1e-3"
    checks = run_some(tmp_path, DROPOUT, candidate(body), "oracle", "gradients")
    assert checks["oracle"].passed is True
    assert checks["gradients"].passed is False


CPU = torch.device("cpu")

DRAWING = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "dropout2d": lambda x: F.dropout2d(x[None, :, None], 0.3),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rand_like": lambda x: x + torch.rand_like(x),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.4)),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
}


@pytest.mark.parametrize("name", DRAWING)
def test_replay_gives_float64_the_same_numbers(name: str) -> None:
    """To the precision of float32, and the gradients as well."""
    x = torch.linspace(-1, 1, 48).view(6, 8)
    results: list[tuple[Tensor, Tensor]] = []
    recorder = Recorder(CPU)
    for mode in (recorder, Replay(recorder.draws, CPU)):
        if isinstance(mode, Replay):
            mode.left, x = list(recorder.draws), x.double()
        torch.manual_seed(0)
        with mode:
            leaf = x.clone().requires_grad_()
            y = DRAWING[name](leaf)
            results.append((y, torch.autograd.grad(y.square().sum(), leaf)[0]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    assert recorder.draws


HIDDEN = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(300, 200)

    def forward(self, x):
        y = LINEAR
        return y * torch._standard_gamma(torch.full_like(y.detach(), 3.0))

def get_inputs():
    return [torch.randn(64, 300)]
"""


@pytest.mark.parametrize(
    ("linear", "right"),
    [
        ("sum(a @ b for a, b in zip(x.split(20, 1), self.linear.weight.t().split(20)))", True),
        ("self.linear(x.half().float())", False),
        ("self.linear(x) * torch.tensor([1.0] * 199 + [1.0001]).to(x)", False),
    ],
)
def test_numbers_that_nobody_can_replay_leave_eager_to_compare_with(
    linear: str, right: bool, tmp_path: Path
) -> None:
    """As those of an attention that drops weights inside its kernel."""
    linear = linear + (" + self.linear.bias" if right else "")
    original = HIDDEN.replace("LINEAR", "self.linear(x)")
    made = HIDDEN.replace("Model", "ModelNew").replace("LINEAR", linear)
    checks = run_some(tmp_path, original, original + made, "oracle", "inputs: normal")
    assert [check.passed for check in checks.values()] == [right] * 2, [
        str(x) for x in checks.values()
    ]
    if right:
        assert "against eager, whose random numbers" in checks["oracle"].detail


def test_replay_of_another_order_is_refused() -> None:
    x = torch.ones(4)
    with Recorder(CPU) as recorder:
        torch.rand_like(x)
    with pytest.raises(Unreplayable), Replay(recorder.draws, CPU):
        torch.randn_like(x)
    with pytest.raises(Unreplayable), Replay([], CPU):
        torch.rand_like(x)


def test_two_samples_of_one_distribution_are_not_told_apart() -> None:
    """Pairs of samples from a skewed distribution are rejected no more often than promised."""
    generator = torch.Generator().manual_seed(1)

    def sample() -> Tensor:
        drawn = torch.rand(64, 50, generator=generator, dtype=torch.float64)
        return (drawn < 0.05).double() * 3 + 1

    levels = [two_samples(sample(), sample())[0] for _ in range(60)]
    assert sum(level <= LEVEL for level in levels) <= 1
    assert sum(level <= 0.05 for level in levels) <= 8
    shifted = sample()
    shifted[:, 7] += 2
    assert two_samples(shifted, sample())[0] <= LEVEL
