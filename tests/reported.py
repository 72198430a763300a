"""Records of reports for tests: plans that are really compiled, with figures that are made up."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import kernelwright
from kernelwright.bench.timings import Timing, Timings
from kernelwright.details import plan_record
from kernelwright.report.record import Record
from kernelwright.verify.certificate import Certificate, Check

ROOT = Path(__file__).parents[1]
EVIL = "<script>alert('&')</script>"
FOUNDING = (
    "gemm_groupnorm_min_bias",
    "gemm_bias_hardtanh_mish_groupnorm",
    "matmul_groupnorm_leakyrelu_sum",
)
GPT = "gpt"
SMALL_GPT = dict(batch=2, tokens=64, layers=2, width=128, heads=4, words=512, dropout=0.0)


def source(name: str) -> str:
    """A founding model at a small batch and with an eighth of its features, or a small GPT."""
    if name != GPT:
        text = (ROOT / "examples" / name / "model.py").read_text()
        return text.replace("batch_size = 1024", "batch_size = 64").replace("8192", "1024")
    text = (ROOT / "benchmarks" / "networks" / "gpt.py").read_text()
    line = "sizes = VARIANTS[CHOSEN]\n"
    assert text.count(line) == 1
    return text.replace(line, f'sizes = VARIANTS["small"] | {SMALL_GPT}\n')


@functools.cache
def plan(name: str) -> dict[str, Any]:
    """What `kernelwright explain --json` writes of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.py")
        path.write_text(source(name))
        text = json.dumps(plan_record(kernelwright.explain(path, device="cpu")))
    found: dict[str, Any] = json.loads(text)
    return found


def certificate(failed: bool = True) -> dict[str, Any]:
    checks = (
        Check("oracle", True, "max error 1e-7", 1e-7, 2e-7, 1e-6),
        Check("gradients: twice", not failed, EVIL, 1.0, 1e-7, 1e-6),
        Check("memory: sanitizer", None, "not asked for"),
    )
    return Certificate("model.py", "new.py", "cpu", "highest", checks, (EVIL,)).to_json()


def timings(**changes: Any) -> dict[str, Any]:
    rows = (
        Timing("eager", 2.0, 1.9, 2.2, 2.0, 9),
        Timing("compile", note="failed"),
        Timing("candidate", 1.0, 0.9, 1.3, 1.0, 9, peak_bytes=4096),
    )
    steps = (Timing("eager", 6.0, 5.0, 7.0, 6.0, 9), Timing("candidate", 8.0, 7.0, 9.0, 8.0, 9))
    found = Timings(
        "model.py",
        "new.py",
        "a CPU",
        "2",
        "highest",
        rows,
        None,
        "",
        True,
        (),
        {"input": [16, 32]},
        steps,
    )
    return {**found.to_json(), **changes}


def profiled(plan: dict[str, Any]) -> dict[str, Any]:
    """Every second step was measured."""
    spent = [
        {"step": s["name"], "name": s["name"], "launches": 1, "us": 10.0, "low": 9.0, "high": 12.0}
        for s in plan["details"]["steps"][::2]
    ]
    limits = {"bandwidth": 1e10, "flops": 1e11, "device": "a CPU", "where": "as it was measured"}
    steps = plan["details"]["steps"]
    return {"model": "new.py", "spent": spent, "ceilings": limits, "steps": steps}


def whole(name: str, failed: bool = False) -> Record:
    found = plan(name)
    return Record(found, certificate(failed), timings(), profiled(found), "new.py")
