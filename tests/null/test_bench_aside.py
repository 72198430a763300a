"""bench beside the times: training steps, memory, what disturbs it, what was saved before."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import verifying
from rich.console import Console
from torch import nn

import kernelwright
from kernelwright.bench import Timing, Timings, bench, isolated, neighbours, runner, saved
from kernelwright.bench.aside import most_at_once, peak_bytes
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.isolated import wanted, wanted_steps
from kernelwright.bench.steps import NOTHING_ASKS, loss_of, prepare_step, training_step
from kernelwright.bench.timings import CANDIDATE
from kernelwright.bench.variants import Variant, direct, in_tf32
from kernelwright.cli import main
from kernelwright.errors import InputError
from kernelwright.report import timings_table
from kernelwright.verify.inputs import Inputs

CPU = torch.device("cpu")
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))

def get_inputs():
    return [torch.randn(16, 8)]

def get_init_inputs():
    return []
"""
RIGHT = MODEL.split("def get_inputs")[0] + (
    "class ModelNew(Model):\n    def forward(self, x):\n        return self.fc(x).clamp_min(0)\n"
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


class Rewritten(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).clamp_min(0)


@pytest.fixture(autouse=True)
def one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Server", lambda: nullcontext(verifying.server()))
    monkeypatch.setattr(neighbours, "before", lambda device: ["Others are at work"])
    monkeypatch.setattr(isolated, "MAX_ROUNDS", 6)
    monkeypatch.setattr(isolated, "DOUBT_SECONDS", 0.2)


def shown(timings: Timings) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(timings_table(timings))
    return console.export_text()


# ---- training steps -------------------------------------------------------------------------


def test_a_step_leaves_no_gradient_and_has_flowed_to_every_parameter() -> None:
    net, seen = Net(), []
    for p in net.parameters():
        p.register_hook(lambda g: seen.append(g.abs().sum().item()))
    with torch.no_grad():
        loss = training_step(net, net, Inputs((torch.randn(4, 8),), {}))
    assert len(seen) == 2 and all(seen) and not loss.requires_grad
    assert all(p.grad is None for p in net.parameters())


def test_the_loss_is_of_all_results_that_a_gradient_comes_from() -> None:
    x = torch.full((2,), 3.0, requires_grad=True)
    assert loss_of([x, x * 2, torch.ones(3)]).item() == 9 + 36
    with pytest.raises(ValueError, match="no result depends"):
        loss_of([torch.ones(3)])


def test_a_model_without_parameters_has_no_step() -> None:
    sets = [Inputs((torch.randn(4, 8),), {})] * 2
    found = prepare_step("eager step", nn.ReLU(), nn.ReLU(), sets, 1)
    assert isinstance(found, Timing) and found.note == NOTHING_ASKS
    constant = nn.Linear(8, 8)
    broken = type("Broken", (nn.Linear,), {"forward": lambda self, x: x})(8, 8)
    assert isinstance(prepare_step("eager step", constant, constant, sets, 1), Variant)
    failed = prepare_step("eager step", broken, broken, sets, 1)
    assert isinstance(failed, Timing) and "no result depends" in failed.note


def test_files_are_timed_with_a_training_step(tmp_path: Path) -> None:
    model, candidate = tmp_path / "model.py", tmp_path / "candidate.py"
    model.write_text(MODEL)
    candidate.write_text(RIGHT)
    options: dict[str, Any] = {"baselines": ("eager",), "seconds": 0.02, "train": True}
    timings = bench(model, candidate, "cpu", **options)
    assert timings.conditions["mode"] == "train"
    assert timings.warnings == ("Others are at work",)
    assert [row.name for row in timings.training] == ["eager", CANDIDATE]
    assert all(row.runs >= 5 and row.peak_bytes for row in timings.training)
    assert timings.training_gain and timings.training_gain > 0
    eager, ours = timings.row("eager"), timings.row(CANDIDATE)
    assert eager and ours and eager.call_ms == eager.median_ms
    assert eager.compile_s is None and ours.compile_s is not None and ours.compile_s > 0
    assert eager.peak_bytes == 2 * 16 * 8 * 4, "the product and the result"
    text = shown(timings)
    assert "A training step" in text and "as fast as eager's" in text and "1.024 kB" in text
    json.dumps(timings.to_json())


def test_live_modules_are_as_before(tmp_path: Path) -> None:
    net, new = Net(), Rewritten()
    new.load_state_dict(net.state_dict())
    net.fc.weight.grad = torch.ones(8, 8)
    options: dict[str, Any] = {"baselines": ("eager",), "seconds": 0.02}
    timings = kernelwright.bench(net, new, (torch.randn(4, 8),), train=True, **options)
    assert [row.name for row in timings.training] == ["eager", CANDIDATE]
    assert torch.equal(net.fc.weight.grad, torch.ones(8, 8)) and new.fc.weight.grad is None
    assert kernelwright.bench(net, new, (torch.randn(4, 8),), **options).training == ()
    with pytest.raises(InputError, match="in train mode"):
        kernelwright.bench(net.eval(), new.eval(), (torch.randn(4, 8),), train=True, **options)


def test_which_variants_there_are() -> None:
    assert wanted(None, False, "highest") == ["eager", "compile", "max-autotune", "candidate"]
    on_gpu = wanted(("eager", "compile"), True, "highest")
    assert on_gpu == ["eager", "compile", "eager TF32", "compile TF32", "candidate",
                      "eager graph", "candidate graph"]  # fmt: skip
    assert "eager TF32" not in wanted(None, True, "high")
    assert wanted_steps(None) == ["eager step", "compile step", "candidate step"]


def test_tf32_holds_for_the_call_alone() -> None:
    seen: list[str] = []
    sets = make_sets((torch.randn(4, 8),), None, 0)
    asked = direct("eager", lambda x: seen.append(torch.get_float32_matmul_precision()), sets)
    before = torch.get_float32_matmul_precision()
    made = in_tf32(asked, "eager TF32")
    assert isinstance(made, Variant) and made.name == "eager TF32"
    made.calls[0]()
    assert seen == ["high"] and torch.get_float32_matmul_precision() == before
    assert in_tf32(Timing("eager", note="none"), "eager TF32").name == "eager TF32"


def timings(**changes: Any) -> Timings:
    rows = (Timing("eager", 2.0, 1.9, 2.2, 2.0, 9, "", 2.1, None, 2_000_000),
            Timing("eager TF32", 1.5, 1.4, 1.6, 1.5, 9, "", 1.6, None, 2_000_000),
            Timing("candidate", 1.0, 0.9, 1.3, 1.0, 9, "", 1.1, 31.0, 1_000_000))  # fmt: skip
    found = Timings("m.py", "n.py", "a GPU", "2", "highest", rows, None, "", True, (),
                    {"input": [16, 8]})  # fmt: skip
    return replace(found, **changes)


def test_ieee_and_tf32_are_columns_with_names() -> None:
    lines = [line for line in shown(timings()).splitlines() if "eager" in line]
    assert any(all(w in line for w in ("2", "1.5", "2.1", "2 MB")) for line in lines)
    assert "IEEE ms" in shown(timings()) and "TF32 ms" in shown(timings())
    assert "TF32 ms" not in shown(timings(rows=timings().rows[::2]))


def test_what_a_step_loses_is_one_line() -> None:
    steps = (Timing("eager", 6.0, 5.0, 7.0, 6.0, 9), Timing("candidate", 8.0, 7.0, 9.0, 8.0, 9))
    assert "A training step loses: 0.75x as fast as eager's (8 ms against 6 ms)." in shown(
        timings(training=steps)
    )
    none = (Timing("eager", note=NOTHING_ASKS),)
    assert f"not timed: {NOTHING_ASKS}" in shown(timings(training=none))


# ---- memory ---------------------------------------------------------------------------------


def test_the_peak_is_what_lives_at_once() -> None:
    assert most_at_once([4, 4, -4, 4, -8]) == 8 and most_at_once([]) == 0
    a = torch.randn(1000, 1000)
    found = peak_bytes(lambda: (a + 1) * 2 + 3, CPU)
    assert 8_000_000 <= found < 8_100_000


# ---- what disturbs --------------------------------------------------------------------------


def test_a_busy_machine_is_told_of() -> None:
    assert neighbours.load((0, 0), (10, 200), 4) == []
    (told,) = neighbours.load((100, 1000), (200, 1200), 4)
    assert "2.0 of its 4 cores" in told
    assert neighbours.load((0, 0), (0, 0), 4) == []


def test_others_on_the_gpu_are_named() -> None:
    """Lines as nvidia-smi prints them."""
    assert neighbours.others([]) == []
    (told,) = neighbours.others(["4711, python3, 1024", "4712, train, 80000"])
    assert "python3 (process 4711, 1024 MiB), train (process 4712, 80000 MiB)" in told


def test_a_clock_that_was_held_back_is_told_of() -> None:
    calm = dict.fromkeys(neighbours.HELD, "Not Active")
    assert neighbours.held_back(calm) == []
    hot = calm | {"sw_thermal_slowdown": "Active", "hw_thermal_slowdown": "Active"}
    hot |= {"sw_power_cap": "Active"}
    assert neighbours.held_back(hot) == [
        "The GPU's clock was held back by its power limit and its temperature"
    ]
    assert neighbours.Clocks(CPU).told() in ([], neighbours.Clocks(CPU).told())


# ---- saved ----------------------------------------------------------------------------------


def test_saved_timings_stand_beside_those_of_now(tmp_path: Path) -> None:
    path = tmp_path / "then.json"
    slower = tuple(replace(r, median_ms=2.0, p10_ms=1.9, p90_ms=2.2) for r in timings().rows)
    path.write_text(json.dumps(timings(rows=slower[1:]).to_json()))
    rows, doubts = saved.compared(saved.read(path), timings())
    assert [(r.name, r.ratio, r.clear) for r in rows] == [
        ("eager TF32", pytest.approx(4 / 3), True), (CANDIDATE, 2.0, True)
    ]  # fmt: skip
    assert doubts == []
    assert saved.compared(timings().to_json(), timings())[0][0].clear is False
    other = timings(device="another", conditions={"input": [1]})
    assert len(saved.compared(saved.read(path), other)[1]) == 2
    for text, told in (("{", "cannot be read"), ("[]", "holds no timings")):
        path.write_text(text)
        with pytest.raises(InputError, match=told):
            saved.read(path)


def test_the_command_saves_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, candidate, then = (tmp_path / n for n in ("model.py", "candidate.py", "then.json"))
    model.write_text(MODEL)
    candidate.write_text(RIGHT)
    files = [str(model), str(candidate), "--baselines", "eager", "--device", "cpu"]
    code = main(["bench", *files, "--eval", "--save", str(then)])
    assert code in (0, 3), "a machine at work may not bear out a time of microseconds"
    assert saved.read(then)["conditions"]["mode"] == "eval" and saved.read(then)["training"] == []
    main(["bench", *files, "--eval", "--compare", str(then)])
    told = capsys.readouterr().out
    assert "then ms" in told and "now ms" in told and "Others are at work" in told
    assert main(["bench", *files, "--compare", str(tmp_path / "none.json")]) == 2
