"""A live module: its ModelNew shares the parameters of the module it was compiled from."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from torch import nn

from kernelwright.problem import Problem, load_source


def instantiate(problem: Problem, source: str) -> nn.Module:
    """Load the emitted text and give a ModelNew the state of the original module."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    name = f"kernelwright_{problem.name}_{digest}"
    if name not in sys.modules:
        path = Path(tempfile.mkdtemp(prefix="kernelwright_")) / f"{problem.name}.py"
        path.write_text(source)
        sys.modules[name] = load_source(path)
    model_class: type[nn.Module] = sys.modules[name].ModelNew
    new = model_class.__new__(model_class)
    new.__dict__ = {**problem.module.__dict__, "_kernelwright": None}
    return new
