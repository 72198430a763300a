"""What eager may be off by where torch may round the operands of products to TF32.

In: a run of the original under Rounding. Out: results as a library's TF32 kernels would give them.
Whether eager takes such a kernel is up to an algorithm that may differ for another layout. And
whether rounding shows is up to the operands: weights that were float16 once are exact in TF32,
their sums over a window are not. Neither is a candidate's to know, so operands are moved by as much
as rounding may move them, whether they need it or not, and the products themselves are float32's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

CONVOLUTIONS = frozenset(["convolution", "convolution_backward", "_cudnn_rnn"])
# By how many arguments before the operands, which are added to the product.
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}
HALF_A_STEP = 2.0**-11  # of TF32 with its ten bits behind the leading one


class Rounding(TorchDispatchMode):
    """Moves the float32 operands of convolutions, of matrix products, or of both."""

    def __init__(self, device: torch.device, convolutions: bool, products: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Its own: the random numbers of the model are those of every other run.
        self.generator = torch.Generator(device).manual_seed(0)
        self.skipped = dict.fromkeys(CONVOLUTIONS, 0) if convolutions else {}
        self.skipped |= PRODUCTS if products else {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        skipped = self.skipped.get(func.overloadpacket.__name__)
        if skipped is not None:
            args = (*args[:skipped], *pytree.tree_map(self._moved, args[skipped:]))
        return func(*args, **(kwargs or {}))

    def _moved(self, x: Any) -> Any:
        """The same with another number for each; a bias is added in float32."""
        if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.ndim < 2:
            return x
        _, exponent = torch.frexp(x)
        by = torch.rand(x.shape, generator=self.generator, device=x.device).mul_(2).sub_(1)
        return torch.where(x == 0, x, x + torch.ldexp(by.mul_(HALF_A_STEP), exponent - 1))


@contextmanager
def as_tf32(device: torch.device) -> Iterator[None]:
    """Runs what follows as TF32 kernels would, wherever torch is allowed to take them."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with Rounding(device, convolutions, precision != "highest"):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
