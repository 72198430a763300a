"""Ctrl-C and SIGTERM: each ends the command in one line, and what it has begun is taken back.

A library in the middle of its import may take the exception for an error of its own; so what fails
after the signal has failed of it, whatever it says. Nothing heavy is imported here: the signals
count from the first import on.
"""

from __future__ import annotations

import signal
from types import FrameType

TOLD = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated."}
_pressed: signal.Signals | None = None


def watch() -> None:
    """Note the signals from now on; not where whoever started the command has them ignored."""
    for number, usual in _usual():
        if signal.getsignal(number) is usual:
            signal.signal(number, _press)


def unwatch() -> None:
    """The end is near: of a second signal there is nothing to tell."""
    for number, _ in _usual():
        if signal.getsignal(number) is _press:
            signal.signal(number, signal.SIG_DFL)


def pressed() -> bool:
    return _pressed is not None


def told() -> str:
    """The sentence to end with."""
    return TOLD[_pressed or signal.SIGINT]


def code() -> int:
    """The exit code to end with, as a shell counts it: 130 or 143."""
    return 128 + (_pressed or signal.SIGINT)


def _usual() -> tuple[tuple[signal.Signals, object], ...]:
    return (signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)


def _press(number: int, frame: FrameType | None) -> None:
    global _pressed
    _pressed = _pressed or signal.Signals(number)
    raise KeyboardInterrupt
