"""The command line: exit codes, one sentence on stderr, and files that appear whole or not at all.

The compiler and the verifier are replaced by stand-ins: only what surrounds them is tested here.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import verifying

from kernelwright import commands, details, pipeline
from kernelwright.bench import runner
from kernelwright.cli import main
from kernelwright.errors import BuildError, UnsupportedError
from kernelwright.files import write_atomically
from kernelwright.verify import session
from kernelwright.verify.certificate import Certificate, Check

MODEL = """
import torch
from torch import nn

print("a model file may print")

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(16, 8)]
"""
SOURCE = (
    MODEL + "class ModelNew(Model):\n    def forward(self, x):\n        return x.clamp_min(0)\n"
)


class FakeCompiled(SimpleNamespace):
    def to_json(self) -> dict[str, Any]:
        return {"source": self.source}


def fake_compile(*args: object, **options: object) -> FakeCompiled:
    fused = SimpleNamespace(
        op="relu", origin="model.py:9", fate="fused", where="rowwise_relu", why="memory bound"
    )
    region = SimpleNamespace(
        name="relu", kind="map", ops="relu", bytes=1024, flops=128, launches=1, why="one kernel"
    )
    return FakeCompiled(
        problem=SimpleNamespace(name="model", batch=16),
        source=SOURCE,
        ledger=(fused,),
        regions=(region,),
        refusals=("sort: [an opaque operator]",),
        rewrites=("x + x => 2 * x",),
        shared=("x is stored",),
        again=("conv: its order is chosen again",),
        target=SimpleNamespace(notice=""),
        fused=True,
    )


def fake_verify(passed: bool) -> Any:
    def verify(model: Path, candidate: Path, *rest: object, **options: object) -> Certificate:
        assert Path(candidate).read_text() == SOURCE
        return Certificate(
            str(model), str(candidate), "cpu", "highest", (Check("oracle", passed, "as told"),)
        )

    return verify


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def no_details(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled here has no graphs to tell of."""
    monkeypatch.setattr(details, "details", lambda compiled: {})


@pytest.fixture(autouse=True)
def one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fork server for all commands; that they start their own is tested elsewhere."""
    for module in (runner, session):
        monkeypatch.setattr(module, "Server", lambda: nullcontext(verifying.server()))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(commands, "compile_file", fake_compile)
    monkeypatch.setattr(commands, "verify_files", fake_verify(True))
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The error, which must be the only line on stderr that is not a user's own print."""
    lines = [x for x in capsys.readouterr().err.splitlines() if x != "a model file may print"]
    assert len(lines) == 1, lines
    assert lines[0].startswith("kernelwright: ")
    return lines[0]


def names(model: Path) -> set[str]:
    return {p.name for p in model.parent.iterdir()}


def test_optimize_writes_beside_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(model), "--no-bench", "--device", "cpu"]) == 0
    assert model.with_name("model_new.py").read_text() == SOURCE
    assert names(model) == {"model.py", "model_new.py"}
    out = capsys.readouterr().out
    for word in ("rowwise_relu", "model.py:9", "PASSED", "model_new.py"):
        assert word in out
    assert "may print" not in out


def test_optimize_with_timings_as_json(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", None)
    chosen = model.with_name("chosen.py")
    arguments = ["optimize", str(model), "-o", str(chosen), "--batch", "4", "--device", "cpu"]
    assert main([*arguments, "--json", "-", "--quiet"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["output"] == str(chosen)
    assert report["certificate"]["candidate"] == str(chosen)
    assert report["timings"]["conditions"]["input"] == [4, 8]
    assert captured.err.replace("a model file may print\n", "") == ""


def test_a_failed_verification_leaves_no_file(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "verify_files", fake_verify(False))
    assert main(["optimize", str(model), "--quiet"]) == 3
    said = one_sentence(capsys)
    assert "no file was written" in said
    kept = re.search(r"kept as (\S+) for a report", said)
    assert kept and Path(kept[1]).read_text() == SOURCE
    assert names(model) == {"model.py"}


def test_a_failed_verification_keeps_the_old_file(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "verify_files", fake_verify(False))
    model.with_name("model_new.py").write_text("old")
    assert main(["optimize", str(model), "--quiet"]) == 3
    assert model.with_name("model_new.py").read_text() == "old"


@pytest.mark.parametrize(
    ("error", "code"), [(BuildError("No compiler."), 4), (UnsupportedError("No loops."), 5)]
)
def test_exit_codes_of_errors(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(commands, "compile_file", fail)
    assert main(["optimize", str(model), "--quiet"]) == code
    assert one_sentence(capsys) == f"kernelwright: {error}"
    assert names(model) == {"model.py"}


def test_a_failure_of_ours_says_so_and_keeps_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    monkeypatch.setattr(pipeline, "rewrite", None)
    assert main(["explain", str(path), "--quiet", "--device", "cpu"]) == 1
    said = one_sentence(capsys)
    line = re.search(r"\(pipeline.py:(\d+)\)", said)
    assert line and "rewrite(" in inspect.getsource(pipeline).splitlines()[int(line[1]) - 1]
    assert "bug in kernelwright" in said and "TypeError" in said and "python first" not in said
    kept = re.search(r"report it with (\S+) and", said)
    assert kept and Path(kept[1]).read_text() == MODEL
    monkeypatch.setenv("KERNELWRIGHT_DEBUG", "1")
    with pytest.raises(TypeError):
        main(["explain", str(path), "--quiet", "--device", "cpu"])


def test_a_failure_of_the_user_names_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.replace("torch.relu(x)", "torch.relu(x).reshape(5, 5)"))
    assert main(["explain", str(path), "--quiet", "--device", "cpu"]) == 2
    said = one_sentence(capsys)
    assert f"{path}:9" in said and "python first" in said and "bug" not in said


@pytest.mark.parametrize("imported_first", [True, False])
def test_an_emitted_file_that_does_not_run_is_our_failure(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    imported_first: bool,
) -> None:
    if not imported_first:  # then verify is the first to load it
        monkeypatch.setattr(commands, "check_imports", lambda *args: None)
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    broken = SOURCE.replace("class ModelNew", "undefined_name\n\nclass ModelNew")
    fake = fake_compile()
    fake.source = broken
    monkeypatch.setattr(commands, "compile_file", lambda *args: fake)
    assert main(["optimize", str(path), "--quiet", "--device", "cpu"]) == 1
    said = one_sentence(capsys)
    assert "bug in kernelwright" in said or "kernelwright's own mistake" in said
    assert "NameError" in said and "python first" not in said
    line = broken.splitlines().index("undefined_name") + 1
    assert f"line {line}" in said
    kept = re.search(r"(\S+kw_failed\S+\.py)", said)
    assert kept and Path(kept[1]).read_text() == broken
    assert names(path) == {"model.py"}


@pytest.mark.parametrize("output", ["absent/new.py", "."])
def test_unwritable_output_is_found_before_the_work(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    output: str,
) -> None:
    monkeypatch.setattr(commands, "compile_file", None)
    target = str(model.parent / output)
    assert main(["optimize", str(model), "-o", target]) == 2
    one_sentence(capsys)
    assert main(["optimize", str(model), "--json", target]) == 2
    one_sentence(capsys)


def test_a_read_only_folder_is_an_input_error(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", deny)
    assert main(["optimize", str(model)]) == 2
    assert "cannot be written: Permission denied" in one_sentence(capsys)


def test_the_output_is_not_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(model), "-o", str(model)]) == 2
    assert "model file itself" in one_sentence(capsys)
    assert model.read_text() == MODEL


def test_explain_shows_plan_and_ledger(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model)]) == 0
    out = capsys.readouterr().out
    for word in ("Plan of model", "1.024 kB", "x + x => 2 * x", "[an opaque operator]", "Ledger"):
        assert word in out
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 3)])
def test_verify_exits_by_its_verdict(
    model: Path, monkeypatch: pytest.MonkeyPatch, passed: bool, code: int
) -> None:
    candidate = model.with_name("candidate.py")
    candidate.write_text(SOURCE)
    report = model.with_name("report.json")
    monkeypatch.setattr(commands, "verify_files", fake_verify(passed))
    assert main(["verify", str(model), str(candidate), "--json", str(report)]) == code
    assert json.loads(report.read_text())["passed"] is passed


@pytest.mark.parametrize(("level", "code"), [("function", 0), ("module", 3), ("drop-in", 3)])
def test_verify_exits_by_the_level_that_was_asked_for(
    model: Path, monkeypatch: pytest.MonkeyPatch, level: str, code: int
) -> None:
    candidate = model.with_name("candidate.py")
    candidate.write_text(SOURCE)
    checks = Check("oracle", True, ""), Check("autocast", False, "another value", level="module")

    def verify(*given: object, **options: Any) -> Certificate:
        return Certificate("m", "c", "cpu", "highest", checks, asked=options["level"])

    monkeypatch.setattr(commands, "verify_files", verify)
    assert main(["verify", str(model), str(candidate), "--level", level]) == code


def test_what_is_emitted_is_held_to_the_last_level(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything that stands against it, and no file is written."""
    asked: list[str] = []

    def verify(*given: object, level: str, **options: object) -> Certificate:
        asked.append(level)
        checks = Check("oracle", True, ""), Check("hooks", False, "not called", level="drop-in")
        return Certificate("m", "c", "cpu", "highest", checks, asked=level)

    monkeypatch.setattr(commands, "verify_files", verify)
    assert main(["optimize", str(model), "--no-bench"]) == 3
    assert asked == ["drop-in"] and not model.with_name("model_new.py").exists()


def test_bench_from_the_command_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    candidate = model.with_name("candidate.py")
    candidate.write_text(SOURCE)
    arguments = ["bench", str(model), str(candidate), "--device", "cpu", "--baselines", "eager"]
    assert main(arguments) == 0
    assert "median ms" in capsys.readouterr().out
    candidate.write_text(SOURCE.replace("clamp_min(0)", "abs()"))
    assert main([*arguments, "--quiet"]) == 3
    assert "float64 says" in one_sentence(capsys)


def slow_candidate(model: Path) -> Path:
    """ModelNew that takes ten times as long as Model, whatever the machine does."""
    candidate = model.with_name("candidate.py")
    text = "class ModelNew(Model):\n    def forward(self, x):\n        time.sleep(0.005)\n"
    candidate.write_text(f"import time\n{MODEL}\n{text}        return super().forward(x)\n")
    return candidate


def test_slower_than_eager_is_said_loudly(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    candidate = slow_candidate(model)
    arguments = ["bench", str(model), str(candidate), "--device", "cpu", "--baselines", "eager"]
    assert main(arguments) == 0
    assert re.search(r"^Slower than eager: 0\.\d\dx\.", capsys.readouterr().out, re.MULTILINE)
    assert main([*arguments, "--json", "-"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["notices"][0].startswith("Slower than eager: 0.")
    assert 0 < report["speedup_over_eager"] < 1
    assert "Slower than eager" in captured.err


def test_require_speedup(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    candidate = slow_candidate(model)
    arguments = ["bench", str(model), str(candidate), "--device", "cpu", "--quiet"]
    assert main([*arguments, "--baselines", "eager", "--require-speedup", "1.5"]) == 3
    said = one_sentence(capsys)
    assert "as fast as eager" in said and "1.5x" in said and " ms against " in said
    assert main([*arguments, "--baselines", "eager", "--require-speedup", "0.0001"]) == 0
    assert main([*arguments, "--baselines", "compile", "--require-speedup", "2"]) == 2
    assert "add eager" in capsys.readouterr().err
    assert main(["optimize", str(model), "--no-bench", "--require-speedup", "2"]) == 2


def test_nothing_fused_is_said_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.replace("torch.relu(x)", "torch.cumsum(x, 0)"))
    report = tmp_path / "report.json"
    assert main(["explain", str(path), "--device", "cpu", "--json", str(report)]) == 0
    out = capsys.readouterr().out
    assert any(
        line.startswith("Nothing was fused: ") and "cumsum" in line for line in out.split("\n")
    )
    assert json.loads(report.read_text())["notices"][0].startswith("Nothing was fused")
    path.write_text(MODEL.replace("torch.relu(x)", "torch.relu(x) * 2"))
    assert main(["explain", str(path), "--device", "cpu", "--json", str(report)]) == 0
    assert "Nothing was fused" not in capsys.readouterr().out
    assert json.loads(report.read_text())["notices"] == []


DROPOUT = MODEL.replace("torch.relu(x)", "nn.functional.dropout(torch.relu(x), 0.5, self.training)")


@pytest.mark.parametrize(("flags", "mode"), [((), "train"), (("--eval",), "eval")])
def test_the_mode_of_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], mode: str
) -> None:
    path = tmp_path / "model.py"
    path.write_text(DROPOUT)
    assert main(["explain", str(path), "--device", "cpu", "--json", "-", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert f"{mode} mode" in report["problem"]
    fates = {row["fate"] for row in report["ledger"] if row["op"] == "dropout"}
    assert fates == ({"aten"} if mode == "train" else {"folded"})


def test_the_mode_of_verify_and_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A candidate that is right in eval mode alone."""
    path, candidate = tmp_path / "model.py", tmp_path / "candidate.py"
    model = MODEL.replace("torch.relu(x)", "torch.relu(x) * (2 if self.training else 1)")
    path.write_text(model)
    text = "class ModelNew(Model):\n    def forward(self, x):\n        return x.clamp_min(0)\n"
    candidate.write_text(model + text)
    files = [str(path), str(candidate), "--device", "cpu", "--quiet"]
    assert main(["bench", *files, "--baselines", "eager", "--eval"]) == 0
    assert main(["bench", *files, "--baselines", "eager", "--train"]) == 3
    report = tmp_path / "report.json"
    main(["verify", *files, "--quick", "--eval", "--json", str(report)])
    checks = {c["name"]: c["passed"] for c in json.loads(report.read_text())["checks"]}
    assert checks["oracle"] is True
    main(["verify", *files, "--quick", "--train", "--json", str(report)])
    checks = {c["name"]: c["passed"] for c in json.loads(report.read_text())["checks"]}
    assert checks["oracle"] is not True


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "There is no file"),
        ("x = 1\n", "defines no `class Model"),
        ("raise ValueError('two\\nlines')\n", "raised ValueError"),
        (MODEL.replace("8)]", "8), 3]"), "does not accept"),
    ],
)
def test_bad_files_end_in_one_sentence(
    tmp_path: Path, text: str | None, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.py"
    if text is not None:
        path.write_text(text)
    assert main(["optimize", str(path), "--device", "cpu", "--quiet"]) == 2
    out, err = capfd.readouterr()
    lines = [x for x in err.splitlines() if x != "a model file may print"]
    assert len(lines) == 1 and says in lines[0], err
    assert out == ""
    assert {p.name for p in tmp_path.iterdir()} <= {"model.py"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    done = run("explain", str(path), "--device", "cuda")
    assert done.returncode == 2
    assert "no GPU" in done.stderr and "Traceback" not in done.stderr


def test_help_documents_the_exit_codes() -> None:
    done = run("--help")
    assert done.returncode == 0
    for code in range(6):
        assert f"\n  {code}  " in done.stdout


@pytest.mark.parametrize("arguments", [(), ("polish", "model.py"), ("verify", "model.py")])
def test_bad_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 2


def test_atomic_write(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_atomically(target, "one")
    write_atomically(target, "two")
    assert target.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_api_stays_callable_after_its_subpackages_are_imported() -> None:
    import kernelwright.bench
    import kernelwright.verify

    assert callable(kernelwright.bench) and callable(kernelwright.verify)
    functions = {name for name in kernelwright.__all__ if name[0].islower()}
    named = {"assert_certified", "backend", "bench", "explain", "optimize", "save", "verify"}
    assert functions == named
    assert all(callable(getattr(kernelwright, name)) for name in functions)


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, kernelwright; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
