"""Hooks: they are called as often, in the same order, and what they change is changed.

In: a Subject. Out: a Finding. Hooks that change values and hooks that only count, on the root, on
submodules and on all modules at once; after they are removed the model is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs, copied, forward, map_floating
from kernelwright.verify.judge import Named
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Variation, judge_all

MODULES = 6  # of the tree that get a hook of their own, the root among them

Note = Callable[[], None]
Register = Callable[[nn.Module, Note], RemovableHandle]


def hooks(subject: Subject) -> Finding:
    """Every kind of hook on the root and on submodules, and global ones."""
    known = dict(subject.candidate.named_modules())
    paths = [path for path, _ in subject.original.named_modules() if path in known][:MODULES]
    variations = [
        _variation(subject, f"the model with {label} on {path or 'it'}", path, register)
        for path in paths
        for label, register in KINDS
    ]
    variations += [_counted(subject, label, register) for label, register in GLOBAL]
    return judge_all(subject, variations, "hooks", "the modules have nothing in common")


def _variation(subject: Subject, label: str, path: str, register: Register) -> Variation:
    def call(module: nn.Module, inputs: Inputs) -> Any:
        calls: list[None] = []
        with _registered(register(module.get_submodule(path), lambda: calls.append(None))):
            hooked = forward(module, copied(inputs))
        after = forward(module, inputs)
        return Named(
            {
                "the number of calls": len(calls),
                "the result": hooked,
                "the result after it was removed": after,
            }
        )

    return Variation(cases.renamed(cases.own(subject), label), call, optional=True)


def _counted(subject: Subject, label: str, register: Callable[..., RemovableHandle]) -> Variation:
    """A global hook that writes down which modules were called, and changes nothing."""

    def call(module: nn.Module, inputs: Inputs) -> Any:
        names = {id(child): path or "the model" for path, child in module.named_modules()}
        called: list[str] = []

        def note(child: nn.Module, *values: Any) -> None:
            if id(child) in names:
                called.append(names[id(child)])

        with _registered(register(note)):
            hooked = forward(module, copied(inputs))
        order = ", ".join(called)
        return Named({"the order of calls": order, "the result": hooked})

    return Variation(cases.renamed(cases.own(subject), label), call, optional=True)


@contextmanager
def _registered(handle: RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def _after(module: nn.Module, note: Note) -> RemovableHandle:
    def double(module: nn.Module, args: Any, outputs: Any) -> Any:
        note()
        return map_floating(lambda x: x * 2, outputs)

    return module.register_forward_hook(double)


def _before(module: nn.Module, note: Note) -> RemovableHandle:
    def halve(module: nn.Module, args: Any) -> Any:
        note()
        return map_floating(lambda x: x * 0.5, args)

    return module.register_forward_pre_hook(halve)


def _before_with_keywords(module: nn.Module, note: Note) -> RemovableHandle:
    def halve(module: nn.Module, args: Any, kwargs: Any) -> Any:
        note()
        return map_floating(lambda x: x * 0.5, (args, kwargs))

    return module.register_forward_pre_hook(halve, with_kwargs=True)


KINDS: tuple[tuple[str, Register], ...] = (
    ("a forward hook that doubles", _after),
    ("a pre-hook that halves", _before),
    ("a pre-hook with keywords that halves", _before_with_keywords),
)

GLOBAL: tuple[tuple[str, Callable[..., RemovableHandle]], ...] = (
    ("the model under a global forward hook", register_module_forward_hook),
    ("the model under a global pre-hook", register_module_forward_pre_hook),
)
