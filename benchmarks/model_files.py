"""Model files in one of several sizes, and with norms that do not start as ones and zeros.

A file in KernelBench's format has a table VARIANTS of sizes; the line CHOSEN names the one that its
get_inputs() and get_init_inputs() give. `choose` writes a copy with another one chosen, so that
everything that takes a model file takes it; `perturbed` appends what makes those norms.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

# Appended to the user's file: the type; and biases, scales and running statistics are moved a bit.
ENDING = """

def get_inputs(original=get_inputs):
    return [x.to({dtype}) for x in original()]


class Model(Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        with torch.no_grad():
            for x in [*self.parameters(), *self.buffers()]:
                if x.is_floating_point() and (x.ndim == 1 or x.min() == x.max()):
                    x.add_(0.1 * torch.randn_like(x))
        self.to({dtype})
"""


def table(path: Path, name: str) -> ast.expr | None:
    """The value of a constant of a file, without running it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node.value
    return None


def constant(path: Path, name: str, default: Any) -> Any:
    value = table(path, name)
    return default if value is None else ast.literal_eval(value)


def variants(path: Path) -> list[str]:
    """The names in the table VARIANTS of a file, in its order."""
    value = table(path, "VARIANTS")
    if not isinstance(value, ast.Dict):
        raise ValueError(f"{path.name} has no table VARIANTS")
    return [ast.literal_eval(key) for key in value.keys if key is not None]


def choose(path: Path, variant: str, target: Path) -> Path:
    """Write the file with the sizes of one variant."""
    line = f'CHOSEN = "{variant}"'
    text, count = re.subn(r'^CHOSEN = ".*"$', line, path.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{path.name} has no line CHOSEN"
    target.write_text(text)
    return target


def perturbed(text: str, dtype: str = "torch.float32") -> str:
    """The same model in a type, with norms that are not the identity."""
    return text + ENDING.format(dtype=dtype)
