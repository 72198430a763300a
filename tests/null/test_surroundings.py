"""What surrounds a command: where its output goes, streams that take nothing, and Ctrl-C.

It ends in one sentence with its exit code, and what existed before still exists.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright import cache, commands, interrupts
from kernelwright.cli import main
from kernelwright.errors import BuildError, InputError
from kernelwright.failures import BUILDERS
from kernelwright.files import put, staged, write_atomically
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem
from kernelwright.verify.candidate import candidate_class

COMMAND = [sys.executable, "-m", "kernelwright"]
REPORT = ["cache", "size", "--quiet", "--json"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("cache")))


def one_sentence(said: str) -> str:
    (line,) = said.splitlines()
    assert line.startswith("kernelwright: ") and "bug" not in line, said
    return line


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("only root makes devices")


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a device": make_device,
    "a link to a pipe": lambda p: (os.mkfifo(p.with_name("pipe")), p.symlink_to("pipe")),
    "a link to a folder": lambda p: p.symlink_to("."),
    "a link to itself": lambda p: p.symlink_to(p.name),
}


@pytest.mark.parametrize("kind", IRREGULAR)
def test_only_files_are_replaced(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "compile_file", None)  # it is found before the work
    model, target = tmp_path / "model.py", tmp_path / "target.py"
    model.write_text("")
    IRREGULAR[kind](target)
    before = target.lstat()
    for arguments in (["optimize", str(model), "-o", str(target)], [*REPORT, str(target)]):
        assert main(arguments) == 2
        one_sentence(capsys.readouterr().err)
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_a_pipe_that_comes_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "new.py"
    with pytest.raises(InputError, match="no regular file"), staged(target, "text") as stage:
        os.mkfifo(target)
        put(stage, target)
    assert target.is_fifo() and os.listdir(tmp_path) == ["new.py"]


def test_a_pipe_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    """As `--json /dev/stdout` and `--json >(cat)` have it."""
    ends = os.pipe()
    assert main([*REPORT, f"/dev/fd/{ends[1]}"]) == 2
    for end in ends:
        os.close(end)
    assert "no regular file" in one_sentence(capsys.readouterr().err)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to("inner/file.json")
    for text in ("one", "two"):
        write_atomically(link, text)
        assert link.is_symlink() and (tmp_path / "inner/file.json").read_text() == text
    assert os.listdir(tmp_path / "inner") == ["file.json"]


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        (("optimize", "model.py", "-o", "new.py"), "new.py"),
        (("optimize", "model.py"), "model_new.py"),
        (("optimize", "model.py"), "model.py"),
        (("explain", "model.py"), "link.py"),
        (("verify", "model.py", "new.py"), "new.py"),
        (("bench", "model.py", "new.py"), "new.py"),
        (("check", "new.py"), "new.py"),
    ],
)
def test_the_report_replaces_nothing_that_the_command_is_about(
    arguments: tuple[str, ...],
    lost: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.py", "new.py", "model_new.py"):
        Path(name).write_text(name)
    Path("link.py").symlink_to("model.py")
    assert main([*arguments, "--json", lost]) == 2
    assert "choose another with --json" in one_sentence(capsys.readouterr().err)
    for name in ("model.py", "new.py", "model_new.py"):
        assert Path(name).read_text() == name


@pytest.mark.parametrize("path", ["", "/", "..", "/dev/zero", "x" * 300])
@pytest.mark.parametrize("command", ["optimize", "explain", "check"])
def test_paths_that_are_no_files(
    command: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, path]) == 2
    one_sentence(capsys.readouterr().err)


def ended(arguments: list[str], **streams: object) -> tuple[int, str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    done = subprocess.run([*COMMAND, *arguments], text=True, check=False, **options)  # type: ignore[call-overload]
    return done.returncode, done.stderr or ""


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def unread() -> int:
    end, pipe = os.pipe()
    os.close(end)
    return pipe


@pytest.mark.parametrize(
    ("arguments", "open_it", "says"),
    [
        (["completion", "bash"], full, "No space left"),
        (["completion", "bash"], unread, "Broken pipe"),
        (["cache", "size"], unread, "Broken pipe"),  # by rich, which has its own idea of it
        ([*REPORT, "-"], full, "No space left"),
    ],
)
def test_a_standard_output_that_takes_nothing(
    arguments: list[str], open_it: Callable[[], int], says: str
) -> None:
    stdout = open_it()
    code, said = ended(arguments, stdout=stdout)
    os.close(stdout)
    assert code == 2 and says in one_sentence(said)


def test_a_closed_standard_output() -> None:
    code, said = ended(["completion", "bash"], preexec_fn=lambda: os.close(1), stdout=None)
    assert code == 2 and "Bad file descriptor" in one_sentence(said)


def test_nobody_listens_on_stderr(tmp_path: Path) -> None:
    """The exit code and the results are what they would be."""
    with open("/dev/full", "w") as full:
        assert ended(["check", str(tmp_path / "absent.py")], stderr=full)[0] == 2
    assert ended(["completion", "bash"], preexec_fn=lambda: os.close(2), stderr=None)[0] == 0


def test_a_report_that_does_not_fit(tmp_path: Path) -> None:
    """A bound on the size of files, as a full disk is one."""
    report = tmp_path / "report.json"
    report.write_text("old")
    bound = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))  # noqa: E731
    code, said = ended([*REPORT, str(report)], preexec_fn=bound)
    assert code == 2 and "File too large" in one_sentence(said)
    assert report.read_text() == "old" and os.listdir(tmp_path) == ["report.json"]


def test_what_the_system_refuses_is_no_bug_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "entries", lambda: os.write(full(), b"x"))
    monkeypatch.setattr("kernelwright.failures.is_ours", lambda error: True)
    assert main(["cache", "size"]) == 2
    assert "No space left" in one_sentence(capsys.readouterr().err)


def test_a_cache_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What went wrong is told without the file that it was to be kept in."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(blocked))
    assert cache.keep_for_report("model", "text") is None


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1) * 2

def get_inputs():
    return [torch.randn(4, 8)]
"""


WRITE = "open('/dev/full', 'wb', 0).write(b'x')"


def test_no_room_for_a_library_is_a_build_error(tmp_path: Path) -> None:
    """In a file that builds as emitted ones do; elsewhere in it an OSError is the file's own."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    emitted = compile_problem(load_problem(path, "cpu")).source
    for builder in BUILDERS:
        assert f"\ndef {builder}(" in emitted
        path.write_text(
            f"def {builder}():\n    open('/dev/full', 'wb', 0).write(b'x')\n{builder}()"
        )
        with pytest.raises(BuildError, match="No space left"):
            candidate_class(path)
    path.write_text(WRITE)
    with pytest.raises(InputError, match="raised OSError while it was loaded"):
        candidate_class(path)


@pytest.mark.parametrize(
    ("sent", "code", "told"),
    [(signal.SIGINT, 130, "Interrupted."), (signal.SIGTERM, 143, "Terminated.")],
)
def test_a_signal_while_torch_is_imported(sent: signal.Signals, code: int, told: str) -> None:
    child = subprocess.Popen([*COMMAND, *REPORT, "-"], stderr=subprocess.PIPE, text=True)
    maps = Path(f"/proc/{child.pid}/maps")
    until = time.monotonic() + 60
    while "libtorch" not in maps.read_text() and time.monotonic() < until:
        time.sleep(0.001)
    child.send_signal(sent)
    _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (code, f"kernelwright: {told}\n")


def test_sigterm_leaves_no_file_behind(tmp_path: Path) -> None:
    """A class by its name needs a file beside its own, which is there while its module runs."""
    path = tmp_path / "nets.py"
    path.write_text("import time\n\nclass Net: ...\n\ntime.sleep(120)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "kernelwright", "explain", f"{path}:Net"],
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while not (tmp_path / "nets_Net.py").exists() and time.monotonic() < until:
        time.sleep(0.05)
    child.terminate()
    _, said = child.communicate(timeout=120)
    assert (child.returncode, said) == (143, "kernelwright: Terminated.\n")
    assert [p.name for p in tmp_path.iterdir()] == ["nets.py"]


def test_the_installed_command_listens_as_early() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    scripts = tomllib.loads(project.read_text())["project"]["scripts"]
    assert scripts == {"kernelwright": "kernelwright.__main__:main"}


def test_ctrl_c_that_a_library_takes_for_its_own_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> None:
        try:
            interrupts._press(signal.SIGINT, None)
        except BaseException:
            raise ImportError("cannot load module") from None

    from kernelwright.__main__ import main as command

    monkeypatch.setattr(cache, "entries", failing)
    monkeypatch.setattr(interrupts, "_pressed", False)
    monkeypatch.setattr(sys, "argv", ["kernelwright", "cache", "size"])
    before = signal.getsignal(signal.SIGINT)
    try:
        assert command() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "kernelwright: Interrupted.\n"
