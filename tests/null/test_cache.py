"""The cache folder: where it is, what it lists, and what `clean` removes and leaves alone."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwright import cache, tile_cache
from kernelwright.cli import main
from kernelwright.emit import paste
from kernelwright.errors import InputError
from kernelwright.runtime.build import cache as runtime_cache


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "extensions"
    folder.mkdir()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    return folder


def build(root: Path, name: str, days: float = 0.0) -> Path:
    """A folder as an emitted file leaves it, last loaded so many days ago."""
    folder = root / name
    folder.mkdir()
    (folder / f"{name}.so").write_bytes(b"x" * 1000)
    (folder / "building").touch()
    then = time.time() - days * 86400
    os.utime(folder / "building", (then, then))
    return folder


PLACES = [
    ({"TORCH_EXTENSIONS_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
    ({"XDG_CACHE_HOME": "/b"}, "/b/kernelwright"),
    ({"TORCH_EXTENSIONS_DIR": "", "XDG_CACHE_HOME": ""}, "/home/me/.cache/kernelwright"),
    ({}, "/home/me/.cache/kernelwright"),
]


@pytest.mark.parametrize(("environment", "place"), PLACES)
def test_the_package_and_emitted_files_choose_the_same_folder(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], place: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.root() == Path(place)
    assert tile_cache.cache_file() == Path(place) / "tiles.json"
    scope: dict[str, Any] = {}
    exec(paste.library({"cache"}, "cuda"), scope)  # as emitted files have it
    assert scope["cache"]() == runtime_cache() == place


def test_only_our_own_is_listed_and_removed(root: Path) -> None:
    build(root, "kw_ours_1")
    (root / "theirs").mkdir()
    (root / "file").touch()
    kept = cache.keep_live("Net", "class ModelNew: ...")
    failed = cache.keep_for_report("model", "1 / 0")
    (root / "tiles.json").write_text("{}")
    kinds = {entry.path: entry.kind for entry in cache.entries()}
    assert kinds == {
        root / "kw_ours_1": cache.BUILD,
        kept: cache.LIVE,
        failed: cache.FAILED,
        root / "tiles.json": cache.TILES,
    }
    assert len(cache.clean().removed) == 4
    assert {p.name for p in root.iterdir()} == {"theirs", "file"}


def test_a_build_in_progress_stays(root: Path) -> None:
    folder = build(root, "kw_busy_1")
    build(root, "kw_idle_1")
    with (folder / "building").open() as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert {e.path.name: e.busy for e in cache.entries()} == {
            "kw_busy_1": True,
            "kw_idle_1": False,
        }
        cleaned = cache.clean()
        assert [e.path for e in cleaned.busy] == [folder]
        assert (folder / "kw_busy_1.so").exists()
    assert [e.path for e in cache.clean().removed] == [folder]


def test_age_is_that_of_the_last_use_and_looking_does_not_change_it(root: Path) -> None:
    build(root, "kw_old_1", days=10)
    build(root, "kw_new_1", days=1)
    for _ in range(2):
        days = {e.path.name: round(e.days) for e in cache.entries()}
        assert days == {"kw_old_1": 10, "kw_new_1": 1}
    removed = cache.clean(older_than=5, dry_run=True).removed
    assert [e.path.name for e in removed] == ["kw_old_1"] and (root / "kw_old_1").exists()
    cache.clean(older_than=5)
    assert {p.name for p in root.iterdir()} == {"kw_new_1"}


def test_a_text_is_written_once(root: Path) -> None:
    first = cache.keep_live("Net", "one")
    inode = first.stat().st_ino
    assert cache.keep_live("Net", "one") == first and first.stat().st_ino == inode
    assert cache.keep_live("Net", "two") != first
    first.write_text("damaged")
    assert cache.keep_live("Net", "one").read_text() == "one"


def test_a_folder_that_cannot_be_used_is_one_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(root / "file" / "below"))
    assert cache.entries() == []
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        cache.keep_live("Net", "one")


def test_the_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(root, "kw_one_1", days=3)
    build(root, "kw_two_1")
    assert main(["cache"]) == 0
    assert f"2 kB in 2 entries of {root}" in " ".join(capsys.readouterr().out.split())
    assert main(["cache", "list"]) == 0
    out = capsys.readouterr().out
    assert "kw_one_1" in out and "3 d ago" in out
    assert main(["cache", "clean", "--dry-run"]) == 0
    assert "Would remove 2 entries" in capsys.readouterr().out and len(list(root.iterdir())) == 2
    assert main(["cache", "clean", "--older-than", "2", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [Path(e["path"]).name for e in report["removed"]] == ["kw_one_1"]
    assert main(["cache", "list", "--dry-run"]) == 2
    with pytest.raises(SystemExit):
        main(["cache", "clean", "--older-than", "-1"])
    assert main(["cache", "clean", "--quiet"]) == 0
    assert list(root.iterdir()) == []
