"""The closed set of errors a user can meet, each with the exit code the command line returns.

Every message is one sentence or two that say what is wrong and what to do next.
"""

from __future__ import annotations


class KernelwrightError(Exception):
    """Base of all errors that kernelwright raises on purpose."""

    exit_code = 1


class InputError(KernelwrightError):
    """The model file, its inputs or the command line cannot be used as they are."""

    exit_code = 2


class VerificationError(KernelwrightError):
    """The candidate does not compute the same function as the model."""

    exit_code = 3


class BuildError(KernelwrightError):
    """The compiler is missing, or refused the generated source."""

    exit_code = 4


class UnsupportedError(KernelwrightError):
    """The model is valid, but outside of what kernelwright can compile."""

    exit_code = 5
