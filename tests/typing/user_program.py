"""What a user of the public API writes; `make lint` checks its types in strict mode.

Every wrong use below is marked with the error that mypy must find: an annotation of the API that
became Any would leave a comment unused, which is an error as well.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import kernelwright


def fuse(module: nn.Module, x: torch.Tensor) -> nn.Module:
    try:
        fused = kernelwright.optimize(module, (x,), precision="high", verify=True)
    except kernelwright.UnsupportedError:
        return module
    except kernelwright.VerificationError as error:
        if error.certificate is not None:
            print(error.certificate.verdict)
        raise
    except kernelwright.KernelwrightError as error:
        raise SystemExit(error.exit_code) from error
    return fused


def plan(module: nn.Module, x: torch.Tensor) -> list[str]:
    compiled = kernelwright.explain(module, x)
    text: str = compiled.source
    return [text, *(record.why for record in compiled.ledger)]


def judge(module: nn.Module, new: Path, x: torch.Tensor) -> bool:
    certificate = kernelwright.verify(module, new, [x], quick=True, seed=7, only=["oracle"])
    names: list[str] = [check.name for check in certificate.failures]
    again = kernelwright.assert_certified(new, module, [x], thorough=True)
    return bool(certificate) and again.passed and not names


def time(model: str, new: str) -> float | None:
    timings = kernelwright.bench(model, new, baselines=["eager"], seconds=1.0)
    return timings.rows[0].median_ms


def keep(module: nn.Module) -> Path:
    return kernelwright.save(module, Path("model_new.py"))


def serve(graph: torch.fx.GraphModule, x: torch.Tensor) -> object:
    return kernelwright.backend(graph, [x], options={"fallback": False})


def wrong(module: nn.Module, x: torch.Tensor) -> None:
    kernelwright.optimize(module, (x,), precision=1)  # type: ignore[arg-type]
    kernelwright.optimize(module, (x,), quality="best")  # type: ignore[call-arg]
    kernelwright.explain(42)  # type: ignore[arg-type]
    kernelwright.verify(module, module, (x,), sed=7)  # type: ignore[call-arg]
    kernelwright.verify("a.py", "b.py", seed="7")  # type: ignore[arg-type]
    kernelwright.assert_certified(module, module, x, quick=3)  # type: ignore[arg-type]
    kernelwright.bench("a.py", "b.py", seconds="3")  # type: ignore[arg-type]
    kernelwright.save(module, 3)  # type: ignore[arg-type]
    kernelwright.backend(module, 3)  # type: ignore[arg-type]
    verdict: int = kernelwright.verify("a.py", "b.py").verdict  # type: ignore[assignment]
    print(verdict, kernelwright.__version__ + 1)  # type: ignore[operator]
