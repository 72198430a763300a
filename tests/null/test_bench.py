"""bench on tiny models with hand-written candidates: rows, verdicts, and what it refuses."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import verifying
from rich.console import Console
from torch import nn

from kernelwright.bench import Timing, Timings, bench, runner
from kernelwright.bench.inputs import make_sets, refill
from kernelwright.bench.roofline import MACHINES, Floor, Machine, count_work, floor
from kernelwright.bench.runner import refuse_impossible
from kernelwright.bench.timings import CANDIDATE
from kernelwright.bench.witness import MOST_CALLS, Burst, Rounds, Witness
from kernelwright.errors import BuildError, InputError, VerificationError
from kernelwright.problem import problem_from_module
from kernelwright.report import notices, timings_table
from kernelwright.verify.inputs import Inputs

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.fc(x))

def get_inputs():
    return [torch.randn(16, 8)]

def get_init_inputs():
    return [8]
"""

CANDIDATE_HEAD = MODEL.split("def get_inputs")[0] + "class ModelNew(Model):\n"
RIGHT = CANDIDATE_HEAD + "    def forward(self, x):\n        return self.fc(x).clamp_min(0)\n"
NO_ARGUMENTS = "    def __init__(self):\n        super().__init__(8)\n"
RAISING = "    def forward(self, x):\n        raise KeyError('w')\n"
UNBUILDABLE = f"""
from torch.utils.cpp_extension import load_inline
load_inline("unbuildable", cpp_sources=[], functions=3)
{RIGHT}
"""
FALLING_BACK = (
    "from collections import Counter\n"
    + CANDIDATE_HEAD
    + "    fallbacks = Counter()\n"
    + "    def forward(self, x):\n"
    + "        self.fallbacks['not on a GPU'] += 1\n"
    + "        return super().forward(x)\n"
)


@pytest.fixture(autouse=True)
def one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fork server for all tests: to start one takes longer than to time a small model."""
    monkeypatch.setattr(runner, "Server", lambda: nullcontext(verifying.server()))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def run(model: Path, candidate: str, **options: object) -> Timings:
    path = model.with_name("candidate.py")
    path.write_text(candidate)
    options = {"baselines": ("eager",), "seconds": 0.05} | options
    return bench(model, path, "cpu", **options)  # type: ignore[arg-type]


def test_rows_of_a_right_candidate(model: Path) -> None:
    told: list[str] = []
    timings = run(model, RIGHT, progress=lambda name, summary: told.append(name))
    assert [row.name for row in timings.rows] == ["eager", "candidate"]
    for row in timings.rows:
        assert row.runs >= 5
        assert 0 < row.p10_ms <= row.median_ms <= row.p90_ms
    assert timings.verified is True
    assert timings.speedup is not None and timings.speedup > 0
    assert timings.best_baseline is timings.rows[0]
    assert timings.floor_ms is None and "no peaks" in timings.floor_why
    assert {"count", "eager", "candidate", "time", "verify"} <= set(told)
    assert json.loads(json.dumps(timings.to_json()))["best_baseline"] == "eager"


def test_max_autotune_on_the_cpu_is_a_row_with_a_note(model: Path) -> None:
    model.write_text(MODEL + REFUSING)
    timings = run(model, RIGHT, baselines=None)
    notes = {row.name: row.note for row in timings.rows}
    assert notes["max-autotune"] == "not run on the CPU unless asked for"
    assert notes["compile"] == "torch.compile failed: no such luck"
    assert timings.row("compile").median_ms is None


REFUSING = """
def refuse(*args, **options):
    raise RuntimeError("no such luck\\nand a second line")

torch.compile = refuse
"""

LAZY = """
import threading, time

class ModelNew(Model):
    def forward(self, x):
        y = super().forward(x)
        z = torch.zeros_like(y)
        threading.Timer(0.05, lambda: z.copy_(y)).start()
        return z
"""
STOPPED = """
import time

class ModelNew(Model):
    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)

time.perf_counter = lambda: 0.0
for module in list(__import__("sys").modules.values()):
    if hasattr(module, "perf_counter"):
        module.perf_counter = lambda: 0.0
"""


def test_a_stopped_clock_is_held_against_the_judges(model: Path) -> None:
    timings = run(model, MODEL + STOPPED)
    assert timings.verified is False
    assert any("by the judge's" in problem for problem in timings.problems), timings


KEPT = """
kept = {}

class ModelNew(Model):
    def forward(self, x):
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = super().forward(x)
        return kept[x.data_ptr()]
"""


def test_a_result_that_is_kept_is_a_wrong_one(model: Path) -> None:
    timings = run(model, MODEL + KEPT)
    assert timings.verified is False
    assert "timed inputs" in timings.problems[0] and "float64 says" in timings.problems[0]


BY_CONTENT = """
import time

kept = {}

class ModelNew(Model):
    def forward(self, x):
        key = KEY
        if key not in kept:
            time.sleep(0.005)
            kept[key] = super().forward(x)
        return kept[key].clone()
"""


def test_a_result_that_is_kept_by_content_is_not_timed(model: Path) -> None:
    """Every timed call has inputs that no call had before, so there is none to be found."""
    timings = run(model, MODEL + BY_CONTENT.replace("KEY", "x.numpy().tobytes()"))
    assert timings.row("candidate").median_ms > 4.9
    assert not [problem for problem in timings.problems if "float64 says" in problem]


def test_a_result_that_is_kept_by_a_sample_is_a_wrong_one(model: Path) -> None:
    timings = run(model, MODEL + BY_CONTENT.replace("KEY", "x[3].numpy().tobytes()"))
    assert timings.verified is False
    assert "float64 says" in timings.problems[0]


WRITING = """
class ModelNew(Model):
    pass
"""


@pytest.mark.parametrize("rows", [16, 200])
def test_a_model_that_writes_to_its_inputs_is_no_false_alarm(model: Path, rows: int) -> None:
    text = MODEL.replace("torch.randn(16, 8)", f"torch.randn({rows}, 8)")
    text += "\n\nPLAIN = Model.forward\n"
    text += "Model.forward = lambda self, x: PLAIN(self, x.mul_(0.5).add_(1))\n"
    model.write_text(text)
    timings = run(model, text + WRITING)
    assert timings.verified is True and not timings.problems, timings


def test_a_degenerate_model_is_said_to_be_one(model: Path) -> None:
    assert run(model, RIGHT).conditions["degenerate"] is False
    model.write_text(MODEL.replace("return ", "return 0 * ", 1))
    assert "the same for other inputs" in notices.of_timings(run(model, RIGHT))[-1]


def test_a_set_is_refilled_in_place_as_a_number_decides() -> None:
    x = torch.randn(100, 3)
    (first, *_) = make_sets((x, 7), None, 4 * x.numel() * 4)
    before, again = first.args[0].clone(), first.args[0].clone()
    source, place = Inputs((x, 7), {}), first.args[0].data_ptr()
    refill(first, source, 5)
    changed = first.args[0].clone()
    assert first.args[0].data_ptr() == place and not torch.equal(changed, before)
    assert all(any(torch.equal(row, known) for known in x) for row in changed)
    refill(Inputs((again, 7), {}), source, 5)
    assert torch.equal(again, changed)
    refill(first, source, 6, row=4)
    others = [i for i in range(100) if i != 4]
    assert torch.equal(first.args[0][others], changed[others])


def test_inputs_that_overlap_themselves_are_timed_too(model: Path) -> None:
    model.write_text(MODEL.replace("torch.randn(16, 8)", "torch.randn(16, 1).expand(16, 8)"))
    assert run(model, RIGHT).verified is True


SLOWED = """
import time

class ModelNew(Model):
    def forward(self, x):
        end = now() + 0.002
        while now() < end:
            pass
        return super().forward(x)

now = time.perf_counter
for module in list(__import__("sys").modules.values()):
    if hasattr(module, "perf_counter"):
        module.perf_counter = lambda: 0.01 * now()
"""


def test_a_slow_clock_is_held_against_the_judges(model: Path) -> None:
    """The flush before a timed call takes several times as long as what this one hides."""
    timings = run(model, MODEL + SLOWED)
    assert timings.verified is False
    assert any("by the judge's" in problem for problem in timings.problems), timings


def seen(claim: float, bursts: list[Burst], rounds: list[Rounds] | None = None) -> str | None:
    witness = Witness("candidate", [claim], rounds or [Rounds(claim, 12.0, 12.0)])
    for burst in bursts:
        witness.saw(burst, None)
    return witness.doubt()


def test_one_quiet_burst_clears_a_claim() -> None:
    quiet, delayed = Burst(50, 2.9, 0.4), Burst(50, 40.0, 0.4)
    assert seen(0.05, [delayed, quiet, delayed]) is None
    assert "0.0500 ms by the clock in its own process, but 0.7920" in (
        seen(0.05, [delayed, delayed]) or ""
    )


def test_a_delayed_message_of_nothing_is_no_excuse() -> None:
    told = seen(0.05, [Burst(50, 40.0, 0.4), Burst(50, 40.0, 39.0)])
    assert told is not None


def test_flushes_that_differ_between_processes_are_forgiven_in_rounds_alone() -> None:
    quiet = [Burst(50, 2.9, 0.4)]
    assert seen(0.05, quiet, [Rounds(0.05, 15.0, 12.0)]) is None
    assert seen(0.05, quiet, [Rounds(0.05, 15.0, 12.0), Rounds(0.05, 50.0, 12.0)]) is None
    assert seen(0.05, quiet, [Rounds(0.05, 50.0, 12.0)]) is not None


def test_a_burst_is_as_long_as_its_claim_makes_it() -> None:
    calls = {claim: Witness("candidate", [claim]).calls for claim in (0.0, 0.05, 1.0, 40.0)}
    assert calls == {0.0: MOST_CALLS, 0.05: 50, 1.0: 2, 40.0: 1}


def test_the_result_of_the_quickest_burst_is_looked_at() -> None:
    witness = Witness("candidate", [0.05])
    for index, taken in enumerate((5.0, 3.0, 4.0)):
        witness.saw(Burst(50, taken, 0.4), (index, None))
    assert witness.look == (1, None)


def test_work_that_goes_on_after_the_call_is_wrong(model: Path) -> None:
    timings = run(model, MODEL + LAZY)
    assert timings.verified is False and timings.problems, timings


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("self.fc(x)", "float64 says"),
        ("torch.zeros_like(x)", "float64 says"),
        ("super().forward(x)[:1]", "output 0 is f32[1, 8] instead of f32[16, 8]"),
        ("super().forward(x) / (x[:1, :1] * 0)", "eager says"),
        ("super().forward(x).t().contiguous().t()", "strides"),
    ],
)
def test_a_wrong_candidate_is_flagged_after_timing(model: Path, body: str, problem: str) -> None:
    timings = run(model, CANDIDATE_HEAD + f"    def forward(self, x):\n        return {body}\n")
    assert timings.verified is False
    assert problem in timings.problems[0]


def test_verification_can_be_left_out(model: Path) -> None:
    assert run(model, RIGHT, verify_after=False).verified is None


def test_fallbacks_are_flagged(model: Path) -> None:
    timings = run(model, FALLING_BACK)
    assert timings.verified is False
    assert "fell back" in timings.problems[0] and "not on a GPU" in timings.problems[0]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (MODEL, InputError, "no `class ModelNew"),
        (CANDIDATE_HEAD + NO_ARGUMENTS, InputError, "arguments of Model"),
        (CANDIDATE_HEAD + RAISING, VerificationError, "KeyError"),
        (UNBUILDABLE, BuildError, "could not be built"),
    ],
)
def test_bad_candidates(model: Path, text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        run(model, text)


def test_an_unknown_baseline_is_an_input_error(model: Path) -> None:
    with pytest.raises(InputError, match="Unknown baseline 'jit'"):
        run(model, RIGHT, baselines=("jit",))


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_batch_changes_the_rows(model: Path, batch: int) -> None:
    assert run(model, RIGHT, batch=batch).conditions["input"] == [batch, 8]


def test_the_precision_of_the_user_is_put_back(model: Path) -> None:
    run(model, RIGHT, precision="medium")
    assert torch.get_float32_matmul_precision() == "highest"


def test_an_impossible_time_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Machine(bandwidth=1.0, flops={"highest": 1.0})
    monkeypatch.setitem(MACHINES, "", slow)
    timings = run(model, RIGHT)
    assert timings.verified is False
    assert "impossible" in timings.row(CANDIDATE).note
    assert "impossible" in timings.problems[0]
    assert timings.row("eager").note == ""


def test_a_possible_time_is_left_alone() -> None:
    rows = (Timing(CANDIDATE, 2.0, 1.9, 2.1, 2.0, 5),)
    assert refuse_impossible(rows, Floor(1.0, "")) == (rows, [])


def test_work_is_counted_by_hand_for_a_linear() -> None:
    problem = problem_from_module(nn.Linear(8, 32, bias=False), (torch.rand(4, 8),))
    with torch.no_grad():
        work = count_work(problem, problem.module, Inputs(problem.inputs, {}))
    assert work.flops == 2 * 4 * 8 * 32
    assert work.bytes == 4 * (4 * 8 + 8 * 32 + 4 * 32)
    assert not work.convolves


def test_the_floor_of_a_founding_gemm_on_the_h200() -> None:
    problem = problem_from_module(nn.Linear(8, 8), (torch.rand(4, 8),), "high")
    flops = 2.0 * 1024 * 8192 * 8192
    work = count_work(problem, problem.module, Inputs(problem.inputs, {}))
    work = type(work)(flops, work.bytes, False)
    assert floor(problem, work, "NVIDIA H200").ms == pytest.approx(0.139, abs=1e-3)


def test_input_sets_rotate_rows_and_keep_the_layout() -> None:
    x = torch.arange(24.0).reshape(6, 4).t().contiguous().t()
    sets = make_sets((x, 7), None, 4 * x.numel() * 4)
    assert len(sets) == 4
    assert sets[0].args[1] == 7
    firsts = [s.args[0] for s in sets]
    assert all(first.stride() == x.stride() for first in firsts)
    assert torch.equal(firsts[0], x) and not torch.equal(firsts[1], x)
    assert len({first.data_ptr() for first in firsts}) == 4


def test_input_sets_reach_into_containers_and_keywords() -> None:
    x = torch.arange(24.0).reshape(6, 4)
    sets = make_sets(({"a": [x]},), 3, 4 * x.numel() * 4, {"mask": x > 3, "scale": 2.0})
    assert sets[1].args[0]["a"][0].shape == (3, 4) and sets[1].kwargs["mask"].shape == (3, 4)
    assert sets[1].kwargs["scale"] == 2.0
    assert torch.equal(sets[1].args[0]["a"][0] > 3, sets[1].kwargs["mask"])


def test_the_table_fits_100_columns(model: Path) -> None:
    console = Console(width=100, record=True)
    console.print(timings_table(run(model, RIGHT)))
    lines = console.export_text().splitlines()
    assert max(len(line) for line in lines) <= 100
    assert any("candidate" in line for line in lines)
