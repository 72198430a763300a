"""Names and constants of the user's program that generated code must survive: compiled and run."""

from __future__ import annotations

import textwrap
from pathlib import Path

import checking
import pytest
import torch

TAIL = """

def get_inputs():
    return [torch.randn(6, 12)]


def get_init_inputs():
    return []
"""

MODELS = {
    "unicode identifiers": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.größe = nn.Parameter(torch.randn(12))
                self.слой = nn.Linear(12, 8)

            def forward(self, données):
                return torch.softmax(self.слой(données * self.größe), dim=1)
    """,
    "C++ keywords and names of the program struct": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.template = nn.Parameter(torch.randn(12))
                self.a = nn.Parameter(torch.randn(12))
                self.s = nn.Parameter(torch.randn(12))
                self.v = nn.Parameter(torch.randn(12))
                self.at = nn.Parameter(torch.randn(12))
                self.char = nn.LayerNorm(12)
                self.namespace = nn.Linear(12, 8)
                self.Args = nn.GroupNorm(2, 8)

            def forward(self, x):
                x = self.char(x * self.template + self.a) * self.s + self.v - self.at
                return self.Args(torch.tanh(self.namespace(x)))
    """,
    "words that differ by an underscore": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Parameter(torch.randn(12))
                self.a_ = nn.Parameter(torch.randn(12))
                self.a_out = nn.Parameter(torch.randn(12))
                self.a_in = nn.Parameter(torch.randn(12))
                self.out = nn.Parameter(torch.randn(12))
                self.out_ = nn.Parameter(torch.randn(12))

            def forward(self, x):
                return torch.softmax(x * self.a + self.a_ * self.a_out, dim=1) * self.a_in + (
                    self.out * self.out_
                )
    """,
    "Python builtins and keywords": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.list = nn.Linear(12, 8)
                self.sum = nn.LayerNorm(8)
                self.min = nn.Parameter(torch.randn(8))
                self.torch = nn.Parameter(torch.randn(8))

            def forward(self, int):
                return torch.logsumexp(self.sum(self.list(int)) * self.min + self.torch, dim=1)
    """,
    "an input called batch": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(12, 8)

            def forward(self, batch):
                return torch.softmax(self.linear(batch), dim=1)
    """,
    "an input called like a module, a local and a helper": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(12, 8)
                self.state = nn.Parameter(torch.randn(8))
                self.cause = nn.Parameter(torch.randn(8))
                self.collections = nn.Parameter(torch.randn(8))

            def forward(self, linear):
                x = self.linear(linear) * self.state + self.cause
                return torch.softmax(x, dim=1) + self.collections
    """,
    "an input called state": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(12, 8)

            def forward(self, state):
                return torch.softmax(self.linear(state), dim=1)
    """,
    "an input called cause": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(12, 8)

            def forward(self, cause):
                return torch.softmax(self.linear(cause), dim=1)
    """,
    "containers with numbers and odd keys": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.LayerNorm(8))
                self.by_name = nn.ModuleDict({"a-b": nn.Linear(8, 5), "c d": nn.LayerNorm(5)})
                self.scales = nn.ParameterList([torch.randn(5), torch.randn(5)])

            def forward(self, x):
                x = self.by_name["c d"](self.by_name["a-b"](self.layers(x)))
                return x * self.scales[0] + self.scales[1]
    """,
    "a parameter called like a generated value": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(12, 8)
                self.linear_without_bias = nn.Parameter(torch.randn(8))
                self.linear_bias = nn.Parameter(torch.randn(8))
                self.softmax_max = nn.Parameter(torch.randn(8))

            def forward(self, x):
                x = self.linear(x) * self.linear_without_bias + self.linear_bias
                return torch.softmax(x, dim=1) * self.softmax_max
    """,
    "globals that the emitted file might use": """
        number, major, minor, flags, name, text, folder = 3.0, 2, 1, 0, "x", "y", "z"

        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(x * number, dim=1) * (major + minor)
    """,
    "globals that are called as the emitted file's own": """
        import torch as t
        KERNELS = HEADERS = PROGRAMS = GENERATED_GEMM = 2.0
        FUSION, outside, state, blank, fused, original = 1.0, 2.0, 3.0, 4.0, 5.0, 6.0
        LIBRARY, Fusion, Memo, run, _build, hashlib, os = 1, 2, 3, 4, 5, 6, 7

        class Model(nn.Module):
            def forward(self, x):
                scale = KERNELS * HEADERS * PROGRAMS * GENERATED_GEMM + FUSION + outside + state
                scale = scale + blank + fused + original + LIBRARY + Fusion + Memo + run
                return t.softmax(x * (1.0 / scale), dim=1) * (_build + hashlib + os)
    """,
    "names with our prefix": """
        _kw_fused, _KW_FUSION, _KW_PROGRAMS = 2.0, 3.0, 4.0

        class Model(nn.Module):
            def forward(self, _kw_outside):
                return torch.softmax(_kw_outside * _kw_fused, dim=1) * (_KW_FUSION + _KW_PROGRAMS)
    """,
    "torch under another name": """
        import torch as library
        nn_module, softmax = nn.Module, library.softmax

        class Model(nn_module):
            def forward(self, x):
                return softmax(x, dim=1) * torch.pi

        nn = "gone"
    """,
    "arguments that are called as the emitted file's own": """
        class Model(nn.Module):
            def forward(self, FUSION, outside=2.0, *, run=3.0, super=None):
                return torch.softmax(FUSION * outside, dim=1) * run
    """,
    "arguments with defaults": """
        class Model(nn.Module):
            def forward(self, x, scale=2.0, *, flag=False):
                return torch.softmax(x * scale, dim=1)
    """,
}  # fmt: skip


def write(path: Path, body: str) -> Path:
    head = "import torch\nfrom torch import nn\n\n"
    path.write_text(head + textwrap.dedent(body) + TAIL)
    return path


def check(path: Path, folder: Path) -> checking.Subject:
    subject = checking.subject(path, folder, "cpu")
    checking.check_expectations(subject)
    checking.check_values(subject, subject.inputs(), "own shapes")
    assert not subject.fallbacks
    return subject


@pytest.mark.parametrize("case", MODELS)
def test_names(case: str, tmp_path: Path, extensions: Path) -> None:
    check(write(tmp_path / "model.py", MODELS[case]), tmp_path)


@pytest.mark.parametrize(
    "file", ["it's \"quoted\".py", 'triple"""quotes.py', "back\\slash.py", "ünïcode.py",
             "new\nline.py", "3 digits & spaces.py"]
)  # fmt: skip
def test_file_names(file: str, tmp_path: Path, extensions: Path) -> None:
    check(write(tmp_path / file, MODELS["arguments with defaults"]), tmp_path)


def test_constants_keep_their_bits(tmp_path: Path, extensions: Path) -> None:
    """NaN, infinities, the smallest denormal, a decimal fraction and a negative zero."""
    body = """
        class Model(nn.Module):
            def forward(self, x):
                zero = torch.where(x > 10.0, x, -0.0)
                tiny = torch.where(x > 10.0, x, 1e-45)
                tenth = torch.where(x > 10.0, x, 0.1)
                high = torch.where(x > 0.0, float("inf"), x)
                low = torch.where(x > 0.0, x, float("-inf"))
                none = torch.where(x > 0.0, x, float("nan"))
                return zero, tiny, tenth, high, low, none
    """
    subject = checking.subject(write(tmp_path / "model.py", body), tmp_path, "cpu")
    x = subject.inputs()[0]
    candidate, eager, _ = subject.modules()
    for ours, theirs in zip(candidate(x), eager(x), strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        keep = ~theirs.isnan()
        assert torch.equal(ours[keep].view(torch.int32), theirs[keep].view(torch.int32))
