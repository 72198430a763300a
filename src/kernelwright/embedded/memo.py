"""What a module remembers between calls: how it was found, what fell back, what is frozen.

Looking at everything that a trace took for granted is slow. Looking whether anything was touched
since is fast: all that hangs on the module (attributes, tables of submodules, parameters and hooks,
lists and dicts among the attributes) is compared by identity, at once, in C.
"""

import collections
import itertools
import operator
import warnings

import torch
from torch import nn

from kernelwright.embedded.baked import HOOKS, examine, is_record

# What a module keeps for saving and loading, and flags of hooks that stand elsewhere too.
UNWATCHED = (
    "_non_persistent_buffers_set",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
END = object()  # ends both sides of a comparison, so that neither may be longer


def live_views(value, seen):
    """Iterables over everything inside a value that can be replaced, now and later."""
    if id(value) in seen or isinstance(value, (torch.Tensor, Memo)):
        return
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, (list, set, collections.deque)):
        inside = value
    elif isinstance(value, tuple):
        inside = ()
    elif isinstance(value, nn.Module) or is_record(value):
        inside = vars(value).values()
    else:
        return
    seen.add(id(value))
    yield inside
    if isinstance(value, nn.Module):
        seen.update(id(vars(value)[name]) for name in UNWATCHED if name in vars(value))
    for item in list(value if isinstance(value, tuple) else inside):
        yield from live_views(item, seen)


class Memo:
    """The record of one module, kept in its `__dict__`; copies of a module start without one."""

    def __init__(self, module, fusion, before=None):
        self.module = module
        self.fusion = fusion
        self.namespace = vars(module)
        self.fallbacks = before.fallbacks if before else collections.Counter()
        self.frozen = before.frozen if before else {}
        self.look()

    def __reduce__(self):
        return type(None), ()

    def look(self):
        """Examine the module, and remember what there was to see."""
        self.cause = self.fusion.refused or examine(self.module, self.fusion.baked_in)
        self.state = self.fusion.state(self.module) if self.cause is None else ()
        self.namespace["_kernelwright"] = self
        self.modules = list(self.module.modules())
        self.types = [type(m) for m in self.modules]
        everywhere = vars(nn.modules.module)
        self.views = [everywhere[f"_global{name}"].values() for name in HOOKS]
        if any(self.views) and self.cause is None:
            self.cause = "there are global hooks"
        views = [*self.views, *live_views(self.module, set())]
        self.bare = [view for view in views if not view]  # most tables of hooks are empty
        self.views = [*filter(None, views), (END,)]
        self.seen = list(itertools.chain.from_iterable(self.views))

    def is_current(self, module):
        """Whether this is the record of that very module, and nothing was touched since."""
        return (
            self.namespace is vars(module)
            and not any(self.bare)
            and all(map(operator.is_, itertools.chain.from_iterable(self.views), self.seen))
            and all(map(operator.is_, map(type, self.modules), self.types))
        )

    def fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in self.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        self.fallbacks[cause] += 1
