"""Write the ModelNew files of the examples, for both backends; no GPU is needed to emit CUDA.

`python examples/regenerate.py` rewrites them; tests/null/test_examples.py fails when they are
stale.
"""

from __future__ import annotations

from pathlib import Path

from kernelwright.files import write_atomically
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem

HERE = Path(__file__).resolve().parent
TARGETS = ("cuda", "cpu")


def emitted() -> dict[Path, str]:
    """The path and the text of every generated file."""
    found = {}
    for model in sorted(HERE.glob("*/model.py")):
        problem = load_problem(model, "cpu", "highest")
        for target in TARGETS:
            path = model.with_name(f"model_new_{target}.py")
            found[path] = compile_problem(problem, target=target).source
    return found


if __name__ == "__main__":
    for path, text in emitted().items():
        write_atomically(path, text)
        print(path.relative_to(HERE))
