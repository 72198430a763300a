"""One call of ModelNew: the guard, the kernels, alone or in an autograd function, the results."""

import torch

from kernelwright.runtime.autograd import is_recomputing
from kernelwright.runtime.memo import Memo
from kernelwright.runtime.recorded import Recorded, recording
from kernelwright.runtime.tensors import State, is_traced, ready
from kernelwright.runtime.traced import Glance, Operator


class Fusion:
    """All that the emitted functions of one model are to the code around them.

    `fused(*inputs, *state)` computes the results, and where `freezes` says that weights may be
    frozen, is given their halves before these; `original(module, *inputs, *constants)` computes
    the same with the user's own forward; `model` is the user's class, where that may matter to
    it; `outside(state, *arguments)` says why the kernels cannot take a call; `state(module)`
    reads parameters and buffers. Of inputs and state, `rewritten` are the places of the buffers
    that a call changes, `recalled` of those that results depend on, `in_place` of those that
    kernels write, `uncounted` of those whose versions eager does not count. `reaches` gives for
    each result the tensors that its gradient flows to, `blank` empty results for tracers;
    `globals` says that some of the state lies in the file, where no memo watches it; `alone`
    gives the results that may be views of something inside and share no element with another;
    `guarded` that arguments are inputs, one tensor each, and that nothing but what torch's guard
    of tensors sees decides whether a call is taken. The library's products run at a `precision`.
    `training` is the backward that was made for it, if there is one (training.py).
    """

    alone = ()
    in_place = ()
    uncounted = ()
    freezes = False
    guarded = False
    precision = None
    training = None

    def __init__(self, stem, **parts):
        self.__dict__.update(parts)
        self.operator = Operator(self, stem)
        self.parted = {}
        self.record = recording(Recorded)

    def register(self, module):
        """Every ModelNew comes by here when it is made."""
        self.operator.modules.add(module)
        vars(module)["_kernelwright"] = None
        return module

    def plain(self, module):
        """A ModelNew as one of the original's class, over the very same attributes."""
        if torch.compiler.is_compiling() or type(module).__base__ is not self.model:
            return module
        found = object.__new__(self.model)
        found.__dict__ = vars(module)
        return found

    def apart(self, needed):
        """The results that no gradient flows from, where these tensors need one."""
        if needed not in self.parted:
            flows = [any(needed[1 + i] for i in of) for of in self.reaches]
            self.parted[needed] = [i for i, flow in enumerate(flows) if not flow]
        return self.parted[needed]

    def memo(self, module):
        """The module's record, made anew where anything was touched since it was made."""
        if torch.compiler.is_compiling():
            return Glance(module, self, hasattr(module, "_kernelwright_original"))
        if "_kernelwright_original" in vars(module) or is_recomputing():
            return Glance(module, self, original=True)
        memo = vars(module).get("_kernelwright")
        if memo is None or not memo.is_current(module):
            mine = memo is not None and memo.module is module
            memo = Memo(module, self, memo if mine else None)
        elif self.globals and memo.cause is None:
            memo.state = State(self.state(module))
        return memo

    def look(self, module, *arguments):
        """The module's record, and why the kernels cannot take this call, or None.

        For tensors like those of the last call it is what is known of that.
        """
        memo = self.memo(module)
        known = memo.known
        if known is not None and known.holds((*arguments, *known.state)):
            return known, None
        cause = memo.cause or self.outside(memo.state, *arguments)
        if cause is None and self.guarded and not torch.compiler.is_compiling():
            memo.know((*arguments, *memo.state))
        return memo, cause

    def run(self, memo, inputs, constants=()):
        """The results of a call that the kernels cover."""
        tensors, wants = (*inputs, *memo.state), memo.wants
        if wants is None:
            if torch.compiler.is_compiling() or is_traced(inputs):
                return self.traced(tensors)
            wants = True in [t.requires_grad for t in tensors]
        else:
            memo = memo.memo
        if wants and torch.is_grad_enabled():
            trained = self.training is not None and self.training.covers(*tensors)
            record = self.training.record if trained else self.record
            return record((memo, constants), *tensors)
        return self.compute(tensors, memo.frozen)

    def compute(self, tensors, frozen):
        """The results, by the kernels, with the halves of the weights that are frozen."""
        before = (frozen,) if self.freezes else ()
        return self.exactly(self.steps, self.fused, before, tensors)

    def exactly(self, function, *arguments):
        """What it gives while the library's products run at the precision of the file."""
        if self.precision is None or self.precision.holds():
            return function(*arguments)
        with self.precision.at_work():
            return function(*arguments)

    def steps(self, fused, before, tensors):
        """The results; what kernels write in place must be as they need it, or is copied."""
        if not self.in_place:
            return fused(*before, *tensors)
        given = [ready(t) if i in self.in_place else t for i, t in enumerate(tensors)]
        for i in self.in_place:
            if tensors[i].is_inference() and not torch.is_inference_mode_enabled():
                raise RuntimeError(
                    "A buffer is an inference tensor: call in torch.inference_mode()."
                )
            if given[i] is tensors[i] and i not in self.uncounted:
                torch.autograd.graph.increment_version(given[i])
        results = fused(*before, *given)
        with torch.no_grad():
            for buffer, new in zip(tensors, given, strict=True):
                if buffer is not new:
                    buffer.copy_(new)
        return results

    def traced(self, tensors):
        """The results of a call that is traced.

        The operator hands back what buffers become, to autograd with a history as all its results.
        """
        results = self.operator.call(list(tensors))
        count = len(self.reaches)
        for i, new in zip(self.rewritten, results[count:], strict=True):
            tensors[i].copy_(new.detach())
        return results[:count]
