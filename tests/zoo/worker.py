"""The zoo in processes of its own: several at once, and a case that ends its process ends no other.

As a command: `python -m zoo.worker DEVICE FILE NAME...` checks the named cases one after another
and appends a line of JSON to FILE for each: its name and what failed ("" where nothing did).
`check_all` shares cases out to such processes; where one dies, the case that it was at is to blame
and a new process goes on with the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parents[1]


def check_all(names: list[str], device: str, processes: int) -> dict[str, str]:
    """What failed, by the name of the case."""
    shares = [names[i::processes] for i in range(processes)]
    found: dict[str, str] = {}
    with ThreadPoolExecutor(processes) as pool:
        for part in pool.map(lambda share: _check_share(share, device), shares):
            found |= part
    return found


def _check_share(names: list[str], device: str) -> dict[str, str]:
    found: dict[str, str] = {}
    while left := [name for name in names if name not in found]:
        finished, said = _run(left, device)
        found |= finished
        if left[-1] not in found:
            blamed = next(name for name in left if name not in found)
            found[blamed] = f"the process ended in {blamed}:\n{said[-2000:]}"
    return found


def _run(names: list[str], device: str) -> tuple[dict[str, str], str]:
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as lines:
        command = [sys.executable, "-m", "zoo.worker", device, lines.name, *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return dict(json.loads(line) for line in lines), done.stderr


def main() -> None:
    import zoo
    from zoo import checks

    device, path, *names = sys.argv[1:]
    cases = {case.name: case for case in zoo.CASES}
    for name in names:
        try:
            checks.check(cases[name], device)
            failure = ""
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        with open(path, "a") as lines:
            lines.write(json.dumps([name, failure]) + "\n")


if __name__ == "__main__":
    main()
