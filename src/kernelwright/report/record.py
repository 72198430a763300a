"""What a report is made of: JSON that commands have written, in; one Record, out.

The one idea: a report measures nothing by itself. `optimize`, `explain`, `verify`, `bench` and
`profile` write what they found (`--json`), and a Record is what these files say together; what none
of them says is absent, and the page says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelwright.errors import InputError

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """A plan with its details, and what was measured of it, as the commands' JSON has it."""

    plan: Found
    certificate: Found | None = None
    timings: Found | None = None
    profile: Found | None = None
    output: str | None = None

    @property
    def details(self) -> Found:
        found: Found = self.plan["details"]
        return found


def is_record(path: str | Path) -> bool:
    return Path(path).suffix == ".json"


def read(paths: Iterable[str | Path]) -> Record:
    """All files together; of two that say the same thing, the later one holds."""
    found: dict[str, Any] = {}
    names = [str(path) for path in paths]
    for name in names:
        found |= _parts(name)
    if "plan" not in found:
        raise InputError(
            f"{', '.join(names)} holds no plan; give the model too, or what "
            "`kernelwright optimize --json FILE` wrote."
        )
    return Record(**found)


def with_files(record: Record, paths: Iterable[str | Path]) -> Record:
    """The record with what these files say besides; their plans are not taken."""
    for path in paths:
        parts = _parts(str(path))
        record = replace(record, **{k: v for k, v in parts.items() if k != "plan"})
    return record


def require_file(record: Record, path: str | Path) -> None:
    """The certificate is about this very text of a model or of an emitted file."""
    if record.certificate is None:
        return
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    known = {record.certificate.get("sha256"), record.certificate.get("model_sha256")}
    if digest not in known and known != {""}:
        raise InputError(
            f"The certificate is of another text than {path} has now; "
            "run `kernelwright verify` or `kernelwright optimize` again."
        )


def _parts(path: str) -> dict[str, Any]:
    """What one file says, by the fields of a Record: each command's JSON is known by its keys."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        value = {}
    if "details" in value:
        return {"plan": value}
    if "plan" in value:
        if "details" not in value["plan"]:
            raise InputError(
                f"{path} was written by an older kernelwright; run `kernelwright optimize` again."
            )
        names = ("plan", "certificate", "timings", "profile", "output")
        return {name: value[name] for name in names if value.get(name) is not None}
    for name, key in (("certificate", "checks"), ("timings", "rows"), ("profile", "spent")):
        if key in value:
            return {name: value}
    raise InputError(
        f"{path} is no report of kernelwright's; give a file that one of its commands wrote "
        "with --json."
    )
