"""Ctrl-C, which a library in the middle of its import may take for an error of its own.

What fails after the key was pressed has failed of it, whatever it says. Nothing heavy is imported
here: the key counts from the first import on.
"""

from __future__ import annotations

import signal
from types import FrameType

CODE = 130
_pressed = False


def watch() -> None:
    """Note the key from now on; not where whoever started the command has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _press)


def unwatch() -> None:
    """The end is near: of a second press there is nothing to tell."""
    if signal.getsignal(signal.SIGINT) is _press:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def pressed() -> bool:
    return _pressed


def _press(number: int, frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt
