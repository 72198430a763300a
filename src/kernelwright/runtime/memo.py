"""What a module remembers between calls: how it was found, and what fell back.

Looking at everything that a trace took for granted is slow. Looking whether anything was touched
since is fast: all that hangs on the module (attributes, tables of submodules, parameters and hooks,
lists and dicts among the attributes) is compared by identity, without a loop in Python.
"""

import collections
import itertools
import operator
import sys
import warnings

import torch
from torch import nn
from torch.autograd import forward_ad

from kernelwright.runtime.baked import HOOKS, examine, is_record
from kernelwright.runtime.tensors import State, is_traced

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


def containers(value, seen):
    """Everything inside a value that holds what can be replaced, now and later."""
    if id(value) in seen or isinstance(value, (torch.Tensor, Memo)):
        return
    if isinstance(value, (dict, list, set, tuple, collections.deque)):
        inside = value
    elif isinstance(value, nn.Module) or is_record(value):
        inside = vars(value)
    else:
        return
    seen.add(id(value))
    if not isinstance(value, tuple):
        yield inside
    if isinstance(value, nn.Module):
        seen.update(id(inside[name]) for name in UNWATCHED if name in inside)
    for item in list(inside.values() if isinstance(inside, dict) else inside):
        yield from containers(item, seen)


# What Python counts of a dict, and torch's own guards read: a number that every change changes.
COUNTED = (3, 11) <= sys.version_info < (3, 13) and hasattr(torch._C._dynamo.guards, "dict_version")

GUARDS = getattr(torch._C._dynamo.guards, "TensorGuards", None)


class Picture:
    """Whether containers hold what they held, and modules are of the classes that they were of.

    A dict that nobody wrote to is not looked into.
    """

    def __init__(self, held, modules):
        self.held, self.modules = held, modules
        self.views = [*held, *(table.values() for table in held if isinstance(table, dict))]
        self.counted = [table for table in held if COUNTED and type(table) is dict]
        self.rest = [table for table in held if not (COUNTED and type(table) is dict)]
        self.sizes, self.classes = [*map(len, held)], [*map(type, modules)]
        self.seen = [*itertools.chain.from_iterable(self.views)]
        self.filled = any(self.rest)
        self.counts = self.count()

    def count(self):
        return [*map(torch._C._dynamo.guards.dict_version, self.counted)] if COUNTED else []

    def is_untouched(self):
        """Whether no dict was written to, and the other containers are empty as they were."""
        return not self.filled and not any(self.rest) and self.count() == self.counts

    def is_same(self):
        """Whether all that is held is what was held, in its order."""
        now = itertools.chain.from_iterable(self.views)
        sizes = [*map(len, self.held)]
        return sizes == self.sizes and all(map(operator.is_, now, self.seen))

    def __call__(self):
        if [*map(type, self.modules)] != self.classes:
            return False
        if self.is_untouched():
            return True
        counts = self.count()
        if not self.is_same():
            return False
        self.counts = counts
        return True


class Known:
    """Calls on tensors like those of a call that the kernels took, by torch's own guard of them.

    The guard compares types, sizes, strides, devices, and whether a gradient is wanted, with the
    dispatch keys, in which autocast and torch.func leave their traces. It stands for a record, and
    nothing in it changes: other threads may call at the same time.
    """

    def __init__(self, memo, tensors):
        self.memo, self.state = memo, memo.state
        self.guard = GUARDS(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self.wants = True in [tensor.requires_grad for tensor in tensors]

    def holds(self, tensors):
        """Whether these are tensors of such a call, and nothing traces or transforms it."""
        return (
            self.guard.check(*tensors)
            and torch._C._len_torch_dispatch_stack() == 0
            and torch._C._functorch.peek_interpreter_stack() is None
            and forward_ad._current_level < 0
        )


class Memo:
    """The record of one module, kept in its `__dict__`; copies of a module start without one."""

    wants = None  # whether a gradient is wanted is not known before a call
    known = None
    picture = None  # while it is being made, other threads find the memo already

    def __init__(self, module, fusion, before=None):
        self.module = module
        self.fusion = fusion
        self.namespace = vars(module)
        self.fallbacks = before.fallbacks if before else collections.Counter()
        self.frozen = before.frozen if before else {}  # the halves of weights, by their places
        self.backwards = before.backwards if before else collections.Counter()
        self.look()

    def __reduce__(self):
        return type(None), ()

    def look(self):
        """Examine the module, and remember what there was to see."""
        self.cause = self.fusion.refused or examine(self.module, self.fusion.baked_in)
        self.state = State(self.fusion.state(self.module) if self.cause is None else ())
        self.namespace["_kernelwright"] = self
        everywhere = vars(nn.modules.module)
        hooks = [everywhere[f"_global{name}"] for name in HOOKS]
        if any(hooks) and self.cause is None:
            self.cause = "there are global hooks"
        held, modules = (*hooks, *containers(self.module, set())), (*self.module.modules(),)
        self.picture = Picture(held, modules)

    def is_current(self, module):
        """Whether this is the record of that very module, and nothing was touched since."""
        return self.namespace is vars(module) and self.picture is not None and self.picture()

    def know(self, tensors):
        """Calls like this one, which the kernels take, are known from here on."""
        if GUARDS is not None and not is_traced(tensors):
            known = Known(self, tensors)
            self.known = known if known.holds(tensors) else None

    def fall_back(self, cause):
        """Count and, once per cause, say that the original forward runs instead of the kernels."""
        if cause not in self.fallbacks:
            warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=3)
        self.fallbacks[cause] += 1
