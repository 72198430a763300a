"""What a report is made of: JSON that commands have written, in; one Record, out.

The one idea: a report measures nothing by itself. `optimize`, `explain`, `verify`, `bench` and
`profile` write what they found (`--json`), and a Record is what these files say together; what none
of them says is absent, and the page says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    notices: tuple[str, ...] = ()

    @property
    def details(self) -> Found:
        found: Found = self.plan["details"]
        return found

    @property
    def lacks(self) -> tuple[str, ...]:
        """What nobody measured."""
        names = ("certificate", "timings", "profile")
        return tuple(name for name in names if getattr(self, name) is None)


def recorded(
    model: Path, files: Sequence[str | Path], plan: Callable[[], dict[str, Any]]
) -> Record:
    """The record of a model's file, of an emitted one, or of JSON alone, with what files say.

    Of several files that say the same thing the last one holds. `plan` compiles, and is asked only
    where no file has a plan.
    """
    alone = model.suffix == ".json"
    found: dict[str, Any] = {}
    for path in ([model] if alone else []) + list(map(Path, files)):
        found |= _parts(path)
    if "plan" not in found:
        if alone:
            raise InputError(
                f"{model} holds no plan; give the model and this file by --with, or what "
                "`kernelwright optimize --json FILE` wrote."
            )
        found["plan"] = plan()
    record = Record(**found)
    _require_steps(record)
    if not alone:
        _require_file(record, model)
    return record


def _require_steps(record: Record) -> None:
    """A profile is of the plan's own steps."""
    if record.profile is None:
        return
    timed, planned = ([s["name"] for s in of["steps"]] for of in (record.profile, record.details))
    if timed != planned:
        raise InputError(
            f"The profile of {record.profile['model']} has other steps than this plan; "
            "run `kernelwright profile` on the same file, device and settings."
        )


def _require_file(record: Record, path: Path) -> None:
    """The certificate is about this very text of a model or of an emitted file."""
    if record.certificate is None:
        return
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    known = {record.certificate.get("sha256"), record.certificate.get("model_sha256")}
    if digest not in known and known != {""}:
        raise InputError(
            f"The certificate is of another text than {path} has now; "
            "run `kernelwright verify` or `kernelwright optimize` again."
        )


def _parts(path: Path) -> dict[str, Any]:
    """What one file says, by the fields of a Record: each command's JSON is known by its keys."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
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
        names = ("plan", "certificate", "timings", "profile", "output", "notices")
        return {name: value[name] for name in names if value.get(name) is not None}
    for name, key in (("certificate", "checks"), ("timings", "rows"), ("profile", "spent")):
        if key in value:
            return {name: value}
    raise InputError(
        f"{path} is no report of kernelwright's; give a file that one of its commands wrote "
        "with --json."
    )
