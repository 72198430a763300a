"""The header flattener: a template and what it includes, as one text without #include "..."."""

from __future__ import annotations

import re
from importlib import resources

INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)


def header(name: str) -> str:
    return (resources.files("kernelwright") / "kernels" / name).read_text()


def flatten(name: str, seen: set[str] | None = None) -> str:
    """Each header once, in the order in which it is needed."""
    seen = set() if seen is None else seen
    if name in seen:
        return ""
    seen.add(name)
    text = header(name).replace("#pragma once\n\n", "").replace("#pragma once\n", "")
    return INCLUDE.sub(lambda m: flatten(m.group(1), seen), text)
