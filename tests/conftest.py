"""Shared by all tiers: golden files with an update switch, and no GPU tests without a GPU."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Workers have more threads than there are cores: those that wait must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))  # for checking.py, which the tiers share

import drawn  # noqa: E402

LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden with what tests produce"
    )
    parser.addoption(
        "--whole", action="store_true", help="every case, also of what drawn.py takes a part of"
    )


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--whole"):
        return "every case of every test"
    return f"of the slow tests a part, drawn by the sources ({drawn.draw()}); --whole takes all"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Workers, which collect, tell how many cases they left out: each of them the same ones."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count = terminalreporter.config.stash.get(LEFT_OUT, 0)
    if count:
        terminalreporter.line(f"{count} slow cases were not drawn: make test-all runs them")


def pytest_collection_finish() -> None:
    """What there is by now, torch and all tests, stays: the collector need not look at it again.

    Nor at every trace: a fifth of the time to compile a model is looking for garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--whole"):
        left = dict.fromkeys(drawn.left_out(items, config.args))
        if left:
            config.stash[LEFT_OUT] = len(left)
            config.hook.pytest_deselected(items=list(left))
            items[:] = [item for item in items if item not in left]
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="tests/cuda needs a GPU, and torch sees none here")
    for item in items:
        if TESTS / "cuda" in item.path.parents:
            item.add_marker(skip)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares with tests/golden/<name>, or writes it with the switch."""

    def compare(name: str, text: str) -> None:
        path = TESTS / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} does not exist; run pytest --update-golden and review it"
        assert text == path.read_text(), f"{path} differs; run pytest --update-golden and review"

    return compare


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A build cache of this session's own, so that tests compile for real; its workers share it."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "extensions"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
        yield folder
