"""What a machine may lack: the compiler, its OpenMP, the headers of Python, an instruction set.

Without a compiler `optimize` says so in one sentence, and an emitted file runs the original.
"""

from __future__ import annotations

import copy
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelwright
from kernelwright import doctor, live
from kernelwright.cli import main
from kernelwright.errors import BuildError
from kernelwright.loading import load_source
from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem, problem_from_module
from kernelwright.runtime import build
from kernelwright.targets import X86_64

MODEL = Path(__file__).parents[1] / "models" / "linear_mish_mish.py"


def test_a_missing_compiler_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    output = tmp_path / "out.py"
    code = main(["optimize", str(MODEL), "-o", str(output), "--device", "cpu", "--quiet"])
    said = capsys.readouterr().err
    assert code == BuildError.exit_code
    assert "no-such-compiler" in said and "set CXX" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


class Model(nn.Module):
    """A product, running statistics, a row kernel, and an operator that stays with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(self.linear(x)) * 2, dim=-1).sort(dim=-1).values * 3


@pytest.mark.parametrize("grad", [True, False])
def test_headers_of_python_are_not_needed(monkeypatch: pytest.MonkeyPatch, grad: bool) -> None:
    paths = sysconfig.get_paths
    monkeypatch.setattr(sysconfig, "get_paths", lambda *of: {**paths(*of), "include": "/nowhere"})
    monkeypatch.setattr(live, "_LOADED", {})
    eager = Model()
    example = (torch.randn(4, 16),)
    fused: Any = kernelwright.optimize(copy.deepcopy(eager), example, policy=ALWAYS, kinds="given")
    library = type(fused).forward.__globals__["_KW_KERNEL_LIBRARY"]
    started: list[str] = []
    library.watchers.append(started.extend)
    for x in (torch.randn(4, 16), torch.randn(7, 32)[:, ::2], torch.randn(4, 16)):
        with torch.set_grad_enabled(grad):
            ours, theirs = fused(x), eager(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        if grad:
            for y in (ours, theirs):
                y.square().sum().backward()
    for mine, other in zip(fused.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    for mine, other in zip(fused.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert len(started) >= 3 and not fused.fallbacks
    eager.norm.eps = fused.norm.eps = 0.5
    with pytest.warns(UserWarning, match="eps"):
        torch.testing.assert_close(fused(x), eager(x), rtol=1e-5, atol=1e-5)


@pytest.fixture
def emitted(tmp_path: Path) -> Path:
    path = tmp_path / "emitted.py"
    path.write_text(compile_problem(load_problem(MODEL, "cpu")).source)
    return path


def test_a_file_without_a_compiler_runs_the_original(
    emitted: Path, monkeypatch: pytest.MonkeyPatch, extensions: Path
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    module = load_source(emitted)
    new = module.ModelNew(*module.get_init_inputs())
    inputs = module.get_inputs()
    with pytest.warns(UserWarning, match=r"no-such-compiler; install g\+\+, or set CXX"):
        ours = new(*inputs)
    eager = module.Model(*module.get_init_inputs())
    eager.load_state_dict(new.state_dict())
    assert torch.equal(ours, eager(*inputs))
    assert list(new.fallbacks.values()) == [1]


def compiler_called_clang(folder: Path) -> Path:
    """One that has no OpenMP, as clang on a Mac."""
    script = folder / "clang++"
    refuse = 'case " $* " in *" -fopenmp "*) echo "unsupported option" >&2; exit 1 ;; esac'
    script.write_text(f'#!/bin/sh\n{refuse}\nexec {shutil.which("g++")} "$@"\n')
    script.chmod(0o700)
    return script


def test_a_compiler_without_openmp_makes_kernels_of_one_thread(
    emitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extensions: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here to stand behind the script")
    monkeypatch.setenv("CXX", str(compiler_called_clang(tmp_path)))
    module = load_source(emitted)
    new, eager = (kind(*module.get_init_inputs()) for kind in (module.ModelNew, module.Model))
    eager.load_state_dict(new.state_dict())
    inputs = module.get_inputs()
    torch.testing.assert_close(new(*inputs), eager(*inputs), rtol=1e-5, atol=1e-5)
    assert not new.fallbacks
    build.has_threads.cache_clear()
    try:
        (told,) = (fact.value for fact in doctor.facts() if fact.name == "OpenMP")
    finally:
        build.has_threads.cache_clear()
    assert told is not None and "one thread" in told and "libomp" in told


def test_a_processor_without_the_instructions_leaves_products_to_the_library(
    monkeypatch: pytest.MonkeyPatch, extensions: Path
) -> None:
    """As the flags of a processor tell it: what the plan took for granted elsewhere is asked."""
    module = nn.Sequential(nn.Linear(640, 640), nn.Tanh())
    compiled = compile_problem(
        problem_from_module(module, (torch.randn(80, 640),)), target=X86_64.name
    )
    assert any(region.host for region in compiled.planned.regions)
    model = compiled.instantiate()
    file = sys.modules[type(model).__module__]
    started: list[str] = []
    file._KW_KERNEL_LIBRARY.watchers.append(started.extend)
    monkeypatch.setattr(file, "_kw_features", lambda: frozenset({"sse2"}))
    for rows in (8, 80):
        x = torch.randn(rows, 640)
        torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-5)
    assert started and not any("by_tiles" in name for name in started)
    assert not model.fallbacks
