"""The kernels as an operator of torch.library, for everything that traces instead of running.

torch.compile, torch.export, fake tensors and the JIT's tracer see one call with a fake
implementation and a backward. An eager call does not come this way: a dispatch costs more than a
small kernel.
"""

import itertools
import weakref

import torch

from kernelwright.runtime.autograd import gradients, kept
from kernelwright.runtime.baked import examine

LIBRARY = torch.library.Library("kernelwright", "FRAGMENT")


class Glance:
    """What a traced call knows of its module; the tracer guards whatever this reads."""

    known = wants = None  # of calls like this one nothing is kept

    def __init__(self, module, fusion, original=False):
        self.cause = fusion.refused or examine(module, fusion.baked_in)
        if original:  # a model around it is being compiled, or differentiated
            self.cause = "the original is wanted"
        self.state = fusion.state(module) if self.cause is None else ()

    def fall_back(self, cause):
        """Nothing to count: the tracer follows the original forward instead."""


class Operator:
    """An operator for the kernels of one file.

    Tensors are all it is given. For gradients it runs the original forward of any module that is as
    the trace found it, with the call's tensors in the place of that module's own.
    """

    def __init__(self, fusion, stem):
        self.fusion = fusion
        self.modules = weakref.WeakSet()
        names = (f"{stem}_{i}" if i else stem for i in itertools.count())
        name = next(n for n in names if not hasattr(torch.ops.kernelwright, n))
        backward = f"{name}_backward"
        LIBRARY.define(f"{name}(Tensor[] tensors) -> Tensor[]")
        LIBRARY.define(
            f"{backward}(Tensor?[] cotangents, Tensor[] tensors, bool[] wanted) -> Tensor[]"
        )
        LIBRARY.impl(name, self.run, "CompositeExplicitAutograd")
        LIBRARY.impl(backward, self.run_backward, "CompositeExplicitAutograd")
        torch.library.register_fake(f"kernelwright::{name}", self.blank, lib=LIBRARY)
        torch.library.register_fake(f"kernelwright::{backward}", self.blank_backward, lib=LIBRARY)
        torch.library.register_autograd(
            f"kernelwright::{name}", self.backward, setup_context=self.save, lib=LIBRARY
        )
        self.call = getattr(torch.ops.kernelwright, name).default
        self.call_backward = getattr(torch.ops.kernelwright, backward).default

    def run(self, tensors):
        """The results, and what buffers become: tracers want operators that change nothing."""
        rewritten = self.fusion.rewritten
        given = [t.clone() if i in rewritten else t for i, t in enumerate(tensors)]
        results = self.fusion.compute(given, {})
        return [*results, *(given[i] for i in rewritten)]

    def blank(self, tensors):
        buffers = [torch.empty_like(tensors[i]) for i in self.fusion.rewritten]
        return [*self.fusion.blank(*tensors), *buffers]

    def save(self, ctx, inputs, output):
        (tensors,) = inputs
        ctx.save_for_backward(*kept(tensors, self.fusion))
        ctx.wanted = [t.requires_grad for t in tensors]

    def backward(self, ctx, cotangents):
        rest = torch.empty(0)  # in the place of buffers that were rewritten and are not needed
        tensors = [rest if t is None else t for t in ctx.saved_tensors]
        given = [c if isinstance(c, torch.Tensor) else None for c in cotangents]
        found = self.call_backward(given, tensors, ctx.wanted)
        return [g if w else None for g, w in zip(found, ctx.wanted, strict=True)]

    def run_backward(self, cotangents, tensors, wanted):
        alike = (m for m in self.modules if examine(m, self.fusion.baked_in) is None)
        module = next(alike, None)
        if module is None:
            raise RuntimeError("There is no ModelNew left whose forward could be differentiated.")
        for i in {*self.fusion.rewritten} - {*self.fusion.recalled}:
            tensors[i] = None
        call = (self.fusion, module, (), None)
        found = gradients(*call, tensors, wanted, cotangents)
        triples = zip(found, tensors, wanted, strict=True)
        return [_gradient(g, t) if w else torch.empty(0) for g, t, w in triples]

    def blank_backward(self, cotangents, tensors, wanted):
        blank = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors]
        return [b if w else torch.empty(0) for b, w in zip(blank, wanted, strict=True)]


def _gradient(found, tensor):
    return torch.zeros_like(tensor).contiguous() if found is None else found.contiguous()
