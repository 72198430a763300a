"""Whether a forward depends on the mode of its modules, train or eval, as far as one trace shows.

In: a forward that is traced inside `heard`. Out: the modules whose `training` somebody asked for on
the way, and by `matters` what follows from that. The one idea: what nobody asks for cannot matter,
and of torch's own layers it is known what they do with the answer. Only for the rest a second trace
in the other mode has to tell.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

TORCH = Path(torch.__file__).parent
TRACERS = {"export", "_export", "fx", "_functorch", "_dynamo", "_subclasses", "_higher_order_ops"}

_LISTENERS: list[list[nn.Module]] = []
_GUARD = threading.Lock()


@contextlib.contextmanager
def heard(root: nn.Module) -> Iterator[list[nn.Module]]:
    """The modules that are asked for their mode meanwhile, by whoever is not tracing.

    A property of the class goes before an attribute of the instance, so it hears every question.
    Where it cannot (a class has a `training` of its own), the module counts as asked.
    """
    found = [m for m in root.modules() if _hides(type(m))]
    with _GUARD:
        _LISTENERS.append(found)
        _install(nn.Module)
    try:
        yield found
    finally:
        with _GUARD:
            _LISTENERS[:] = [other for other in _LISTENERS if other is not found]
            if not _LISTENERS:
                _remove(nn.Module)


def matters(asked: Iterable[nn.Module]) -> bool | None:
    """Whether the mode changes what a forward does; None where only a second trace can tell."""
    answers = {_matters_to(module) for module in asked}
    if True in answers:
        return True
    return None if None in answers else False


def _matters_to(module: nn.Module) -> bool | None:
    if not type(module).__module__.startswith("torch.nn."):
        return None
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, _BatchNorm):
        return module.running_mean is not None or module.running_var is not None
    if isinstance(module, nn.MultiheadAttention):
        return True if module.dropout > 0 else None
    if isinstance(module, nn.RNNBase):
        return True  # the call itself is given the mode
    return None


def _install(kind: Any) -> None:
    kind.training = property(_answer, _set)


def _remove(kind: Any) -> None:
    del kind.training


def _answer(module: nn.Module) -> bool:
    namespace = vars(module)
    if "training" not in namespace:
        raise AttributeError("training")
    if not _traces(sys._getframe(1)):
        for found in _LISTENERS:
            found.append(module)
    return bool(namespace["training"])


def _set(module: nn.Module, value: bool) -> None:
    vars(module)["training"] = value


def _traces(frame: types.FrameType) -> bool:
    path = Path(frame.f_code.co_filename)
    return TORCH in path.parents and path.relative_to(TORCH).parts[0] in TRACERS


def _hides(kind: type[nn.Module]) -> bool:
    if issubclass(kind, torch.jit.ScriptModule):
        return True
    return any("training" in vars(c) for c in kind.__mro__ if c is not nn.Module)
