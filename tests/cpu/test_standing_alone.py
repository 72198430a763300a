"""Files and live classes of every kind, compiled, run in a plain Python elsewhere, and compared.

The emitted file and a pickle of inputs, weights and eager's outputs are all that the fresh process
gets: the model's own folder is gone by then.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from kernelwright import structures
from kernelwright.import_check import _environment
from kernelwright.loading import load_source
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem
from kernelwright.verify import verify

HEAD = "import torch\nfrom torch import nn\n"
TAIL = "\n\ndef get_inputs():\n    return {inputs}\n\n\ndef get_init_inputs():\n    return []\n"
LAYER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        {body}
"""

CHILD = """
import importlib.util, sys, torch
path, data = sys.argv[1:]
spec = importlib.util.spec_from_file_location("model_new", path)
module = importlib.util.module_from_spec(spec)
sys.modules["model_new"] = module
spec.loader.exec_module(module)
saved = torch.load(data, weights_only=False)
new = module.ModelNew()
new.load_state_dict(saved["state"])
with torch.no_grad():
    for inputs, expected in saved["calls"]:
        torch.testing.assert_close(new.eval()(*inputs), expected)
assert not sum(new.fallbacks.values()), new.fallbacks
assert "kernelwright" not in sys.modules
"""


def model(body: str, head: str = "", inputs: str = "[torch.randn(4, 8)]") -> str:
    layer = LAYER.format(body=textwrap.dedent(body).strip().replace("\n", "\n        "))
    return head + HEAD + layer + TAIL.format(inputs=inputs)


LIKED = (
    "os", "sys", "ctypes", "struct", "hashlib", "collections", "warnings", "platform", "fcntl",
    "functools", "KERNELS", "_KERNELS", "_launch", "_build", "_call", "_ready", "_machine",
    "_Precision", "load_inline", "MATMUL_PRECISION", "CONV_TF32", "FUSION", "len", "zip", "any",
    "isinstance", "getattr", "tuple", "range", "property", "dict", "type", "RuntimeError",
)  # fmt: skip

ALONE: dict[str, dict[str, str]] = {
    "a package, its data and future annotations": {
        "pack/model.py": model(
            "return scaled(self.norm(x))",
            "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
            "from .parts import scaled\nif TYPE_CHECKING:\n    from nowhere import T\n"
            "def unused(x: T) -> T | None: ...\n",
        ),
        "pack/__init__.py": "",
        "pack/parts.py": "import torch\nfrom pack.numbers import FACTOR\n\n"
        "def scaled(x):\n    return torch.softmax(x, dim=1) * FACTOR\n",
        "pack/numbers.py": "FACTOR = 2.5\n",
    },
    "every name that the emitted file likes": {
        "model.py": model(
            "return torch_softmax(self.norm(x), dim=1) * os * KERNELS",
            "from torch import softmax as torch_softmax\n",
        )
        + "".join(f"{name} = 2.0\n" for name in LIKED)
    },
    "a star import, and a ModelNew of its own": {
        "model.py": model(
            "return softmax(self.norm(x), 1) * ModelNew.factor", "from torch import *\n"
        )
        + "\n\nclass ModelNew:\n    factor = 3.0\n",
    },
}


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / next(iter(files))


@pytest.mark.parametrize("case", ALONE)
def test_alone(case: str, tmp_path: Path, extensions: Path) -> None:
    problem = load_problem(written(tmp_path / "here", ALONE[case]), "cpu")
    eager = problem.module.eval()
    compiled = compile_problem(problem, policy=ALWAYS)
    assert compiled.kernels
    emitted = tmp_path / "elsewhere" / "model_new.py"
    emitted.parent.mkdir()
    emitted.write_text(compiled.source, encoding="utf-8")
    calls = [((x,), eager(x).detach()) for x in (torch.randn(4, 8), torch.randn(7, 8))]
    torch.save({"state": eager.state_dict(), "calls": calls}, tmp_path / "data.pt")
    (tmp_path / "here").rename(tmp_path / "gone")
    environment = {**_environment(str(extensions)), "TORCH_EXTENSIONS_DIR": str(extensions)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(emitted), str(tmp_path / "data.pt")],
        cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


CLASSES = """
import collections, dataclasses
from typing import Any, NamedTuple
import torch

class Pair(NamedTuple):
    first: Any
    second: Any = None

@dataclasses.dataclass
class Output:
    y: Any
    more: Any = None

    def total(self):
        return self.y.sum()
"""

OUTPUTS = {
    "a named tuple": "return Pair(torch.softmax(y, 1), y)",
    "a dataclass": "return Output(torch.softmax(y, 1), [y.sum(1), None])",
    "a dict": 'return {"a": torch.softmax(y, 1), "b": (y, 3)}',
    "an ordered dict": "return collections.OrderedDict(b=torch.softmax(y, 1), a=y)",
    "in each other": "return [Output(Pair(y * 2, 'text'), {3: Output(y + 1)}), (y,)]",
    "nothing, numbers and strings": "return torch.softmax(y, 1), None, 1, 2.5, 'text', True",
    "max": "return torch.softmax(y, 1).max(dim=1)",
    "sort": "return torch.sort(torch.softmax(y, 1), dim=1)",
    "topk": "return torch.softmax(y, 1).topk(2)",
    "max among others": 'return {"best": (y * 2).max(dim=1), "all": y * 3}',
}


def same(ours: Any, theirs: Any) -> None:
    """The same classes with the same names, and the same values."""
    structures.register((ours, theirs))
    first, second = (pytree.tree_flatten(v) for v in (ours, theirs))
    assert bare(str(first[1])) == bare(str(second[1]))
    for mine, yours in zip(first[0], second[0], strict=True):
        assert type(mine) is type(yours)
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, yours)
        else:
            assert mine == yours


def bare(tree: str) -> str:
    """Classes without the module that they are in, which is another one in the emitted file."""
    return re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", tree)


OWN = [case for case, text in OUTPUTS.items() if "Pair" in text or "Output" in text]


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs(case: str, tmp_path: Path, extensions: Path) -> None:
    text = model(f"y = self.norm(x)\n{OUTPUTS[case]}", CLASSES)
    check(written(tmp_path, {"model.py": text}), tmp_path)


@pytest.mark.parametrize("case", OWN)
def test_outputs_of_classes_beside_the_model(case: str, tmp_path: Path, extensions: Path) -> None:
    head = "import collections\nimport kinds\nfrom kinds import Pair\nOutput = kinds.Output\n"
    text = model(f"y = self.norm(x)\n{OUTPUTS[case]}", head)
    check(written(tmp_path, {"model.py": text, "kinds.py": CLASSES}), tmp_path)


INPUTS = {
    "a list": ("[[torch.randn(4, 8), torch.randn(4, 8)]]", "x[0] * torch.tanh(x[1])"),
    "a dict": ('[{"a": torch.randn(4, 8), "n": 3}]', 'torch.tanh(x["a"]) * x["n"]'),
    "a named tuple": ("[Pair(torch.randn(4, 8), 2.0)]", "torch.tanh(x.first) * x.second"),
    "a dataclass": ("[Output(torch.randn(4, 8))]", "torch.tanh(x.y)"),
    "in each other": (
        '[{"p": [Pair(torch.randn(4, 8), (torch.randn(4, 8),))], "q": None}]',
        'torch.tanh(x["p"][0].first) + x["p"][0].second[0]',
    ),
    "by name": ('{"x": torch.randn(4, 8)}', "torch.tanh(x)"),
    "bare": ("torch.randn(4, 8)", "torch.tanh(x)"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_inputs(case: str, tmp_path: Path, extensions: Path) -> None:
    inputs, body = INPUTS[case]
    text = model(f"return torch.softmax(self.norm({body}), 1)", CLASSES, inputs)
    check(written(tmp_path, {"model.py": text}), tmp_path)


def check(path: Path, folder: Path) -> None:
    """Eager and ModelNew on the example inputs and on another batch, in the kernels."""
    problem = load_problem(path, "cpu")
    eager = problem.module.eval()
    compiled = compile_problem(problem, policy=ALWAYS)
    assert compiled.kernels
    emitted = folder / "model_new.py"
    emitted.write_text(compiled.source, encoding="utf-8")
    module = load_source(emitted)
    new = module.ModelNew().eval()
    new.load_state_dict(eager.state_dict())
    for batch in (4, 7):
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda x, n=batch: torch.randn(n, 8), (problem.inputs, problem.kwargs)
        )
        with torch.no_grad():
            expected = eager(*args, **kwargs)
            args, kwargs = in_the_classes_of(module, (args, kwargs))
            same(new(*args, **kwargs), expected)
    assert not sum(new.fallbacks.values()), new.fallbacks


def in_the_classes_of(module: Any, value: Any) -> Any:
    """The value with the classes that the emitted file has in the place of the original's."""
    if isinstance(value, dict):
        return type(value)((k, in_the_classes_of(module, v)) for k, v in value.items())
    kind = type(value)
    if kind.__name__ in ("Pair", "Output"):
        fields = {n: getattr(value, n) for n in kind.__annotations__}
        changed = {n: in_the_classes_of(module, v) for n, v in fields.items()}
        return vars(module)[kind.__name__](**changed)
    return kind(in_the_classes_of(module, v) for v in value) if kind in (list, tuple) else value


def test_nested_values_are_certified(tmp_path: Path, extensions: Path) -> None:
    """Both files have classes of their own; verify gives each its own, and compares by name."""
    inputs = '{"x": Pair(Output(torch.randn(8, 8)), [torch.randn(8, 8)])}'
    body = (
        "y = self.norm(x.first.y + x.second[0])\nreturn Output(Pair(torch.softmax(y, 1)), y.max(1))"
    )
    path = written(tmp_path, {"model.py": model(body, CLASSES, inputs)})
    emitted = tmp_path / "model_new.py"
    emitted.write_text(
        compile_problem(load_problem(path, "cpu"), policy=ALWAYS).source, encoding="utf-8"
    )
    certificate = verify(path, emitted, device="cpu", quick=True, level="drop-in")
    assert certificate.passed, certificate.failures
