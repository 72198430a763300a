"""Without a compiler, `optimize` says so in one sentence; a file needs no headers of Python."""

from __future__ import annotations

import copy
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelwright
from kernelwright import live
from kernelwright.cli import main
from kernelwright.errors import BuildError
from kernelwright.plan import ALWAYS

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
