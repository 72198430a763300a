"""Is the library in an emitted file the package's own: the file's path in, a finding for each part.

The parts are written again, from this package and from what the rest of the file uses, and compared
with what stands there. So nobody has to read them: what a reviewer reads is the model, its programs
and the runtime in front of them. The file is not run.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelwright.emit import library
from kernelwright.emit.library import CXX, PYTHON, Section
from kernelwright.errors import InputError, VerificationError
from kernelwright.version import __version__

IDENTICAL, EDITED, DIFFERENT, OTHER = "identical", "edited", "different", "other version"
NO_BANNER = "has no banner, or one that was edited"


@dataclass(frozen=True)
class Finding:
    """One part of the library: what it is compared with the package's, and where it differs."""

    part: str
    status: str
    version: str
    lines: int
    told: str


@dataclass(frozen=True)
class Checked:
    path: str
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "package": __version__,
                "findings": [asdict(f) for f in self.findings]}  # fmt: skip

    def require(self) -> None:
        """Raise unless every part is the package's."""
        wrong = [f for f in self.findings if f.status in (EDITED, DIFFERENT)]
        if wrong:
            told = "; ".join(f"{f.part} {f.told}" for f in wrong)
            raise VerificationError(f"The library in {self.path} is not the package's: {told}.")
        needed = sorted({f.version for f in self.findings if f.status == OTHER})
        if needed:
            raise InputError(
                f"{self.path} was written by kernelwright {needed[0]}, and this is {__version__}: "
                f"run `pip install kernelwright=={needed[0]}` and check again."
            )


def check_file(path: str | Path) -> Checked:
    """Compare every part of the library in an emitted file with the package's."""
    if not Path(path).is_file():
        raise InputError(f"There is no file {path}; give one that `kernelwright optimize` wrote.")
    try:
        source = Path(path).read_text(encoding="utf-8")
        parts = [s for s in library.sections(source) if s.seal is not None]
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    expected = [PYTHON, *([CXX] if library.has_programs(source) else [])]
    found = [part.seal["language"] for part in parts if part.seal is not None]
    if not found:
        raise InputError(
            f"{path} has no library of kernelwright's in it; give a file that `kernelwright "
            "optimize` wrote."
        )
    findings = [_finding(part, source) for part in parts]
    for language in expected:
        if found.count(language) != 1:
            told = "stands there more than once" if language in found else NO_BANNER
            findings.append(Finding(language, EDITED, "", 0, told))
    return Checked(str(path), tuple(findings))


def _finding(part: Section, source: str) -> Finding:
    assert part.seal is not None
    language, version = part.seal["language"], part.seal["version"]
    lines = part.text.count("\n")
    if part.digest != part.seal["seal"]:
        told = "was edited after it was written: its hash is another"
        if version == __version__:
            told += f" ({_difference(part, source)})"
        return Finding(language, EDITED, version, lines, told)
    if version != __version__:
        told = f"is as kernelwright {version} wrote it, and this is {__version__}"
        return Finding(language, OTHER, version, lines, told)
    difference = _difference(part, source)
    if difference:
        return Finding(language, DIFFERENT, version, lines, difference)
    return Finding(language, IDENTICAL, version, lines, "is the package's")


def _difference(part: Section, source: str) -> str:
    """The first line that is not the package's; empty where all are."""
    try:
        ours = library.written_again(part, source).splitlines()
    except (OSError, SyntaxError, ValueError) as error:
        return f"cannot be compared: {error}"
    theirs = part.text.splitlines()
    first = source[: source.index(part.text)].count("\n") + 1
    for number, (mine, found) in enumerate(itertools.zip_longest(ours, theirs), first):
        if mine != found:
            shown = "nothing" if found is None else f"`{found.strip()}`"
            wanted = "nothing" if mine is None else f"`{mine.strip()}`"
            return f"differs in line {number}: {shown} where the package has {wanted}"
    return ""
