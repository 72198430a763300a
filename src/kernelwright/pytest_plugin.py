"""A pytest plugin: `--kernelwright-report FILE` keeps the certificates of a test suite.

In: every certificate that `kernelwright.assert_certified` gave in a test, passed or not. Out: one
file at the end of the run, by its ending: `.json` for programs, `.html` to look at. Workers of
pytest-xdist send theirs to the process that writes. Loaded in every run of pytest where
kernelwright is installed, so nothing is imported before it is needed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kernelwright.verify.certificate import Certificate

OPTION = "--kernelwright-report"
SENT = "kernelwright certificates"  # under which a worker sends them


@dataclass
class Recorder:
    """Certificates by the test that they were given in; a `worker` hands them on."""

    path: Path
    worker: bool
    test: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, certificate: Certificate) -> None:
        html = certificate._repr_html_() if self.path.suffix == ".html" else ""
        row = {"test": self.test, "certificate": certificate.to_json(), "html": html}
        self.rows.append(row)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended, or died without a word."""
        sent = getattr(node, "workeroutput", {}).get(SENT)
        self.rows += json.loads(sent) if sent else []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from kernelwright import assertions

        assertions.listeners.remove(self.hear)
        if self.worker:
            output: dict[str, str] = session.config.workeroutput  # type: ignore[attr-defined]
            output[SENT] = json.dumps(self.rows, default=str)
            return
        from kernelwright.files import write_atomically

        write = _html if self.path.suffix == ".html" else _json
        write_atomically(self.path, write(self.rows))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.worker:
            passed = sum(row["certificate"]["passed"] for row in self.rows)
            told = f"{passed} of {len(self.rows)} certificates passed; they are in {self.path}"
            terminalreporter.write_sep("-", f"kernelwright: {told}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("kernelwright").addoption(
        OPTION,
        metavar="FILE",
        help="write all certificates of assert_certified into FILE, .json or .html",
    )


def pytest_configure(config: pytest.Config) -> None:
    told = config.getoption(OPTION)
    if told is None:
        return
    path = Path(told)
    if path.suffix not in (".json", ".html"):
        raise pytest.UsageError(f"{OPTION} writes .json or .html; give {told} such an ending.")
    if not path.parent.is_dir():
        raise pytest.UsageError(f"{OPTION}: the folder {path.parent} does not exist.")
    from kernelwright import assertions

    recorder = Recorder(path, hasattr(config, "workerinput"))
    assertions.listeners.append(recorder.hear)
    config.pluginmanager.register(recorder, "kernelwright-recorder")


def _json(rows: list[dict[str, Any]]) -> str:
    plain = [{"test": row["test"], "certificate": row["certificate"]} for row in rows]
    return json.dumps({"schema": 1, "certificates": plain}, indent=2, default=str) + "\n"


def _html(rows: list[dict[str, Any]]) -> str:
    """One page without a network: each test's certificate under its name."""
    from html import escape

    parts = [f"<h2>{escape(row['test'])}</h2>\n{row['html']}" for row in rows]
    return PAGE.format(body="\n".join(parts) or "<p>No test gave a certificate.</p>")


PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Certificates</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.4 system-ui, sans-serif; }}
body {{ margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 0.5rem; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; font-size: 0.85rem; width: 100%; }}
caption {{ text-align: left; padding: 0.25rem 0; }}
th, td {{ border-bottom: 1px solid #8884; padding: 0.2rem 0.5rem; text-align: left; }}
</style>
</head>
<body>
<h1>Certificates</h1>
{body}
</body>
</html>
"""
