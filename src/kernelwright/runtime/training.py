"""The generated backward: what a call keeps for it, and how it runs.

A call with gradients runs `saving`, which computes what `fused` computes and hands back what the
backward reads besides. What eager keeps of the user's own tensors is kept as eager keeps it, so
that a change before the backward is the same error. Second derivatives, and cotangents that are no
plain tensors, take the original forward (autograd.py).
"""

import torch

from kernelwright.runtime.autograd import gradients, kept, own, random_state
from kernelwright.runtime.recorded import recording
from kernelwright.runtime.tensors import is_ordinary


class Training:
    """The two functions of a training step, and a table of what the first keeps for the second.

    `saving(*tensors)` gives the results of a call, then the values `made`. `backward(wanted,
    *cotangents, *kept)` gives the gradient of every tensor of a call, or None; `flows` are the
    results whose cotangents it takes, and `covers(*tensors)` says of which sizes it may be asked.
    A row of `kept` says where a value is found (`tensor`, `copy` of one, `result` or `made`), at
    which place, and for which gradients it is needed.
    """

    def __init__(self, saving, backward, kept, flows, covers):
        self.saving, self.backward = saving, backward
        self.kept, self.flows, self.covers = kept, flows, covers
        self.record = recording(Trained)

    def rows(self, wanted):
        """The rows of what these gradients need."""
        return [row if any(wanted[i] for i in row[2]) else None for row in self.kept]

    def why_not(self, cotangents):
        """Why this backward is the original's, or None."""
        if torch.is_grad_enabled():
            return "the gradients are to be differentiated"
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return "a transform of torch.func is active"
        if torch._C._len_torch_dispatch_stack() > 0:
            return "the backward is traced"
        given = [cotangents[place] for place in self.flows]
        if any(cotangent is None for cotangent in given):
            return "a result has no gradient"
        if not all(map(is_ordinary, given)):
            return "the gradient of a result is not a plain tensor"
        return None

    def differentiate(self, fusion, wanted, cotangents, kept):
        """The gradients of a call's tensors, by the kernels."""
        given = [cotangents[i] for i in self.flows]
        device = given[0].device.type
        if not torch.is_autocast_enabled(device):
            return fusion.exactly(self.backward, wanted, *given, *kept)
        with torch.autocast(device, enabled=False):
            return fusion.exactly(self.backward, wanted, *given, *kept)


class Trained(torch.autograd.Function):
    """The kernels, forward and backward, as one node of autograd's graph."""

    @staticmethod
    def forward(ctx, call, *tensors):
        memo, _ = ctx.call = call
        fusion = memo.fusion
        ctx.random = random_state(tensors[0].device) if fusion.random else None
        ctx.kept = Kept(fusion.training, tensors, ctx.needs_input_grad[1:])
        spare = kept(tensors, fusion)
        found = fusion.exactly(fusion.steps, fusion.training.saving, (), tensors)
        count = len(fusion.reaches)
        results, made = found[:count], found[count:]
        results = own(results, fusion.alone) if fusion.alone else results
        ctx.save_for_backward(*ctx.kept.values(tensors, results, made))
        ctx.kept.beside(spare)
        ctx.set_materialize_grads(False)
        apart = fusion.apart(ctx.needs_input_grad)
        if apart:
            ctx.mark_non_differentiable(*[results[i] for i in apart])
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        wanted = ctx.needs_input_grad[1:]
        memo, constants = ctx.call
        saved, training = ctx.saved_tensors, memo.fusion.training
        cause = training.why_not(cotangents)
        memo.backwards[cause or "kernels"] += 1
        if cause is None:
            return None, *training.differentiate(memo.fusion, wanted, cotangents, saved)
        call = (memo.fusion, memo.module, constants, ctx.random)
        return None, *gradients(*call, ctx.kept.tensors(saved), wanted, cotangents)


class Kept:
    """What one call keeps: the rows of the table through autograd, and what the original needs.

    The latter is held beside autograd, which would object to changes that eager allows.
    """

    def __init__(self, training, tensors, wanted):
        self.rows = training.rows(wanted)
        self.copies = {
            row[1]: tensors[row[1]].clone() for row in self.rows if row and row[0] == "copy"
        }

    def values(self, tensors, results, made):
        """What autograd is to keep, in the order of the table; None for what nobody needs."""
        homes = {"tensor": tensors, "copy": self.copies, "result": results, "made": made}
        return [row and homes[row[0]][row[1]] for row in self.rows]

    def beside(self, spare):
        """The tensors of the call that autograd does not keep, with their versions."""
        places = {row[1] for row in self.rows if row and row[0] == "tensor"}
        self.spare = [
            None if x is None or i in places else (x, x._version) for i, x in enumerate(spare)
        ]

    def tensors(self, saved):
        """All tensors of the call again, if none was changed."""
        found = [None if pair is None else pair[0] for pair in self.spare]
        for row, value in zip(self.rows, saved, strict=True):
            if row and row[0] == "tensor":
                found[row[1]] = value
        if any(pair is not None and pair[0]._version != pair[1] for pair in self.spare):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation"
            )
        return found
