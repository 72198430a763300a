"""One build for all: every emitted file is compiled up front, in parallel processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checking
import pytest

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem


@pytest.fixture(scope="session")
def emitted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, extensions: Path
) -> dict[str, tuple[Compiled, Path]]:
    """What was compiled, and the file emitted and built from it, for every model asked for."""
    folder = tmp_path_factory.mktemp("emitted")
    files: dict[str, tuple[Compiled, Path]] = {}
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        builds = []
        for path in wanted(request.session.items):
            compiled = compile_problem(load_problem(path, "cuda"), policy=ALWAYS)
            file = folder / f"{path.stem}_new.py"
            file.write_text(compiled.source)
            files[path.stem] = compiled, file
            builds.append(pool.submit(checking.build, file))
    failures = [text for done in builds if (text := done.result())]
    assert not failures, failures[0]
    return files


def wanted(items: list[pytest.Item]) -> list[Path]:
    asked = [i.callspec.params.get("path") for i in items if hasattr(i, "callspec")]
    return [p for p in checking.MODELS if p in asked]


@pytest.fixture(scope="module")
def subject(path: Path, emitted: dict[str, tuple[Compiled, Path]]) -> checking.Subject:
    compiled, file = emitted[path.stem]
    return checking.loaded(path, compiled, file, "cuda")
