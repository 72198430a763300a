"""The kernels inside an autograd function."""

import torch

from kernelwright.runtime.autograd import gradients, kept, own, random_state


class Recorded(torch.autograd.Function):
    """The kernels as one node of autograd's graph."""

    @staticmethod
    def forward(ctx, call, *tensors):
        memo, _ = ctx.call = call
        fusion = memo.fusion
        if fusion.random:
            ctx.random = random_state(tensors[0].device)
        ctx.save_for_backward(*kept(tensors, fusion))
        ctx.set_materialize_grads(False)
        results = fusion.compute(tensors, memo.frozen)
        results = own(results, fusion.alone) if fusion.alone else results
        apart = fusion.apart(ctx.needs_input_grad)
        if apart:
            ctx.mark_non_differentiable(*[results[i] for i in apart])
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        wanted = ctx.needs_input_grad[1:]
        memo, constants = ctx.call
        memo.backwards["the original forward"] += 1
        call = (memo.fusion, memo.module, constants, getattr(ctx, "random", None))
        return None, *gradients(*call, ctx.saved_tensors, wanted, cotangents)


def recording(function):
    """apply() without its search for wrappers of torch.func, which are known not to be here."""
    return super(torch.autograd.Function, function).apply
