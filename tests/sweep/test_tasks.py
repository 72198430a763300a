"""A task as a value, the folder that tasks come from, and the journal that their rows go to."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pretending import PROBLEM, pretend, started, statuses, write_problems

from kernelwright.errors import InputError
from kernelwright.sweep import Corpus, Options, Task
from kernelwright.sweep.journal import RESULTS, Journal, rows
from kernelwright.sweep.task import row_of


def test_a_key_is_that_of_the_contents(tmp_path: Path) -> None:
    first = write_problems(tmp_path / "one", {"a": "pass", "b": "pass"})
    second = write_problems(tmp_path / "elsewhere", {"a": "pass", "b": "wrong"})
    here, there = list(Corpus(first)), list(Corpus(second))
    assert here[0].key == there[0].key
    assert here[1].key != there[1].key != here[0].key
    assert Task.from_json(json.loads(json.dumps(here[0].to_json()))) == here[0]
    changed = [
        replace(here[0], version="other"),
        replace(here[0], options=Options(quick=False)),
        replace(here[0], candidate="x.py"),
        replace(here[0], answer={"x.py": "text"}),
    ]
    assert len({here[0].key, *(task.key for task in changed)}) == 5


def test_what_a_problem_imports_from_beside_it_is_part_of_it(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, {"a": "pass"})
    with (problems / "a.py").open("a") as file:
        file.write("import helper\nfrom layers.block import Block\n")
    (problems / "helper.py").write_text("from deeper import x\n")
    (problems / "deeper.py").write_text("x = 1\n")
    (problems / "layers").mkdir()
    (problems / "layers/block.py").write_text("class Block: ...\n")
    (task,) = Corpus(problems)
    assert set(task.problem.files) == {"a.py", "helper.py", "deeper.py", "layers/block.py"}
    (problems / "deeper.py").write_text("x = 2\n")
    (again,) = Corpus(problems)
    assert again.key != task.key


def test_problems_come_as_people_number_them_and_by_class(tmp_path: Path) -> None:
    names = ["level2/1_a", "level1/10_b", "level1/2_c", "_hidden", ".git/x"]
    problems = write_problems(tmp_path, dict.fromkeys(names, "pass"))
    (problems / "helper.py").write_text("x = 1\n")
    (problems / "broken.py").write_text("class Model(: ...\n")
    (problems / "notes.txt").write_text("no problem")
    found = [(task.problem.name, task.family) for task in Corpus(problems)]
    assert found == [
        ("broken", "."),
        ("level1/2_c", "level1"),
        ("level1/10_b", "level1"),
        ("level2/1_a", "level2"),
    ]
    assert Corpus(problems).count() == 4


CANDIDATES = {
    "level1/2_c/first.py": "level1/2_c",
    "2_c/second.py": "level1/2_c",
    "2_c-fast.py": "level1/2_c",
    "1_a.py": "level2/1_a",
    "1_a_7.py": "level2/1_a",
    "level_1_problem_2_sample_0_kernel.py": "level1/2_c",
    "level_2_problem_1_sample_3_kernel.py": "level2/1_a",
}


def test_candidates_are_found_by_the_names_of_problems(tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "p", dict.fromkeys(["level2/1_a", "level1/2_c"], "pass"))
    for name in [*CANDIDATES, "nobodys.py", "2_c/_hidden.py", "2_c/notes.md"]:
        path = tmp_path / "c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("class ModelNew: ...\n")
    corpus = Corpus(problems, tmp_path / "c")
    assert {task.candidate: task.problem.name for task in corpus} == CANDIDATES
    assert corpus.count() == len(CANDIDATES)


def test_what_cannot_be_read_costs_its_own_task(tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "p", {"a": "pass", "b": "pass"})
    (problems / "huge.py").write_bytes(b"#" * (17 << 20))
    (problems / "latin.py").write_bytes(b"# fake: pass\n# \xff\ndef get_inputs(): return []\n")
    (problems / "gone.py").symlink_to(problems / "nowhere.py")
    pretend(problems, tmp_path / "out")
    found = {row["problem"]: row for row in rows(tmp_path / "out")}
    assert found["a"]["status"] == found["b"]["status"] == "passed"
    assert found["huge"]["status"] == "input" and "16 MB" in found["huge"]["reason"]
    assert found["latin"]["status"] == "passed"  # its bytes came through as they are
    assert found["gone"]["status"] == "input"


def test_a_journal_grows_by_whole_lines(tmp_path: Path) -> None:
    tasks = list(Corpus(write_problems(tmp_path / "p", dict.fromkeys("abc", "pass"))))
    out = tmp_path / "out"
    with Journal(out, resume=False) as journal:
        journal.append(row_of(tasks[0], "passed"))
        with pytest.raises(InputError, match="Another sweep writes"):
            Journal(out, resume=True)
    with pytest.raises(InputError, match="--resume goes on"):
        Journal(out, resume=False)
    for torn in ('{"schema": 1, "key": "0', "x" * 10_000, "\0" * 5000):
        with (out / RESULTS).open("a") as file:
            file.write(torn)
        with Journal(out, resume=True) as journal:
            assert [task.key in journal.done for task in tasks] == [True, False, False]
            assert (out / RESULTS).read_text().endswith("}\n")
    with Journal(out, resume=True) as journal:
        journal.append(row_of(tasks[1], "wrong", "because"))
    assert [row["problem"] for row in rows(out)] == ["a", "b"]


def test_a_resumed_sweep_repeats_nothing(tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "p", {"a": "pass 2.0", "b": "wrong", "c": "pass"})
    out, log = tmp_path / "out", tmp_path / "log"
    pretend(problems, out, log=log)
    lines = (out / RESULTS).read_text().splitlines()
    (out / RESULTS).write_text(lines[0] + "\n" + lines[1][: len(lines[1]) // 2])
    before = len(started(log))
    pretend(problems, out, log=log, resume=True)
    again = [name for name, _ in started(log)[before:]]
    assert len(again) == 2 and json.loads(lines[0])["problem"] not in again
    assert statuses(out) == {"a": "passed", "b": "wrong", "c": "passed"}
    (problems / "a.py").write_text(PROBLEM.format(what="pass 3.0"))
    pretend(problems, out, log=log, resume=True)
    assert [name for name, _ in started(log)[before + 2 :]] == ["a"]


def test_artefacts_lie_under_the_key(tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "p", {"a": "pass"})
    pretend(problems, tmp_path / "out")
    (row,) = rows(tmp_path / "out")
    kept = tmp_path / "out/artefacts" / row["key"]
    assert row["kept"] == ["model_new.py"] == os.listdir(kept)
    assert (kept / "model_new.py").read_text() == "# made\n"


def test_artefacts_on_any_filesystem(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    from kernelwright.sweep.artefacts import keep

    made = tmp_path / "made"
    made.mkdir()
    (made / "model_new.py").write_text("text")
    (made / "link").symlink_to("/etc/passwd")
    for _ in range(2):
        assert keep(made, "memory://kept", "key") == ["model_new.py"]
    assert fsspec.filesystem("memory").cat("/kept/key/model_new.py") == b"text"


@pytest.mark.parametrize("where", ["nonsense://x", "p/nothing"])
def test_bad_folders_are_told_before_the_long_work(tmp_path: Path, where: str) -> None:
    problems = write_problems(tmp_path / "p", {"a": "pass"})
    with pytest.raises(InputError, match=r"cannot be written|There is no folder"):
        if "://" in where:
            from kernelwright.sweep.artefacts import filesystem

            filesystem(where)
        else:
            pretend(problems / "nothing", tmp_path / "out")
