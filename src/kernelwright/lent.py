"""Classes that no text can define are lent to the emitted text, inside this process alone.

A class that was typed at a prompt, or that torch made while the program ran (a parametrized
module's), has no source to repeat. The kernels can still run: their text asks for the class here.
"""

from __future__ import annotations

from kernelwright.errors import UnsupportedError

_CLASSES: dict[str, tuple[type, str]] = {}
IMPORT = f"from {__name__} import lent"


def lend(kind: type, why: str) -> str:
    """Python that binds `lent` and asks for the class; `why` is told to who cannot have it."""
    key = f"{kind.__module__}.{kind.__qualname__}.{id(kind)}"
    _CLASSES[key] = kind, why
    return f"{IMPORT}  # there is no source of {kind.__name__} to repeat\n\nModel = lent({key!r})\n"


def lent(key: str) -> type:
    if key not in _CLASSES:
        raise UnsupportedError(
            "The class of this model has no source; it can be loaded only where it was made."
        )
    return _CLASSES[key][0]


def why_lent(source: str) -> str | None:
    """Why a text depends on this process, if it does."""
    return next((why for key, (_, why) in _CLASSES.items() if repr(key) in source), None)
