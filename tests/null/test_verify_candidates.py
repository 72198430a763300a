"""Every way of being wrong that is known here must fail, by the name of the check that finds it.

Each wrong candidate is a small edit of a right one. What happens to processes is in
test_verify_process.py, and many more candidates are in tests/museum.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from verifying import run_all, run_some, subject

from kernelwright.errors import BuildError, InputError
from kernelwright.verify.certificate import Certificate, Check
from kernelwright.verify.checks import MAIN, ROWS
from kernelwright.verify.checks.fallbacks import judge_fallbacks
from kernelwright.verify.session import run_check

LINEAR = """
class Model(nn.Module):
    def __init__(self, features, groups):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.GroupNorm(groups, features)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.linear(x)), 0.01)

def get_inputs():
    return [torch.rand(12, 32)]

def get_init_inputs():
    return [32, 4]
"""

BATCH_NORM = """
class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(x))

def get_inputs():
    return [torch.rand(6, 3, 5, 5)]

def get_init_inputs():
    return [3]
"""

RIGHT = """
class ModelNew(nn.Module):
    def __init__(self, features, groups):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.GroupNorm(groups, features)

    def forward(self, x):
        y = x @ self.linear.weight.t() + self.linear.bias
        return self.tail(y)

    def tail(self, y):
        groups = self.norm.num_groups
        g = y.reshape(y.shape[0], groups, y.shape[1] // groups)
        centred = g - g.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.norm.eps)
        z = scaled.reshape(y.shape) * self.norm.weight + self.norm.bias
        return torch.where(z > 0, z, z * 0.01)
"""

SUBCLASS = """
class ModelNew(Model):
    def forward(self, x):
        BODY
"""

RIGHT_BATCH_NORM = """
class ModelNew(Model):
    def forward(self, x):
        n = self.norm
        shape = (1, -1, 1, 1)
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            count = x.numel() / x.shape[1]
            with torch.no_grad():
                n.running_mean.lerp_(mean, 0.1)
                n.running_var.lerp_(var * (count / (count - 1)), 0.1)
                n.num_batches_tracked.add_(1)
        else:
            mean, var = n.running_mean, n.running_var
        scale = n.weight * torch.rsqrt(var + n.eps)
        y = (x - mean.view(shape)) * scale.view(shape) + n.bias.view(shape)
        return F.relu(y)
"""


# What a kernel written by hand does not keep, unless it watches for it as the emitted ones do.
BY_HAND = {"layout: transposed", "layout: permuted"}


@dataclass(frozen=True)
class Wrong:
    """A candidate with one mistake, and the check that must fail."""

    name: str
    check: str
    source: str
    model: str = LINEAR


def edit(old: str, new: str, source: str = RIGHT) -> str:
    assert old in source
    return source.replace(old, new)


def body(code: str, model: str = LINEAR) -> str:
    return model + SUBCLASS.replace("BODY", code.strip().replace("\n", "\n        "))


FORWARD = "y = x @ self.linear.weight.t() + self.linear.bias"

WRONG = [
    Wrong("zeros", "oracle", body("return torch.zeros_like(super().forward(x))")),
    Wrong("no bias", "oracle", edit(" + self.linear.bias", "")),
    Wrong("no eps", "inputs: 1e4 times smaller", edit(" + self.norm.eps", "")),
    Wrong("no norm weight", "random parameters", edit(" * self.norm.weight", "")),
    Wrong("fp16 inside", "oracle", edit("x @", "x.half().float() @")),
    Wrong("no activation", "oracle", edit("torch.where(z > 0, z, z * 0.01)", "z")),
    Wrong(
        "NaN swallowed",
        "inputs: NaN",
        body("return super().forward(torch.where(x.isnan(), 0.0, x))"),
    ),
    Wrong(
        "statistics across the batch",
        "oracle",
        edit(".mean(-1, keepdim=True)", ".mean((0, 2), keepdim=True)"),
    ),
    Wrong(
        "output cached",
        "inputs: normal",
        body("""
if not hasattr(self, "kept") or len(self.kept) != len(x):
    self.kept = super().forward(x)
return self.kept.clone()"""),
    ),
    Wrong(
        "output cached by address",
        "uses: function",
        body("""
if getattr(self, "address", None) != x.data_ptr():
    self.kept, self.address, self.x = super().forward(x), x.data_ptr(), x
return self.kept.clone()"""),
    ),
    Wrong(
        "one static output",
        "memory: earlier outputs",
        body("""
y = super().forward(x)
if getattr(self, "out", y).shape != y.shape or not hasattr(self, "out"):
    self.out = torch.empty_like(y)
return self.out.copy_(y)"""),
    ),
    Wrong(
        "weights cached",
        "uses: function",
        edit(
            FORWARD,
            """w = self.linear.weight
        if getattr(self, "version", None) != w._version:
            self.kept, self.version = w.detach().clone(), w._version
        y = x @ self.kept.t() + self.linear.bias""",
        ),
    ),
    Wrong(
        "weights cached for good",
        "uses: function",
        edit(
            FORWARD,
            """if not hasattr(self, "kept"):
            self.kept = self.linear.weight.detach().clone()
        y = x @ self.kept.t() + self.linear.bias""",
        ),
    ),
    Wrong(
        "input overwritten", "uses: function", body("y = super().forward(x)\nx.mul_(2)\nreturn y")
    ),
    Wrong(
        "odd batch",
        "batch 7",
        body("""
y = super().forward(x)
if len(y) % 4:
    y[-1] = y[0]
return y"""),
    ),
    Wrong("batch 0", "batch 0", edit("y.shape[1] // groups", "-1")),
    Wrong("larger batch", "larger batch", body("y = super().forward(x)\ny[20:] = 0\nreturn y")),
    Wrong(
        "strides ignored",
        "layout: transposed",
        body("return super().forward(torch.as_strided(x, x.shape, (x.shape[1], 1)))"),
    ),
    Wrong(
        "offset ignored",
        "layout: storage offset",
        body("return super().forward(torch.as_strided(x, x.shape, x.stride(), 0))"),
    ),
    Wrong(
        "extra parameter",
        "state_dict",
        edit(
            "        self.norm =",
            "        self.extra = nn.Parameter(torch.zeros(1))\n        self.norm =",
        ),
    ),
    Wrong(
        "other initialisation",
        "state_dict",
        edit("self.linear = nn", "torch.rand(1); self.linear = nn"),
    ),
    Wrong("shape", "structure", edit("return self.tail(y)", "return self.tail(y).unsqueeze(0)")),
    Wrong("dtype", "structure", edit("return self.tail(y)", "return self.tail(y).double()")),
    Wrong(
        "strides of the output", "structure", body("return super().forward(x).t().contiguous().t()")
    ),
    Wrong("raises", "runs", body("raise ValueError('broken')")),
    Wrong("noise", "repeats", body("y = super().forward(x)\nreturn y + 1e-8 * torch.rand_like(y)")),
    Wrong(
        "unwritten memory",
        "memory: poisoned",
        body("""
y = super().forward(x)
z = torch.empty_like(y)
z[:-1] = y[:-1]
return z"""),
    ),
    Wrong("gradient lost", "gradients", body("return super().forward(x).detach()")),
    Wrong(
        "gradient doubled", "gradients", body("y = super().forward(x)\nreturn 2 * y - y.detach()")
    ),
    Wrong(
        "biased running variance",
        "uses: function",
        BATCH_NORM + edit(" * (count / (count - 1))", "", RIGHT_BATCH_NORM),
        BATCH_NORM,
    ),
    Wrong(
        "no running statistics in eval",
        "eval mode",
        BATCH_NORM + edit("if self.training", "if True", RIGHT_BATCH_NORM),
        BATCH_NORM,
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_candidate_fails(wrong: Wrong, tmp_path: Path) -> None:
    checks = run_some(tmp_path, wrong.model, wrong.source, "runs", wrong.check)
    assert checks[wrong.check].passed is False, checks[wrong.check]


@pytest.mark.parametrize(
    ("model", "candidate"),
    [
        pytest.param(LINEAR, RIGHT, id="linear"),
        pytest.param(BATCH_NORM, BATCH_NORM + RIGHT_BATCH_NORM, id="batch norm"),
    ],
)
def test_right_candidate_passes(model: str, candidate: str, tmp_path: Path) -> None:
    checks = run_all(tmp_path, model, candidate)
    failed = {check.name: str(check) for check in checks.values() if check.passed is False}
    assert not failed.keys() - BY_HAND, failed
    assert checks["oracle"].passed is True
    assert checks["null models"].passed is True


def test_candidate_that_calls_the_sublayers_passes_altogether(tmp_path: Path) -> None:
    candidate = body("""
y = self.norm(self.linear(x))
return torch.where(y > 0, y, y * 0.01)""")
    checks = run_all(tmp_path, LINEAR, candidate)
    assert [str(check) for check in checks.values() if check.passed is False] == []
    assert {name for name, check in checks.items() if check.passed is None} == {
        *("random numbers", "layout: permuted", "layout: channels_last"),
        *("stream", "stream: unsynchronised", "graph replay"),
        *("inputs: float16", "inputs: float64", "second device", "sizes: number of dimensions"),
    }


SOFTMAX_OF_ONE = """
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x.sum(1, keepdim=True), 1)

def get_inputs():
    return [torch.rand(4, 8)]
"""

MANY_OUTPUTS = """
class Model(nn.Module):
    def forward(self, x, y):
        return {"sum": x + y, "best": (x.argmax(1), [y.exp()])}

def get_inputs():
    return [torch.rand(4, 8), torch.rand(4, 8)]
"""

HALF = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64).to(torch.bfloat16)

    def forward(self, x):
        return self.linear(x)

def get_inputs():
    return [torch.rand(16, 64, dtype=torch.bfloat16)]
"""

FIXED_SIZE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, 8))

    def forward(self, x):
        return x * self.weight

def get_inputs():
    return [torch.rand(6, 8)]
"""

SAME = "class ModelNew(Model): pass\n"


def test_nothing_is_certified_without_the_oracle() -> None:
    checks = (Check("oracle", None, "no oracle"), Check("repeats", True, "equal bits"))
    certificate = Certificate("m", "c", "cpu", "highest", checks)
    assert not certificate.failures
    assert not certificate.passed
    assert certificate.verdict.startswith("NOT CERTIFIED")


def test_weak_problem_is_named(tmp_path: Path) -> None:
    loaded = subject(tmp_path, SOFTMAX_OF_ONE, SOFTMAX_OF_ONE + SAME)
    check, finding = run_check(loaded, ROWS["null models"])
    weak = finding.weak
    assert check.passed is None
    assert any("a constant" in sentence for sentence in weak)
    assert any("a stale result" in sentence for sentence in weak)
    assert not any("zeros" in sentence for sentence in weak)


def test_tf32_is_a_null_of_a_product(tmp_path: Path) -> None:
    found = run_some(tmp_path, LINEAR, LINEAR + SAME, "null models")["null models"]
    assert found.passed is True
    assert "TF32" in found.detail


def test_tf32_is_no_null_without_a_product(tmp_path: Path) -> None:
    checks = run_some(tmp_path, MANY_OUTPUTS, MANY_OUTPUTS + SAME, "null models")
    assert checks["null models"].passed is True
    assert "TF32" not in checks["null models"].detail


@pytest.mark.parametrize("model", [MANY_OUTPUTS, HALF, FIXED_SIZE], ids=["many", "half", "fixed"])
def test_a_model_is_itself(model: str, tmp_path: Path) -> None:
    checks = run_all(tmp_path, model, model + SAME)
    assert [str(check) for check in checks.values() if check.passed is False] == []
    assert checks["oracle"].passed is True


def test_batch_check_does_not_apply_to_a_fixed_size(tmp_path: Path) -> None:
    checks = run_some(tmp_path, FIXED_SIZE, FIXED_SIZE + SAME, "oracle", "batch 7")
    assert checks["batch 7"].passed is None
    assert checks["oracle"].passed is True


def test_wrong_integer_output_fails(tmp_path: Path) -> None:
    wrong = MANY_OUTPUTS + SAME.replace(
        "pass", "forward = lambda s, x, y: {'sum': x + y, 'best': (x.argmin(1), [y.exp()])}"
    )
    checks = run_some(tmp_path, MANY_OUTPUTS, wrong, "oracle")
    assert checks["oracle"].passed is False
    assert "output 1 at (0,)" in checks["oracle"].detail


COUNTING = """
from collections import Counter

class ModelNew(Model):
    fallbacks = Counter()

    def forward(self, x):
        if CONDITION:
            type(self).fallbacks["an odd batch"] += 1
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("condition", "passed"), [("len(x) == 7", True), ("True", False), ("False", True)]
)
def test_fallbacks_fail_only_in_main_checks(condition: str, passed: bool, tmp_path: Path) -> None:
    candidate = LINEAR + COUNTING.replace("CONDITION", condition)
    checks = run_some(tmp_path, LINEAR, candidate, "oracle", "inputs: normal", "batch 7").values()
    check = judge_fallbacks(checks, MAIN)
    assert check.passed is passed
    assert ("an odd batch" in check.detail) is (condition != "False")


def test_failure_names_element_and_figures(tmp_path: Path) -> None:
    candidate = body("y = super().forward(x)\ny[3, 5] += 1\nreturn y")
    check = run_some(tmp_path, LINEAR, candidate, "oracle")["oracle"]
    assert "output 0 at (3, 5)" in check.detail
    assert "float64 says" in check.detail
    assert check.error is not None and check.allowed is not None and check.error > check.allowed


@pytest.mark.parametrize(
    ("candidate", "error", "message"),
    [
        ("x = 1", InputError, "defines no `class ModelNew"),
        ("raise ValueError('no luck')", InputError, "no luck"),
        ("class ModelNew(nn.Module):\n    pass", InputError, "must take the arguments of Model"),
        (
            "from torch.utils.cpp_extension import load\nload('kw_none', ['no_such_file.cpp'])",
            BuildError,
            "could not be built",
        ),
    ],
)
def test_unusable_candidate_is_the_users_error(
    candidate: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        subject(tmp_path, LINEAR, candidate)


def test_lazy_build_failure_is_a_build_error(tmp_path: Path) -> None:
    candidate = body(
        "from torch.utils.cpp_extension import load\nreturn load('kw_none', ['no_such_file.cpp'])"
    )
    with pytest.raises(BuildError, match="could not be built"):
        run_some(tmp_path, LINEAR, candidate, "runs")


@pytest.mark.parametrize(("groups", "bits_dropped"), [(16, 0), (8, 0), (8, 7)])
def test_accuracy_decides_and_not_luck(groups: int, bits_dropped: int, tmp_path: Path) -> None:
    """Small groups are ill-conditioned: another order of summation must pass, fewer bits not."""
    model = LINEAR.replace("return [32, 4]", f"return [32, {groups}]")
    weight = "self.linear.weight.flip(1)"
    if bits_dropped:
        mask = -(1 << bits_dropped)
        weight += f".contiguous().view(torch.int32).bitwise_and({mask}).view(torch.float32)"
    candidate = model + SUBCLASS.replace(
        "BODY",
        f"y = F.linear(x.flip(1), {weight}, self.linear.bias)\n"
        "        return F.leaky_relu(self.norm(y), 0.01)",
    )
    names = ("oracle", "inputs: normal", "batch 1", "batch 37", "larger batch")
    passed = [x.passed for x in run_some(tmp_path, model, candidate, *names).values()]
    assert passed == [not bits_dropped] * len(names)
