"""What eager may be off by where torch may round the operands of products to TF32.

In: a run of the original under Rounding. Out: results as a library's TF32 kernels would give them.
Whether eager takes such a kernel is up to an algorithm that may differ for another layout. And
whether rounding shows is up to the operands: weights that were float16 once are exact in TF32,
their sums over a window are not. Neither is a candidate's to know, so operands are moved by as much
as rounding may move them, whether they need it or not, and the products themselves are float32's.
The first of several runs rounds them as they are: what a row of weights loses by that is the same
in every sample, and may be all of its bad luck.
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
DROPPED = 13  # of the 23 bits behind the leading one
HALF_A_STEP = 2.0**-11
FACTORS = (0x1E3779B1, 0x45D9F3B, 0x119DE1F3)  # odd, to mix bits by


class Rounding(TorchDispatchMode):
    """Rounds the float32 operands of convolutions, of matrix products, or of both.

    By another `number` than 0 they are moved instead, and differently by each.
    """

    def __init__(self, number: int, convolutions: bool, products: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = number
        self.skipped = dict.fromkeys(CONVOLUTIONS, 0) if convolutions else {}
        self.skipped |= PRODUCTS if products else {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        skipped = self.skipped.get(func.overloadpacket.__name__)
        if skipped is not None:
            args = (*args[:skipped], *pytree.tree_map(self._rounded, args[skipped:]))
        else:
            # In inference_mode a convolution comes here as what the model called.
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))

    def _rounded(self, x: Any) -> Any:
        """A bias is added in float32."""
        if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.ndim < 2:
            return x
        return self._moved(x) if self.number else _nearest(x)

    def _moved(self, x: Tensor) -> Tensor:
        """By numbers that are random enough, from no generator: a CUDA graph has none of its own,
        and those of the model are as in every other run.
        """
        place = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        mixed = x.contiguous().view(torch.int32) ^ (place * FACTORS[0] + self.number * FACTORS[1])
        for factor in FACTORS:
            mixed = (mixed ^ (mixed >> 15)) * factor
        _, exponent = torch.frexp(x)
        by = torch.ldexp(mixed.float() * (HALF_A_STEP * 2.0**-31), exponent - 1)
        return torch.where(x == 0, x, x + by)


def _nearest(x: Tensor) -> Tensor:
    bits = x.contiguous().view(torch.int32)
    return ((bits + (1 << (DROPPED - 1))) & -(1 << DROPPED)).view(torch.float32)


@contextmanager
def as_tf32(number: int = 0, everywhere: bool = False) -> Iterator[None]:
    """Runs what follows as TF32 kernels would, where torch is allowed to take them or everywhere.

    What is rounded by different numbers are different samples of that error.
    """
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with Rounding(number, everywhere or convolutions, everywhere or precision != "highest"):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
