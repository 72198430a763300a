"""A recurrence is one call while it is traced, whatever its length.

torch keeps `aten.lstm` and its kin whole in an exported program, but finds the sizes of their
results by running every time step on fake tensors, several times: minutes for some hundred steps.
Inside `whole` the sizes come from a formula.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher

KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextlib.contextmanager
def whole(root: nn.Module) -> Iterator[None]:
    """Meanwhile a recurrence of fake tensors gives results of the right size alone.

    Gradients flow from each result to all that went in, as those of the real one do.
    """
    recurrent = any(isinstance(m, nn.RNNBase) for m in root.modules())
    rules: dict[Any, Any] = {}
    for kind in KINDS:
        packet = getattr(torch.ops.aten, kind)
        rules |= {packet.input: _padded, packet.data: _packed}
    kernels = {op: dict(op.py_kernels) for op in rules}
    unrolled = {op: decomposition_table[op] for op in rules if op in decomposition_table}
    for op, rule in rules.items():
        _register(op, kernels[op] | dict.fromkeys(KEYS, rule))
        decomposition_table[op] = rule
    try:
        with enable_python_dispatcher() if recurrent else contextlib.nullcontext():
            yield
    finally:
        for op in rules:
            _register(op, kernels[op])
            del decomposition_table[op]
        decomposition_table.update(unrolled)


def _register(op: Any, kernels: dict[Any, Any]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


def _padded(
    x: Tensor,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Outputs of all time steps, laid out step by step as torch's own are, and the last states."""
    states = _states(hx)
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    steps = x.transpose(0, 1) if batch_first else x
    made = _made((*steps.shape[:-1], width), x, states, params)
    return made[0].transpose(0, 1) if batch_first else made[0], *made[1:]


def _packed(
    data: Tensor,
    batch_sizes: Tensor,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    states = _states(hx)
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return _made((data.shape[0], width), data, states, params)


def _states(hx: Any) -> tuple[Tensor, ...]:
    """Hidden and cell states of an LSTM, the hidden state of the others."""
    return tuple(hx) if isinstance(hx, list | tuple) else (hx,)


def _made(
    shape: tuple[Any, ...], x: Tensor, states: tuple[Tensor, ...], params: Any
) -> tuple[Tensor, ...]:
    results = x.new_empty(shape), *(x.new_empty(state.shape) for state in states)
    if not torch.is_grad_enabled():
        return results
    everything: Any = sum(t.sum() for t in (x, *states, *params))
    return tuple(result + everything for result in results)
