"""What tracing bakes in must fail, by the name of the check that finds it.

Each wrong candidate computes what a trace of the example would: it is right on the file's own
inputs, as its module was constructed, and another function wherever people go on from there. The
model itself, as a candidate, passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from verifying import certified, run_some

from kernelwright.problem import as_arguments

SAME = "class ModelNew(Model): pass\n"


def model(
    init: str, forward: str, signature: str = "x", arguments: str = "", given: str = ""
) -> str:
    """A model file in few words: bodies of __init__ and forward, and their parameters."""
    return f"""
class Model(nn.Module):
    def __init__(self{", " if arguments else ""}{arguments}):
        super().__init__()
        {init}

    def forward(self, {signature}):
        {forward}

def get_inputs():
    return [torch.rand(6, 8)]

def get_init_inputs():
    return [{given}]
"""


def traced(forward: str, signature: str = "x, *args, **kwargs") -> str:
    """A candidate with another forward than its Model's."""
    return f"class ModelNew(Model):\n    def forward(self, {signature}):\n        {forward}\n"


SCALE = model("pass", "return x * scale", "x, scale=2.0")
MODE = model("pass", 'return x.tanh() if act == "tanh" else x.relu() - 1', 'x, act="relu"')
MASK = model("pass", "return x if mask is None else x.masked_fill(mask, 0.0)", "x, mask=None")
FLAG = model("pass", "return x.cumsum(0) if up else x", "x, *, up=False")
MORE = model("pass", "return x + sum(y for y in more)", "x, *more")
STRICT = model("pass", 'return x * {"one": 1.0, "two": 2.0}[kind]', 'x, kind="one"')
FACTOR = model("self.k = k", "return x * self.k", arguments="k", given="2.0")
ACT = model(
    "self.act = act",
    'return x.relu() - 1 if self.act == "relu" else x.tanh()',
    arguments="act",
    given="'relu'",
)
NOISE = model("self.w = torch.randn(8)", "return x * self.w")
LAYERS = """
class Model(nn.Module):
    use_act = True

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return F.leaky_relu(y, 0.1) if self.use_act else y

def get_inputs():
    return [torch.rand(6, 8)]
"""
COUNTING = model("self.n = 0", "self.n += 1; return x * self.n")
THRESHOLD = model("pass", "return x * 2 if x.shape[0] > 4 else x + 1")
WIDTH = model("pass", "return x * x.shape[1]")

FUSED = """w, b = self.linear.weight, self.linear.bias
        y = F.layer_norm(F.linear(x, w, b), (8,), self.norm.weight, self.norm.bias, {eps})
        return {tail}"""


@dataclass(frozen=True)
class Baked:
    """A model, what a trace of it computes, and the check that must tell them apart."""

    name: str
    check: str
    model: str
    candidate: str


def fused(eps: str = "1e-5", tail: str = "F.leaky_relu(y, 0.1) if self.use_act else y") -> str:
    return traced(FUSED.format(eps=eps, tail=tail))


BAKED = [
    Baked("a default", "arguments: defaults", SCALE, traced("return x * 2.0")),
    Baked("a keyword", "arguments: defaults", SCALE, traced("return x * 2.0", "x")),
    Baked("a string", "arguments: defaults", MODE, traced("return x.relu() - 1")),
    Baked("a mask", "arguments: defaults", MASK, traced("return x")),
    Baked("a keyword-only flag", "arguments: defaults", FLAG, traced("return x * 1.0")),
    Baked("more arguments", "arguments: defaults", MORE, traced("return x * 1.0")),
    Baked(
        "an error",
        "arguments: defaults",
        STRICT,
        traced('return x * (1 + (kind == "two"))', 'x, kind="one"'),
    ),
    Baked("a factor", "arguments: constructor", FACTOR, traced("return x * 2.0")),
    Baked("a mode", "arguments: constructor", ACT, traced("return x.relu() - 1")),
    Baked(
        "a random constant",
        "uses: function",
        NOISE,
        """
W = []

class ModelNew(Model):
    def forward(self, x):
        W.append(self.w.clone())
        return x * W[0]
""",
    ),
    Baked("eps", "attributes", LAYERS, fused()),
    Baked("a flag", "attributes", LAYERS, fused("self.norm.eps", "F.leaky_relu(y, 0.1)")),
    Baked(
        "a plain tensor",
        "attributes",
        NOISE,
        """
class ModelNew(Model):
    def __init__(self):
        super().__init__()
        self.baked = self.w.clone()

    def forward(self, x):
        return x * self.baked
""",
    ),
    Baked(
        "a hook on the root",
        "hooks",
        SCALE,
        """
class ModelNew(Model):
    def __call__(self, x):
        return x * 2.0
""",
    ),
    Baked("a counter", "Python state", COUNTING, traced("return x")),
    Baked("a counter's results", "Python state", COUNTING, traced("self.n += 1; return x")),
    Baked("a branch", "sizes: batch", THRESHOLD, traced("return x * 2")),
    Baked("a width", "sizes: other dimensions", WIDTH, traced("return x * 8")),
]


@pytest.mark.parametrize("baked", BAKED, ids=lambda baked: baked.name)
def test_baked_in_fails_and_the_model_passes(baked: Baked, tmp_path: Path) -> None:
    names = ("oracle", baked.check)
    wrong = run_some(tmp_path, baked.model, baked.model + baked.candidate, *names)
    assert wrong["oracle"].passed is True, wrong["oracle"]
    assert wrong[baked.check].passed is False, wrong[baked.check]
    right = run_some(tmp_path, baked.model, baked.model + SAME, *names)
    assert right[baked.check].passed is True, right[baked.check]


@pytest.mark.parametrize("check", ["submodules", "hooks: sublayers"])
def test_sublayers_that_are_not_called_are_a_limit(check: str, tmp_path: Path) -> None:
    """A kernel that reads the weights is right, but not for whoever replaces a layer."""
    certificate = certified(tmp_path, LAYERS, LAYERS + fused("self.norm.eps"), ["oracle", check])
    found = {check.name: check for check in certificate.checks}
    assert certificate.passed and found[check].passed is None, certificate
    assert any("does not call linear" in limit for limit in certificate.limits)
    assert all(limit in str(certificate) for limit in certificate.limits)


def test_findings_say_what_was_varied(tmp_path: Path) -> None:
    wrong = run_some(tmp_path, SCALE, SCALE + traced("return x * 2.0"), "arguments: defaults")
    assert "forward with scale = 1.0 by keyword" in wrong["arguments: defaults"].detail
    right = run_some(tmp_path, LAYERS, LAYERS + SAME, "attributes", "submodules", "hooks")
    assert "attributes changed" in right["attributes"].detail
    assert "changes of sublayers" in right["submodules"].detail
    assert "hooks" in right["hooks"].detail


def test_modules_are_left_as_they_were(tmp_path: Path) -> None:
    """No change, hook, cast or gradient of one check is there in the next."""
    names = ("attributes", "submodules", "hooks", "weights: .half()", "gradients: hooks", "oracle")
    first = run_some(tmp_path, LAYERS, LAYERS + SAME, "oracle")["oracle"]
    checks = run_some(tmp_path, LAYERS, LAYERS + SAME, *names)
    assert checks["oracle"].error == first.error
    assert all(check.passed for check in checks.values()), [str(x) for x in checks.values()]


NESTED = """
class Model(nn.Module):
    def forward(self, x, pair, scale=1.5):
        return {"a": pair[0]["y"] * scale + x, "b": pair[1].exp()}

def get_inputs():
    return [torch.rand(6, 8), [{"y": torch.rand(6, 8)}, torch.rand(6, 8)]]
"""


def test_nested_inputs_are_drawn_and_resized(tmp_path: Path) -> None:
    names = ("oracle", "batch 7", "layout: transposed", "arguments: defaults", "gradients")
    checks = run_some(tmp_path, NESTED, NESTED + SAME, *names)
    assert all(check.passed for check in checks.values()), [str(x) for x in checks.values()]
    wrong = NESTED + SAME.replace("pass", "forward = lambda s, x, p: {'a': x, 'b': p[1].exp()}")
    assert run_some(tmp_path, NESTED, wrong, "oracle")["oracle"].passed is False


KEYWORDS = """
class Model(nn.Module):
    def forward(self, x, *, pair, scale=1.5):
        return pair["y"] * scale + x

def get_inputs():
    return {"x": torch.rand(6, 8), "pair": {"y": torch.rand(6, 8)}}
"""


def test_keyword_inputs_are_drawn_and_resized(tmp_path: Path) -> None:
    names = ("oracle", "batch 7", "sizes: other dimensions", "arguments: defaults", "gradients")
    checks = run_some(tmp_path, KEYWORDS, KEYWORDS + SAME, *names)
    assert all(check.passed for check in checks.values()), [str(x) for x in checks.values()]
    baked = KEYWORDS + traced("return pair['y'] * 1.5 + x", "x, *, pair, scale=1.5")
    wrong = run_some(tmp_path, KEYWORDS, baked, "oracle", "arguments: defaults")
    assert [check.passed for check in wrong.values()] == [True, False]


def test_keyword_inputs_are_told_from_nested_ones() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    assert as_arguments([x, y]) == ((x, y), {})
    assert as_arguments(x) == ((x,), {})
    assert as_arguments({"x": x}) == ((), {"x": x})
    assert as_arguments([x, {"y": y}]) == ((x, {"y": y}), {})
