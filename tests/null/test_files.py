"""Model files of every kind load, and what is emitted for them imports without them, elsewhere."""

from __future__ import annotations

import ast
import codecs
import copy
import importlib
import pickle
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch

from kernelwright import loading
from kernelwright.emit.annotations import without_future
from kernelwright.emit.original import in_utf8, original
from kernelwright.errors import InputError
from kernelwright.import_check import import_failure
from kernelwright.loading import load_source, read_source
from kernelwright.pipeline import compile_problem
from kernelwright.problem import Problem, load_problem

HEAD = "import torch\nfrom torch import nn\n"
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1)
"""
TAIL = """
def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""
BLOCK = """
class Block(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1) * FACTOR
"""
USES_BLOCK = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = {block}()

    def forward(self, x):
        return self.block(x)
"""


def plain(text: str) -> str:
    return HEAD + text + TAIL


CASES: dict[str, dict[str, str]] = {
    "a sibling": {
        "model.py": "from helpers import Block\n" + plain(USES_BLOCK.format(block="Block")),
        "helpers.py": HEAD + "FACTOR = 2.0\n" + BLOCK,
    },
    "a sibling as a module, and its own siblings": {
        "model.py": '"""Doc."""\nimport os, helpers as h\n'
        + plain(USES_BLOCK.format(block="h.Block")),
        "helpers.py": HEAD + "import constants\nfrom constants import FACTOR\n" + BLOCK,
        "constants.py": "FACTOR = 2.0\nTEXT = '''a\\n\"\"\"b\"\"\"'''\n",
    },
    "a package beside it": {
        "model.py": "import parts.blocks\n" + plain(USES_BLOCK.format(block="parts.blocks.Block")),
        "parts/__init__.py": "from .numbers import FACTOR\n",
        "parts/blocks.py": HEAD + "from . import FACTOR\n" + BLOCK,
        "parts/numbers.py": "FACTOR = 2.0\n",
    },
    "a namespace package beside it": {
        "model.py": "from parts.blocks import Block\n" + plain(USES_BLOCK.format(block="Block")),
        "parts/blocks.py": HEAD + "FACTOR = 2.0\n" + BLOCK,
    },
    "relative imports": {
        "pack/inner/model.py": "from .layers import (\n    Block,\n)\nfrom .. import numbers as n\n"
        + "from ..numbers import *\n"
        + plain(USES_BLOCK.format(block="Block")),
        "pack/__init__.py": "",
        "pack/inner/__init__.py": "",
        "pack/inner/layers.py": HEAD + "from ..numbers import FACTOR\n" + BLOCK,
        "pack/numbers.py": "FACTOR = 2.0\n",
    },
    "absolute imports of its own package": {
        "pack/model.py": "from pack.layers import Block\n"
        + plain(USES_BLOCK.format(block="Block")),
        "pack/__init__.py": "from pack import layers\n",
        "pack/layers.py": "from __future__ import annotations\n" + HEAD + "FACTOR = 2.0\n" + BLOCK,
    },
    "siblings that import each other": {
        "model.py": "from helpers import Block\n" + plain(USES_BLOCK.format(block="Block")),
        "helpers.py": HEAD + "FACTOR = 2.0\nimport others\n" + BLOCK,
        "others.py": "import helpers\n\ndef factor():\n    return helpers.FACTOR\n",
    },
    "an import inside of a function": {
        "model.py": plain(
            """
class Model(nn.Module):
    def forward(self, x):
        import helpers
        from helpers import FACTOR
        return torch.softmax(x, dim=1) * FACTOR * helpers.FACTOR
"""
        ),
        "helpers.py": "FACTOR = 2.0\n",
    },
    "a sibling for type checkers only": {
        "model.py": "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        + "if TYPE_CHECKING:\n    from nowhere import Thing\n    from .near import Other\n"
        + plain(MODEL.replace("self, x)", "self, x: Thing | Other) -> dict[Thing, 'Other']")),
    },
    "future annotations of every kind": {
        "model.py": textwrap.dedent(
            '''
            #!/usr/bin/env python
            """A docstring."""
            from __future__ import (
                annotations,
                division,
            )
            from dataclasses import dataclass
            import typing
            '''
        ).lstrip()
        + HEAD
        + """
@dataclass
class Point:
    x: Unknown[
        int,
        "str",
    ]
    kind: typing.ClassVar[Unknown] = 3

limit: Unknown = 3

def helper(a: Unknown, /, *rest: Unknown, b: "Unknown" = 3, **more: None) -> Unknown | None:
    inner: Unknown = a
    return inner
"""
        + MODEL.replace("x * self.scale", "helper(x) * self.scale")
        + TAIL,
    },
    "a future import beside another statement": {
        "model.py": "from __future__ import annotations; import math  # why\n" + plain(MODEL),
    },
    "a BOM": {"model.py": "\ufeff" + plain(MODEL + "# ä\n")},
    "CRLF": {"model.py": plain(MODEL).replace("\n", "\r\n")},
    "a main block": {
        "model.py": plain(MODEL) + '\nif __name__ == "__main__":\n    raise SystemExit("ran")\n'
    },
    "its own path": {
        "model.py": "import os\nfrom pathlib import Path\nhere = Path(__file__).parent\n"
        + "FACTOR = float((here / 'factor.txt').read_text())\n"
        + "import helpers\n"
        + plain(BLOCK + USES_BLOCK.format(block="Block")),
        "helpers.py": "import os\n\nassert os.path.exists(__file__), __file__\n",
        "factor.txt": "2.0",
    },
    "no newline at the end": {"model.py": plain(MODEL).rstrip("\n")},
    "a lambda, a decorator and a comprehension first": {
        "model.py": "import functools\nimport helpers\n\n"
        + "@functools.lru_cache\ndef cached():\n    return 2.0\n\n"
        + "TABLE = {k: v for k, v in zip('ab', [helpers.FACTOR, cached()])}\n"
        + plain(MODEL.replace("dim=1)", "dim=1) * TABLE['a']")),
        "helpers.py": "FACTOR = 2.0\n",
    },
}


def written(folder: Path, files: dict[str, str]) -> Path:
    """Write the files; the first is the model."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder / next(iter(files))


def user_part(problem: Problem) -> dict[str, object]:
    """The names that the user's part of an emitted file binds, run on its own."""
    module = types.ModuleType("emitted_by_test_files")
    module.__file__ = "emitted.py"
    sys.modules[module.__name__] = module  # dataclasses look there
    exec(compile(original(problem).text, "emitted.py", "exec", dont_inherit=True), vars(module))
    return vars(module)


@pytest.mark.parametrize("case", CASES)
def test_the_users_part_computes_the_same(case: str, tmp_path: Path) -> None:
    """In this process, where the original is loaded too and must not be used by mistake."""
    problem = load_problem(written(tmp_path / "here", CASES[case]), "cpu")
    names = user_part(problem)
    model = names["Model"]()  # type: ignore[operator]
    (x,) = problem.inputs
    assert torch.equal(model(x), problem.module(x))
    for name in ("helpers", "h", "parts", "numbers", "n"):
        if name in names and hasattr(names[name], "FACTOR"):
            assert names[name] is not sys.modules.get(name)


@pytest.mark.parametrize("case", [c for c in CASES if len(CASES[c]) > 1 or "future" in c])
def test_the_emitted_file_stands_alone(case: str, tmp_path: Path) -> None:
    path = written(tmp_path / "here", CASES[case])
    source = compile_problem(load_problem(path, "cpu")).source
    ast.parse(source)
    assert not source.startswith("from __future__")
    emitted = tmp_path / "elsewhere" / "emitted.py"
    emitted.parent.mkdir()
    emitted.write_text(source, encoding="utf-8")
    if case != "its own path":
        (tmp_path / "here").rename(tmp_path / "moved away")
    assert import_failure(emitted, "ModelNew") is None


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8", "utf-8-sig", "shift_jis"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    word = "日本" if encoding == "shift_jis" else "äöü€" if encoding == "cp1252" else "äöü"
    cookie = "" if encoding == "utf-8-sig" else f"#!/bin/sh\n# -*- coding: {encoding} -*-\n"
    text = cookie + HEAD + f"TEXT = '{word}'\n" + MODEL + TAIL
    path = tmp_path / "model.py"
    path.write_bytes(text.encode(encoding))
    problem = load_problem(path, "cpu")
    assert user_part(problem)["TEXT"] == word
    emitted = original(problem).text.encode()
    names: dict[str, object] = {"__name__": "emitted"}
    exec(compile(emitted, "emitted.py", "exec"), names)  # bytes: the coding line is obeyed
    assert names["TEXT"] == word


def test_a_coding_line_changes_alone() -> None:
    text = "# vim: set fileencoding=latin-1 :\nx = 1  # coding: latin-1\n# coding: latin-1\n"
    assert in_utf8(text) == text.replace("=latin-1 :", "=utf-8 :")


@pytest.mark.parametrize(
    "data", [codecs.BOM_UTF8 + b"# coding: latin-1\n", b"# coding: nonsense\n", b"x = '\xff'\n"]
)
def test_bad_encodings_are_input_errors(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(data)
    with pytest.raises(InputError, match="cannot be read"):
        read_source(path)


def test_dropping_a_future_import_keeps_every_line() -> None:
    text = CASES["future annotations of every kind"]["model.py"]
    changed = without_future(text)
    assert "__future__" not in changed
    assert changed.count("\n") == text.count("\n")
    same = [a == b for a, b in zip(text.splitlines(), changed.splitlines(), strict=True)]
    assert same.count(False) == 4 + 4 + 1 + 1 + 1 + 1


def test_text_without_a_future_import_is_not_touched() -> None:
    text = plain(MODEL.replace("self, x)", "self, x: torch.Tensor)"))
    assert without_future(text) == text


def test_two_models_with_a_sibling_of_the_same_name(tmp_path: Path) -> None:
    values = []
    for number in (2.0, 3.0):
        files = dict(CASES["a sibling"])
        files["helpers.py"] = files["helpers.py"].replace("2.0", str(number))
        problem = load_problem(written(tmp_path / str(number), files), "cpu")
        values.append((problem, user_part(problem)["Model"]()))  # type: ignore[operator]
    x = torch.randn(4, 8)
    for number, (problem, model) in zip((2.0, 3.0), values, strict=True):
        expected = torch.softmax(x, dim=1) * number
        assert torch.equal(problem.module(x), expected)
        assert torch.equal(model(x), expected)


def test_a_module_of_the_process_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook's own `helpers` is neither what the model imports nor lost afterwards."""
    own = tmp_path / "own"
    written(own, {"helpers.py": "Block = FACTOR = None\n"})
    monkeypatch.syspath_prepend(own)
    monkeypatch.delitem(sys.modules, "helpers", raising=False)
    helpers = importlib.import_module("helpers")
    problem = load_problem(written(tmp_path / "model", CASES["a sibling"]), "cpu")
    assert sys.modules["helpers"] is helpers and helpers.Block is None
    (x,) = problem.inputs
    assert torch.equal(user_part(problem)["Model"]()(x), problem.module(x))  # type: ignore[operator]


def test_the_path_is_left_as_it_was(tmp_path: Path) -> None:
    before = [entry for entry in sys.path if entry not in loading._models]
    load_problem(written(tmp_path, CASES["a sibling"]), "cpu")
    assert sys.path[: len(before) + 1] == [*before, str(tmp_path.resolve())]


def test_a_loaded_module_can_be_pickled_and_inspected(tmp_path: Path) -> None:
    import inspect

    text = plain(MODEL) + (
        "\nimport dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: 'dataclasses.KW_ONLY'\n"
    )
    path = written(tmp_path, {"model.py": text})
    first, second = load_problem(path, "cpu"), load_problem(path, "cpu")
    for problem in (first, second):
        module = pickle.loads(pickle.dumps(problem.module))
        assert type(module) is type(problem.module)
        assert inspect.getsource(type(module)) in text
        assert copy.deepcopy(problem.module).scale.shape == (8,)
    names = {type(p.module).__module__ for p in (first, second)}
    assert len(names) == 2
    assert load_source(path).__name__.startswith(min(names))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError while it was loaded (line 1)"),
        ("from .near import x\n", "ImportError while it was loaded (line 1)"),
        ("import sys\n\nsys.exit(3)\n", "SystemExit while it was loaded (line 3)"),
        ("x = 1\ny = (\n", "SyntaxError while it was loaded (line 2)"),
        ("import broken\n", "ZeroDivisionError while it was loaded (line 1)"),
    ],
)
def test_what_a_file_does_wrong_is_named_with_its_line(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = written(tmp_path, {"model.py": text, "broken.py": "\n\n1 / 0\n"})
    known = set(sys.modules)
    with pytest.raises(InputError) as caught:
        load_problem(path, "cpu")
    assert expected in str(caught.value)
    assert not [name for name in set(sys.modules) - known if "kernelwright_user" in name]
