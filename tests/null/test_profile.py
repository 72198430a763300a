"""profile: what is read out of recorded traces, what is predicted, what is compared."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from kernelwright.cli import main
from kernelwright.errors import InputError
from kernelwright.profile import Profile, Settings, difference, read, with_predictions
from kernelwright.profile.events import CALL, Ran, Spent, assigned, calls, spent
from kernelwright.profile.predict import MODEL, ceilings, predicted
from kernelwright.report import difference_table, profile_table

LIMITS = {"bandwidth": 1e10, "flops": 1e11, "device": "a machine", "where": "as measured"}


def step(name: str, call: str = "", kernels: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    kind = "contract" if "linear" in call or "mm" in call else "rowwise"
    found = {"name": name, "kind": kind, "ops": name, "call": call, "kernels": list(kernels),
             "bytes": 1000, "flops": 10, "model_us": None, "launches": 1}  # fmt: skip
    return found | more


STEPS = [
    step("first_product", "aten.linear.default"),
    step("gelu", kernels=("gelu",)),
    step("second_product", "aten.linear.default"),
    step("gelu_2", kernels=("gelu",)),
    step("sums", "aten.cumsum.default"),
]


def event(cat: str, name: str, ts: float, dur: float, correlation: int = 0, tid: int = 1) -> Any:
    args = {"correlation": correlation} if correlation else {}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


# One call as torch 2.13 records it on a CPU: operators nest, and launches of ours are annotations.
ON_CPU = [
    event("user_annotation", CALL, 100, 90),
    event("cpu_op", "aten::empty", 101, 1),
    event("cpu_op", "aten::linear", 103, 30),
    event("cpu_op", "aten::addmm", 104, 28),
    event("user_annotation", "launch_gelu", 134, 5),
    event("cpu_op", "aten::linear", 140, 20),
    event("user_annotation", "launch_gelu", 161, 6),
    event("cpu_op", "aten::cumsum", 170, 10),
    event("cpu_op", "aten::sort", 182, 4),
    event("cpu_op", "aten::linear", 300, 99),  # of another call, outside
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 101, "tid": 1},
]
# And on a GPU: the runtime's launches on the host, kernels on the device, tied by correlations.
ON_GPU = [
    event("user_annotation", CALL, 100, 50),
    event("cpu_op", "aten::linear", 103, 9),
    event("cuda_runtime", "cudaLaunchKernel", 105, 2, 7),
    event("kernel", "sm90_xmma_gemm", 400, 300, 7, tid=99),
    event("user_annotation", "launch_gelu", 114, 6),
    event("cuda_runtime", "cudaLaunchKernelExC", 115, 1, 8),
    event("cuda_driver", "cuLaunchKernel", 117, 1, 9),
    event("kernel", "void kw::pointwise<Gelu>", 700, 25, 8, tid=99),
    event("kernel", "void kw::finish<Gelu>", 730, 5, 9, tid=99),
    event("cuda_runtime", "cudaLaunchKernel", 119, 1, 10, tid=2),  # another thread's
    event("kernel", "foreign", 900, 1000, 10, tid=99),
    event("gpu_user_annotation", CALL, 400, 340, tid=99),
]


def test_a_cpu_trace_is_read_range_by_range() -> None:
    ((whole, ran),) = calls({"traceEvents": ON_CPU})
    assert whole == 90
    names = ["aten::empty", "aten::linear", "launch_gelu", "aten::linear", "launch_gelu",
             "aten::cumsum", "aten::sort"]  # fmt: skip
    assert [r.name for r in ran] == names
    found = {(s.step, s.name): s.us for s in spent(calls({"traceEvents": ON_CPU}), STEPS)}
    assert found == {
        ("first_product", "linear"): 30,
        ("gelu", "gelu"): 5,
        ("second_product", "linear"): 20,
        ("gelu_2", "gelu"): 6,
        ("sums", "cumsum"): 10,
        ("", "sort"): 4,
    }


def test_a_gpu_trace_gives_the_time_of_what_was_launched() -> None:
    ((whole, ran),) = calls({"traceEvents": ON_GPU})
    assert whole == 330
    assert ran == [Ran("aten::linear", 300.0), Ran("launch_gelu", 30.0)]


def test_calls_of_one_step_are_a_median_with_its_spread() -> None:
    times = [(0.0, [Ran("launch_gelu", float(us))]) for us in range(1, 12)]
    (row,) = spent(times, [step("gelu", kernels=("gelu",))])
    assert row == Spent("gelu", "gelu", 1, 6.0, 2.0, 10.0)


def test_panels_are_shared_out_evenly() -> None:
    """Two products, each in two panels, that torch was asked for as mm."""
    ran = [Ran("aten::mm", 1.0)] * 4
    found = [name for name, _ in assigned(ran, STEPS)]
    assert found == ["first_product", "first_product", "second_product", "second_product"]


def test_an_operator_with_a_step_of_its_own_name_is_nobody_elses() -> None:
    steps = [step("a", "aten.linear.default"), step("b", "aten.bmm.default")]
    found = assigned([Ran("aten::linear", 1.0), Ran("aten::bmm", 1.0)], steps)
    assert [name for name, _ in found] == ["a", "b"]


def test_predictions_are_the_models_or_the_rooflines() -> None:
    assert predicted(step("a", model_us=12.5), None) == (12.5, MODEL)
    moving, why = predicted(step("a", bytes=1_000_000, flops=10), LIMITS)
    assert moving == pytest.approx(100.0) and "1 MB at 10 GB/s" in why
    computing, why = predicted(step("a", bytes=10, flops=10**9), LIMITS)
    assert computing == pytest.approx(10_000.0) and "1 GFLOP at 100 GFLOP/s" in why
    assert predicted(step("a"), None)[0] is None
    assert predicted(step("view", launches=0), LIMITS)[0] is None


def test_ceilings_of_this_cpu_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.profile.predict.COPIED", 1 << 20)
    found = ceilings(torch.device("cpu"))
    assert found["bandwidth"] > 1e8 and found["flops"] > 1e8
    assert found["where"].startswith("what torch's copy of 1 MB")


def made(name: str, times: dict[str, float], trace: dict[str, Any] | None = None) -> Profile:
    rows = tuple(Spent(s, s or "sort", 1, us, us, us) for s, us in times.items())
    return Profile(name, "a machine", "highest", 3, 100.0, rows, tuple(STEPS), LIMITS, (), trace)


def shown(table: Any) -> str:
    file = io.StringIO()
    Console(width=100, file=file).print(table)
    return file.getvalue()


def test_a_profile_survives_its_json(tmp_path: Path) -> None:
    one = made("a", {"gelu": 5.0, "": 2.0})
    path = tmp_path / "a.json"
    path.write_text(json.dumps(one.to_json()))
    assert read(path) == one
    assert read(tmp_path / "model.py") is None
    path.write_text('{"rows": []}')
    with pytest.raises(InputError, match="no profile that"):
        read(path)


def test_the_table_has_predictions_and_what_is_in_no_step() -> None:
    text = shown(profile_table(made("a", {"gelu": 5.0, "": 2.0})))
    assert "gelu" in text and "0.1" in text and "50.00" in text
    assert "100 us; 93 of them are in no step" in text


def test_two_profiles_differ_step_by_step() -> None:
    pair = [made("a", {"gelu": 5.0, "": 2.0}), made("b", {"gelu": 4.0, "sums": 1.0})]
    rows = difference(*pair)
    assert [(r.name, r.before, r.after) for r in rows] == [
        ("gelu", 5.0, 4.0), ("torch: sort", 2.0, None), ("sums", None, 1.0)
    ]  # fmt: skip
    text = shown(difference_table(["a", "b"], pair, rows))
    assert "0.80" in text and "-1" in text and "a call" in text


def test_the_trace_has_a_track_of_predictions() -> None:
    found = with_predictions(made("a", {}, {"traceEvents": ON_CPU, "schemaVersion": 1}))
    tracks = [e for e in found["traceEvents"] if e.get("cat") == "predicted"]
    assert [e["name"] for e in tracks] == [s["name"] for s in STEPS]
    ends = [e["ts"] + e["dur"] for e in tracks]
    assert tracks[0]["ts"] == 100 and [e["ts"] for e in tracks[1:]] == ends[:-1]
    assert found["schemaVersion"] == 1


def test_settings_are_changed_by_name() -> None:
    base = Settings("cpu")
    assert base.changed("precision=high").precision == "high"
    assert base.changed("threads=1").threads == 1 and base.changed("batch=8").batch == 8
    assert base.changed("mode=eval").training is False
    for text in ("threads=0", "mode=fast", "other.py", "batch="):
        with pytest.raises(InputError, match="neither a file nor a setting"):
            base.changed(text)


def test_what_the_command_cannot_do_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile"]) == 2
    assert "Name a model" in capsys.readouterr().err
    assert main(["profile", "--diff", "a", "b", "--trace", "c"]) == 2
    assert "leave --diff out" in capsys.readouterr().err
