"""verify() as a user calls it: children that die or hang, errors that come back, certificates."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import shlex
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import verifying
from museum.models import BATCH_NORM, EVAL_NORM
from rich.console import Console

from kernelwright.cli import main
from kernelwright.errors import InputError
from kernelwright.verify import Certificate, Check, processes, session, verify
from kernelwright.verify.checks import TABLE
from kernelwright.verify.render import render

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.rand(12, 32)]

def get_init_inputs():
    return [32]
"""

RIGHT = """
class ModelNew(Model):
    def forward(self, x):
        print("a candidate may print")
        return self.linear(x).clamp_min(0)
"""

DEADLY = """
import ctypes
import time

class ModelNew(Model):
    def forward(self, x):
        if x.isnan().any():
            ctypes.string_at(0)
        if not x.is_contiguous():
            time.sleep(1000)
        return super().forward(x)
"""


@pytest.fixture(autouse=True)
def one_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fork server for all tests, but for one that kills it."""
    if "kills" not in request.node.name:
        monkeypatch.setattr(session, "Server", lambda: nullcontext(verifying.server()))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    model, candidate = tmp_path / "model.py", tmp_path / "candidate.py"
    model.write_text(MODEL)
    candidate.write_text(MODEL + RIGHT)
    return model, candidate


def test_right_candidate_is_certified(files: tuple[Path, Path]) -> None:
    heard: list[str] = []
    certificate = verify(*files, device="cpu", precision="highest", progress=heard.append)
    assert certificate.passed, str(certificate)
    names = [row.name for row in TABLE if not row.thorough]
    assert heard[:4] == names[:4] and set(heard) == set(names)
    assert heard != names  # the seed decides the order
    assert [check.name for check in certificate.checks] == [*names, "fallbacks", "the file"]
    assert certificate.sha256 == hashlib.sha256(files[1].read_bytes()).hexdigest()
    _assert_readable(certificate)


def test_who_is_slow_is_not_spared_the_rest(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right in all that there was time for; that is no certificate, and no failure either."""
    # The seed decides what has its turn, and many calls would take more than their share.
    monkeypatch.setattr(session.Session, "share", lambda self, check: self.time_limit)
    slow = MODEL + RIGHT.replace("print(", "import time; time.sleep(0.3); print(")
    files[1].write_text(slow)
    certificate = verify(*files, device="cpu", precision="highest", time_limit=25)
    assert not certificate.passed and certificate.unrun
    assert certificate.verdict.startswith("NOT CERTIFIED: nothing failed, but there was no time")


def _assert_readable(certificate: Certificate) -> None:
    assert json.loads(json.dumps(certificate.to_json()))["passed"] is certificate.passed
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(certificate))
    shown = console.export_text()
    for check in certificate.checks:
        assert check.name in shown
        assert check.name in str(certificate)
    assert certificate.verdict in str(certificate)


def test_death_and_silence_are_failed_checks(files: tuple[Path, Path]) -> None:
    model, candidate = files
    candidate.write_text(MODEL + DEADLY)
    # Histories of use would meet both faults as well, and two hangs end a run.
    names = [row.name for row in TABLE if row.quick and not row.name.startswith("uses")]
    certificate = verify(model, candidate, device="cpu", only=names, time_limit=60)
    found = {check.name: check for check in certificate.checks}
    assert found["inputs: NaN"].passed is False
    died = "signal 11 (SIGSEGV) while running the check inputs: NaN"
    assert died in found["inputs: NaN"].detail
    assert "candidate.py" in found["inputs: NaN"].log
    assert found["layout: transposed"].passed is False
    assert "no answer in the time" in found["layout: transposed"].detail
    assert found["files"].passed is True
    assert {check.name for check in certificate.failures} == {
        *("inputs: NaN", "layout: transposed")
    }
    _assert_readable(certificate)


def test_users_error_comes_back_as_itself(files: tuple[Path, Path]) -> None:
    model, candidate = files
    candidate.write_text("class Other: ...")
    with pytest.raises(InputError, match="defines no `class ModelNew"):
        verify(model, candidate, device="cpu")


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        verify(tmp_path / "model.py", tmp_path / "candidate.py")


def forward(code: str) -> str:
    body = code.replace("\n", "\n        ")
    return f"{MODEL}\nclass ModelNew(Model):\n    def forward(self, x):\n        {body}\n"


def first_failure(files: tuple[Path, Path], code: str, **options: object) -> Check:
    """What the first check says of a candidate; verify itself comes back."""
    model, candidate = files
    candidate.write_text("import os, subprocess, sys, time\n" + forward(code))
    certificate = verify(model, candidate, device="cpu", only=["runs"], **options)  # type: ignore[arg-type]
    assert not certificate.passed and certificate.failures
    _assert_readable(certificate)
    return certificate.failures[0]


FORGED = """
import json

def forge(node):
    '''Every weight that is told becomes what is not there yet where it is read.'''
    for pairs in [node["d"]] if isinstance(node, dict) and "d" in node else []:
        for pair in pairs:
            if pair[0] == "state_dict":
                pair[1]["d"] = [[name, FORGERY] for name, _ in pair[1]["d"]]
            else:
                forge(pair[1])

def dumps(message, *args, dumps=json.dumps, **options):
    if isinstance(message, dict) and "tensors" in message:
        forge(message["value"])
    return dumps(message, *args, **options)

json.dumps = dumps
"""


class Touching:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["blob", "record", "member"])
def test_a_candidate_sends_no_objects(files: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    """Its weights go to the process of the reference, to be loaded there."""
    touched = tmp_path / "touched"
    forgery = {
        "blob": ["Tensor", base64.b64encode(pickle.dumps(Touching(touched))).decode()],
        "record": ["subprocess", "Popen", {"d": [["args", {"l": ["touch", str(touched)]}]]}],
        "member": ["enum", "Enum", "name"],
    }[kind]
    model, candidate = files
    right = forward("return super().forward(x)")
    candidate.write_text(f"{right}\nFORGERY = {json.dumps({kind: forgery})}\n{FORGED}")
    certificate = verify(model, candidate, device="cpu", only=["state_dict"])
    assert not certificate.passed and not touched.exists()
    assert "garbled its answer" in certificate.failures[0].detail
    _assert_readable(certificate)


ANSWERS = {
    "no dict": "[]",
    "nothing": "{}",
    "no value": '{"drew": False, "fell": None}',
    "names that are none": '{"value": x, "fell": {3: 1}}',
    "counts that are none": '{"value": x, "fell": {"cause": "many"}}',
    "a tensor where steps are told": '{"value": x[0]}',
    "a text": '{"value": "\\ud800\\x1b[31m"}',
    "nested": "nested(90)",
    "nested too deeply": "nested(10_000)",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_that_are_none(files: tuple[Path, Path], answer: str) -> None:
    """The class that answers is found by what it can do, whatever it is called."""
    code = f"""
def nested(depth):
    value = x
    for _ in range(depth):
        value = [value]
    return {{"value": value}}
found = [o for m in list(sys.modules.values()) for o in list(vars(m).values())
         if isinstance(o, type) and "load_strictly" in vars(o)]
for seat in found:
    seat.answer = lambda self, request: {ANSWERS[answer]}
return super().forward(x)
"""
    model, candidate = files
    candidate.write_text("import sys\n" + forward(code.strip()))
    certificate = verify(model, candidate, device="cpu", only=["runs", "oracle"])
    assert not certificate.passed
    _assert_readable(certificate)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os.kill(os.getppid(), 9)\ntime.sleep(5)\nreturn super().forward(x)", "process"),
        ("os._exit(0)", "ended with exit code 0 while running the check runs"),
        ("time.sleep(60)", "gave no answer in the time that it had"),
        ("while True:\n    print('x' * 100000)", "wrote more than 64 MB of output"),
        ("print('\\x1b[31mred\\x07', flush=True)\nos.abort()", "signal 6 (SIGABRT)"),
    ],
    ids=["kills its parent", "exits", "hangs", "floods", "aborts"],
)
def test_whatever_a_process_does_is_a_named_failure(
    files: tuple[Path, Path], code: str, told: str
) -> None:
    failure = first_failure(files, code, time_limit=40)
    assert failure.name == "runs" and told in failure.detail, failure
    assert "\x1b" not in failure.log and "\x07" not in failure.log


def test_memory_and_processes_are_bounded(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MOST_DESCENDANTS", 20)
    many = "for _ in range(40):\n    subprocess.Popen(['sleep', '60'])\ntime.sleep(30)"
    assert "started more than 20 processes" in first_failure(files, many).detail
    monkeypatch.setattr(processes, "available_memory", lambda: 1 << 30)
    large = "kept = [torch.ones(1 << 26) for _ in range(8)]\ntime.sleep(30)"
    assert "MB of memory" in first_failure(files, large).detail


def test_what_a_process_leaves_behind_ends_with_it(files: tuple[Path, Path]) -> None:
    """A daemon that has left the process, its group and its session, and writes while it is."""
    model, candidate = files
    alive = model.with_name("alive")
    daemon = f"""
if not os.path.exists({str(alive)!r}) and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open({str(alive)!r}, 'w', buffering=1) as file:
            while True:
                file.write('still here\\n')
                time.sleep(0.02)
    os._exit(0)
return super().forward(x)"""
    candidate.write_text("import os, time\n" + forward(daemon.strip()))
    verify(model, candidate, device="cpu", only=["runs", "repeats"])
    written = alive.stat().st_size
    time.sleep(0.3)
    assert written and alive.stat().st_size == written


def test_seed_decides_everything(files: tuple[Path, Path]) -> None:
    """The same seed gives the same figures, another gives others; by default nobody knows it."""

    def figures(seed: int | None) -> tuple[object, ...]:
        found = verify(*files, device="cpu", only=["inputs: normal"], seed=seed)
        return found.seed, found.checks[0].error, found.checks[0].allowed

    assert figures(3) == figures(3)
    first, second = figures(None), figures(None)
    assert first[0] != second[0] and first[2] != second[2]


def test_single_check_certifies_nothing_and_repeats_a_failure(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, candidate = files
    chosen = verify(*files, device="cpu", only=["oracle"])
    assert chosen.checks[0].passed and not chosen.passed and "only oracle" in chosen.verdict
    candidate.write_text(forward("return super().forward(x.abs())"))
    failed = verify(model, candidate, device="cpu", quick=True)
    failure = next(check for check in failed.failures if check.name == "inputs: normal")
    command = failed.command(failure)
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(render(failed))
    assert command in console.export_text()
    assert main(shlex.split(command)[1:]) == 3
    assert "inputs: normal" in capsys.readouterr().out
    with pytest.raises(InputError, match="did you mean 'oracle'"):
        verify(*files, device="cpu", only=["oracel"])


@pytest.mark.parametrize("training", [False, True])
def test_the_oracle_is_in_the_mode_that_is_asked_for(training: bool, tmp_path: Path) -> None:
    """Eager in one mode would be far off an oracle in the other, and any candidate as good."""
    for before, right in (("", True), (f"        self.train({not training})\n", False)):
        new = f"class ModelNew(Model):\n    def forward(self, x):\n{before}        return super()"
        paths = verifying.write(tmp_path, BATCH_NORM, f"{BATCH_NORM}\n{new}.forward(x)")
        found = verify(*paths, device="cpu", training=training, only=["random parameters"])
        check = found.checks[0]
        assert check.passed is right, check
        assert check.eager_error is not None and check.eager_error < 1e-5


def test_an_optimizer_steps_from_where_runs_begin(tmp_path: Path) -> None:
    """Calls in train mode before it leave other running statistics in the original."""
    new = "class ModelNew(Model):\n    def forward(self, x):\n        return super().forward(x)"
    names = ("uses: module", "uses: function")
    found = verifying.run_some(tmp_path, EVAL_NORM, f"{EVAL_NORM}\n{new}", *names)
    assert all(check.passed for check in found.values()), found
