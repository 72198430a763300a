"""A random model as a value: inputs, parts, statements, outputs; and as a model file, both ways.

The file is in the input format of the package, so whatever fails can be kept, read, and run like
any other model. Statements are in single-assignment form: `run` carries them out one by one, in any
type, and can disturb the result of each step in them as rounding would.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

NAME = re.compile(r"\b[xv]\d+\b")
PART = re.compile(r"\bself\.(p\d+)\b")
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
INDENT = "        "
BATCH = 5
ROUNDED = "_rounded"


@dataclass(frozen=True)
class Statement:
    """`name = text`, or `name, name = text`: an expression of earlier names and of parts."""

    name: str
    text: str

    @property
    def names(self) -> list[str]:
        return self.name.split(", ")

    @property
    def uses(self) -> set[str]:
        return set(NAME.findall(self.text))


@dataclass(frozen=True)
class Recipe:
    """`inputs` are (name, text) with `batch` for the batch; `parts` lines of __init__.

    `batch` is that of the example which the model is compiled for.
    """

    inputs: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    outputs: str
    training: bool = False
    dtype: str = "float32"
    note: str = "A random model."
    batch: int = BATCH

    # ---- the file --------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        own = [f"{INDENT}{line}" for _, line in self.parts]
        if not self.training:
            own.append(f"{INDENT}self.eval()")
        if self.dtype != "float32":
            own.append(f"{INDENT}self.to(torch.{self.dtype})")
        body = [f"{INDENT}{s.name} = {s.text}" for s in self.statements]
        arguments = ", ".join(["self", *(name for name, _ in self.inputs)])
        given = "".join(f"{INDENT}{text},\n" for _, text in self.inputs)
        note = self.note.replace("\\", "/").replace('"""', "'''")
        return "\n".join(
            [
                f'"""{note}"""\n',
                HEAD,
                f"batch = {self.batch}\n\n",
                "class Model(nn.Module):",
                "    def __init__(self):",
                f"{INDENT}super().__init__()",
                *own,
                "",
                f"    def forward({arguments}):",
                *body,
                f"{INDENT}return {self.outputs}",
                "\n",
                "def get_inputs():",
                f"    return [\n{given}    ]",
                "\n",
                "def get_init_inputs():",
                "    return []\n",
            ]
        )

    @staticmethod
    def read(text: str) -> Recipe:
        """The recipe of a file that `text` wrote."""
        note = text.split('"""')[1]
        init = _between(text, "super().__init__()", "\n    def forward(")
        lines = [line.strip() for line in init.splitlines()]
        parts = [line for line in lines if line not in ("self.eval()", "")]
        dtype = next((p[14:-1] for p in parts if p.startswith("self.to(torch.")), "float32")
        parts = [p for p in parts if not p.startswith("self.to(torch.")]
        names = _between(text, "def forward(self", "):\n").split(", ")[1:]
        body = _between(text, "):\n" + INDENT, "\n\n\ndef get_inputs", text.index("def forward"))
        *steps, last = [line.strip() for line in body.splitlines()]
        given = _between(text, "return [\n", "    ]").splitlines()
        pairs = [step.split(" = ", 1) for step in steps]
        return Recipe(
            tuple((n, g.strip().rstrip(",")) for n, g in zip(names, given, strict=True)),
            tuple((_part_name(p), p) for p in parts),
            tuple(Statement(name, value) for name, value in pairs),
            last.removeprefix("return "),
            "self.eval()" not in lines,
            dtype,
            note,
            int(_between(text, "\nbatch = ", "\n")),
        )

    # ---- what it computes ------------------------------------------------------------------------

    def make_inputs(self, batch: int, seed: int) -> tuple[Any, ...]:
        """Inputs of this batch size, in the types of the file."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return tuple(
                eval(text, {"torch": torch, "batch": batch, "F": F}) for _, text in self.inputs
            )

    def run(self, module: nn.Module, inputs: Sequence[Any], noise: Noise | None = None) -> Any:
        """What forward returns; with `noise`, each step's result is rounded at random."""
        scope: dict[str, Any] = dict(zip((n for n, _ in self.inputs), inputs, strict=True))
        scope |= {"self": module, "torch": torch, "F": F, "nn": nn}
        scope |= {ROUNDED: noise.on} if noise is not None else {}
        for statement in self.statements:
            value = eval(statement.text if noise is None else rounded(statement.text), scope)
            several = len(statement.names) > 1
            scope.update(zip(statement.names, value if several else [value], strict=True))
        return eval(self.outputs, scope)

    # ---- smaller ones ----------------------------------------------------------------------------

    def pruned(self) -> Recipe:
        """Without what no output needs. An input stays, even if nobody reads it."""
        needed = set(NAME.findall(self.outputs))
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if needed.intersection(statement.names):
                needed |= statement.uses
                kept.append(statement)
        text = " ".join([*(s.text for s in kept), self.outputs])
        own = set(PART.findall(text))
        parts = [(name, line) for name, line in self.parts if name in own]
        inputs = [x for x in self.inputs if x[0] in needed] or list(self.inputs[:1])
        return replace(
            self, inputs=tuple(inputs), parts=tuple(parts), statements=tuple(reversed(kept))
        )


@lru_cache(maxsize=1024)
def rounded(text: str) -> CodeType:
    """The expression with the result of each call and of each arithmetic operator rounded."""
    tree = _Rounding().visit(ast.parse(text, mode="eval"))
    return compile(ast.fix_missing_locations(tree), "<rounded>", "eval")


class _Rounding(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        made = self.generic_visit(node)
        if not isinstance(node, ast.Call | ast.BinOp):
            return made
        return ast.Call(ast.Name(ROUNDED, ast.Load()), [made], [])


class Noise:
    """Every number larger or smaller by `by`: what rounding might have done to it."""

    def __init__(self, seed: int, by: float) -> None:
        self.generator, self.by = torch.Generator().manual_seed(seed), by

    def on(self, value: Any) -> Any:
        return pytree.tree_map_only(Tensor, self._one, value)

    def _one(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        up = torch.randint(0, 2, tensor.shape, generator=self.generator, dtype=torch.int8)
        factors = 1.0 + self.by * (2 * up.double() - 1.0)
        return tensor * factors.to(tensor)


def _part_name(line: str) -> str:
    found = re.search(r"\b(p\d+)\b", line)
    assert found is not None, line
    return found.group(1)


def _between(text: str, start: str, end: str, at: int = 0) -> str:
    first = text.index(start, at) + len(start)
    return text[first : text.index(end, first)]
