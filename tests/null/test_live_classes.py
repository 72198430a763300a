"""Live modules whose classes no other Python can import: written down with all that they need."""

from __future__ import annotations

import copy
import itertools
import linecache
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright.emit.original import original
from kernelwright.errors import InputError
from kernelwright.import_check import import_failure
from kernelwright.lent import why_lent
from kernelwright.pipeline import compile_problem
from kernelwright.problem import problem_from_module

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks take the place of the main module until a test has ended."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


class Notebook:
    """Cells that are run one after the other, as IPython does it: their text is in linecache."""

    def __init__(self) -> None:
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self.space = vars(module)
        self.run(HEAD)

    def run(self, text: str) -> Notebook:
        text = textwrap.dedent(text)
        name = f"<ipython-input-{next(NUMBERS)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec", dont_inherit=True), self.space)
        return self

    def __getitem__(self, name: str) -> Any:
        return self.space[name]


def emitted(module: nn.Module, classes: tuple[type, ...] = ()) -> types.ModuleType:
    """The user's part for a live module, run on its own."""
    found = original(problem_from_module(module, torch.randn(4, 8)), classes)
    space = types.ModuleType("emitted_by_test_live_classes")
    sys.modules[space.__name__] = space
    exec(compile(found.text, "emitted.py", "exec", dont_inherit=True), vars(space))
    for kind in classes:
        assert vars(space)[found.names[kind]].__name__ == kind.__name__
    return space


def check(module: nn.Module) -> types.ModuleType:
    """The written class computes what the live one does, over the same state."""
    space = emitted(module)
    copy = space.Model.__new__(space.Model)
    copy.__dict__ = dict(module.__dict__)
    x = torch.randn(4, 8)
    ours, theirs = copy(x), module(x)
    assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
    assert space.Model is not type(module)
    return space


CELLS: dict[str, list[str]] = {
    "helpers, globals and imports": [
        "import math\nimport functools\nSCALE, TABLE = 2.0, {'a': [1, float('inf')], 'b': None}",
        "def helper(x):\n    return other(x) * math.pi",
        "def other(x):\n    return F.relu(x) * SCALE",
        """
        class Net(nn.Module):
            def forward(self, x):
                return functools.reduce(torch.add, [helper(x), x]) + TABLE["a"][0]
        """,
    ],
    "a base class, a mixin and super with arguments": [
        "class Mixin:\n    def twice(self, x):\n        return x * 2",
        "class Base(nn.Module):\n    def forward(self, x):\n        return self.twice(x) + 1",
        """
        class Net(Mixin, Base):
            def forward(self, x):
                return super(Net, self).forward(x) * 3
        """,
    ],
    "decorators": [
        "import functools\nLIMIT = 3.0",
        """
        def limited(limit):
            def wrap(f):
                @functools.wraps(f)
                def inner(*args):
                    return f(*args).clamp(max=limit * LIMIT)
                return inner
            return wrap

        @limited(0.5)
        def helper(x):
            return x * 3

        def as_it_is(kind):
            return kind
        """,
        """
        @as_it_is
        class Net(nn.Module):
            @limited(2)
            def forward(self, x):
                return helper(x) + self.shift

            @property
            def shift(self):
                return LIMIT

            @staticmethod
            def unused(x=LIMIT):
                return x
        """,
    ],
    "a class in a function, with its variables": [
        """
        def make(width, act):
            offset = width + 1
            class Block(nn.Module):
                def forward(self, x):
                    return act(x) + offset
            class Net(Block):
                def __init__(self):
                    super().__init__()
                    self.block = Block()
                def forward(self, x, factor=width):
                    return self.block(super().forward(x)) * factor
            return Net
        Net = make(3, lambda x: x * 2)
        """,
    ],
    "closures that share a name": [
        "def scaled(k):\n    def scale(x):\n        return x * k\n    return scale",
        "small, large = scaled(0.5), scaled(7)",
        "class Net(nn.Module):\n    def forward(self, x):\n        return small(x) + large(x)",
    ],
    "lambdas on one line": [
        "first, second = (lambda x: x + 1), (lambda x: x * 2)",
        "class Net(nn.Module):\n    def forward(self, x):\n        return second(first(x))",
    ],
    "a class that was defined twice": [
        "class Net(nn.Module):\n    def forward(self, x):\n        return x * 1",
        "class Net(nn.Module):\n    def forward(self, x):\n        return x * 2",
    ],
    "a class that was changed": [
        "SCALE = 2.0",
        """
        class Net(nn.Module):
            scale, shift = SCALE, 1.0
            def unchanged(self):
                return self
            def forward(self, x):
                return x
        """,
        "def other(self, x):\n    return (x * self.scale + self.shift + self.extra) * SCALE",
        "Net.forward = other\nNet.shift = 5.0\nNet.extra = 0.25\nSCALE = 3.0",
    ],
    "values of many kinds": [
        "import collections, dataclasses, enum, types, functools\nfrom typing import NamedTuple",
        "class Kind(enum.Enum):\n    A = 1\n    B = 2",
        "@dataclasses.dataclass\nclass Config:\n    width: int\n    kind: Kind = Kind.A",
        "class Point(NamedTuple):\n    x: float\n    y: float = 2.0",
        """
        Pair = collections.namedtuple("Pair", "a b", defaults=[3])
        CONFIG, POINT, PAIR = Config(3, Kind.B), Point(1.5), Pair(Config(4))
        SPACE, SET = types.SimpleNamespace(a=[Kind.A]), {1, 2}
        HALF = functools.partial(torch.mul, other=0.5)
        TENSOR, DTYPE = torch.arange(8.0).half(), torch.float64
        ORDERED = collections.OrderedDict(a=(1,), b=[F.relu, nn.ReLU, torch.tanh])
        """,
        """
        class Net(nn.Module):
            def forward(self, x):
                x = HALF(x) + TENSOR + CONFIG.width + POINT.y + PAIR.a.width + PAIR.b
                if CONFIG.kind is Kind.B and SPACE.a == [Kind.A] and 2 in SET:
                    x = ORDERED["b"][2](ORDERED["b"][0](x))
                return x.to(DTYPE)
        """,
    ],
    "annotations that cannot be evaluated": [
        "from typing import TYPE_CHECKING, Optional\nif TYPE_CHECKING:\n    import nowhere.Thing",
        """
        class Net(nn.Module):
            size: "Thing" = 3
            def forward(self, x: torch.Tensor, other: Optional["Thing"] = None) -> "Thing | None":
                y: Thing = x
                return y * self.size
        """,
    ],
    "functions that call each other": [
        "def even(x, n):\n    return x if n == 0 else odd(x * 2, n - 1)",
        "def odd(x, n):\n    return x if n == 0 else even(x + 1, n - 1)",
        "class Net(nn.Module):\n    def forward(self, x):\n        return even(x, 3)",
    ],
    "names of builtins and of the emitted file": [
        "def max(x):\n    return x * 2\n\nModel, ModelNew, torch_ = 3.0, 4.0, torch",
        """
        class Net(nn.Module):
            def forward(self, x):
                return max(torch_.relu(x)) * Model + ModelNew
        """,
    ],
    "a class called Model": [
        "class Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n\nNet = Model"
    ],
    "strings with blanks of their own": [
        '''
        def make():
            class Net(nn.Module):
                """A docstring
            with less blanks than the class."""
                text = """
                    four
        none
                """
                def forward(self, x):
                    return x * len(self.text) + len(f"""
                        {x.ndim}
                    """)
            return Net
        Net = make()
        ''',
    ],
    "submodules of modules": [
        "import concurrent.futures\nimport os.path as p",
        """
        class Net(nn.Module):
            def forward(self, x):
                return x * len(p.join("a", "b")) + (concurrent.futures.ALL_COMPLETED == "")
        """,
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", CELLS)
def test_notebooks(case: str) -> None:
    notebook = Notebook()
    for cell in CELLS[case]:
        notebook.run(cell)
    check(notebook["Net"]())


def test_a_global_of_two_modules_is_two_names() -> None:
    """Two notebooks in one process: what is called SCALE differs between them."""
    first, second = Notebook(), Notebook()
    first.run("SCALE = 2.0\nclass Base(nn.Module):\n    def go(self, x):\n        return x * SCALE")
    second.space["Base"] = first["Base"]
    second.run("SCALE = 5.0")
    second.run("class Net(Base):\n    def forward(self, x):\n        return self.go(x + SCALE)")
    check(second["Net"]())


def test_what_only_init_uses_may_be_missing() -> None:
    notebook = Notebook().run("""
        log = open("/dev/null")
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.name = log.name
            def forward(self, x):
                return x * 2
    """)
    text = original(problem_from_module(notebook["Net"](), torch.randn(4, 8))).text
    assert "# log is missing here." in text
    check(notebook["Net"]())


def test_classes_of_parts_are_written_too() -> None:
    notebook = Notebook().run(
        "class Block(nn.Module):\n    def forward(self, x):\n        return x * 2"
    )
    space = emitted(nn.Sequential(notebook["Block"](), nn.ReLU()))
    assert space.Model is nn.Sequential
    assert space.Block.__name__ == "Block"


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        nn.Softmax(dim=1),
        nn.Linear(8, 8),
        nn.Flatten(),
    ],
)
def test_torch_classes_are_imported(module: nn.Module) -> None:
    text = original(problem_from_module(module, torch.randn(4, 8))).text
    name = type(module).__name__
    assert text == f"from {type(module).__module__} import {name}\n\n\nModel = {name}\n"


def test_classes_that_the_generated_part_names() -> None:
    notebook = Notebook().run("""
        import dataclasses, collections
        @dataclasses.dataclass
        class Output:
            y: torch.Tensor
        class Net(nn.Module):
            def forward(self, x):
                return Output(x)
    """)
    import collections

    emitted(notebook["Net"](), (notebook["Output"], collections.OrderedDict))


UNWRITABLE = {
    "a file in a closure": (
        """
        def make(log):
            class Net(nn.Module):
                def forward(self, x):
                    return x * len(log.name)
            return Net
        Net = make(open("/dev/null"))
        """,
        "uses log, a TextIOWrapper",
    ),
    "a module as a global": (
        "ACT = nn.ReLU()\nclass Net(nn.Module):\n    def forward(self, x):\n        return ACT(x)",
        "uses ACT, a ReLU",
    ),
    "a large tensor": (
        "W = torch.randn(80, 80)\nclass Net(nn.Module):\n"
        "    def forward(self, x):\n        return x * W[0, :8]",
        "uses W, a Tensor",
    ),
    "a base class that is gone": (
        """
        def make(decorate):
            @decorate
            class Net(nn.Module):
                def forward(self, x):
                    return x
            return Net
        Net = make(lambda kind: kind)
        """,
        "uses decorate, a variable of a function around it that has ended",
    ),
    "a class without a text": (
        "Net = type('Net', (nn.Module,), {'forward': lambda self, x: x * 2})",
        "The source of Net cannot be read",
    ),
}


def why_not(kind: type[nn.Module]) -> str:
    """Why the text cannot stand alone; here, the class itself is lent to it."""
    text = original(problem_from_module(kind(), torch.randn(4, 8))).text
    space: dict[str, Any] = {}
    exec(text, space)
    assert space["Model"] is kind
    return why_lent(text) or ""


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_cannot_be_written_is_named(case: str) -> None:
    text, expected = UNWRITABLE[case]
    notebook = Notebook().run(text)
    assert expected in why_not(notebook["Net"])


def test_a_plain_prompt_without_text_lends_its_class() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(HEAD + "class Prompted(nn.Module):\n    def forward(self, x):\n        return x", space)
    assert "The source of Prompted cannot be read" in why_not(space["Prompted"])


def test_a_text_that_has_changed_is_not_written() -> None:
    notebook = Notebook().run(
        "class Net(nn.Module):\n    def forward(self, x):\n        return x * 2"
    )
    name = notebook["Net"].forward.__code__.co_filename
    lines = [line.replace("* 2", "* 3") for line in linecache.cache[name][2]]
    linecache.cache[name] = (1, None, lines, name)
    assert "is not the one that runs" in why_not(notebook["Net"])


SCRIPT = (
    HEAD
    + """
import sys
from pathlib import Path
import neighbour

SCALE = 2.0

def helper(x):
    return torch.softmax(x, dim=1) * SCALE * neighbour.FACTOR

class Net(nn.Module):
    def forward(self, x):
        return helper(x)

if __name__ == "__main__":
    import kernelwright
    compiled = kernelwright.explain(Net().eval(), (torch.randn(4, 8),))
    Path(sys.argv[1]).write_text(compiled.source, encoding="utf-8")
"""
)


def run_script(folder: Path, text: str) -> Path:
    """The emitted file of a live module that a script of its own compiles."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(text)
    (folder / "neighbour.py").write_text("FACTOR = 3.0\n")
    target = folder.parent / "emitted.py"
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), str(target)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def test_a_class_in_main(tmp_path: Path) -> None:
    target = run_script(tmp_path / "project", SCRIPT)
    text = target.read_text()
    assert "class Net(nn.Module)" in text and "kernelwright.explain" not in text
    assert import_failure(target, "ModelNew") is None


def test_a_class_of_a_package_that_is_not_installed(tmp_path: Path) -> None:
    package = tmp_path / "project" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(
        SCRIPT.replace("import neighbour\n", "").replace(" * neighbour.FACTOR", "")
    )
    script = (
        SCRIPT.split("SCALE")[0]
        + "from mine.nets import Net\n"
        + SCRIPT[SCRIPT.index("if __name") :]
    )
    target = run_script(tmp_path / "project", script)
    assert "from mine.nets import Net" in target.read_text()
    assert import_failure(target, "ModelNew") is None


def test_the_whole_file_for_a_notebook(tmp_path: Path) -> None:
    notebook = Notebook()
    for cell in CELLS["closures that share a name"]:
        notebook.run(cell)
    compiled = compile_problem(problem_from_module(notebook["Net"]().eval(), torch.randn(4, 8)))
    target = tmp_path / "emitted.py"
    target.write_text(compiled.source, encoding="utf-8")
    assert import_failure(target, "ModelNew") is None


def scaled_outside(x: torch.Tensor) -> torch.Tensor:
    return x * 3


torch.fx.wrap("scaled_outside")


class Traced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4), persistent=False)

    def forward(self, x: torch.Tensor, most: float = float("inf")) -> torch.Tensor:
        return scaled_outside(self.parts(x) * self.scale + self.shift).clamp(max=most)


def test_a_graph_module_is_what_its_code_says(tmp_path: Path) -> None:
    module = torch.fx.symbolic_trace(Traced())
    compiled = kernelwright.explain(module, (torch.randn(4, 8),))
    plain = compiled.problem.module
    assert isinstance(module, torch.fx.GraphModule) and type(plain).__name__ == "Traced"
    assert plain.state_dict().keys() == module.state_dict().keys()
    assert all(a is b for a, b in zip(plain.parameters(), module.parameters(), strict=True))
    assert (
        why_lent(compiled.source) is None and "torch.fx." not in compiled.source.split("# ---")[0]
    )
    space: dict[str, Any] = {}
    exec(original(compiled.problem).text, space)
    x = torch.randn(3, 8)
    torch.testing.assert_close(space["Model"](module)(x), module(x))
    torch.testing.assert_close(copy.deepcopy(plain)(x, 0.1), module(x, 0.1))
    target = tmp_path / "emitted.py"
    target.write_text(compiled.source, encoding="utf-8")
    assert import_failure(target, "ModelNew") is None


def test_wrappers_are_refused() -> None:
    with pytest.raises(InputError, match="not the DataParallel around it"):
        problem_from_module(nn.DataParallel(nn.ReLU()), torch.randn(4, 8))
