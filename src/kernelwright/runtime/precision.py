"""Products and convolutions of the library run at the precision that a file was compiled for."""

import contextlib

import torch


class Precision:
    """How torch rounds float32 products, and whether cuDNN may round convolutions."""

    def __init__(self, products, convolutions):
        self.products, self.convolutions = products, convolutions

    def holds(self):
        """Whether torch is set to it already."""
        return (
            torch._C._get_float32_matmul_precision() == self.products
            and torch._C._get_cudnn_allow_tf32() is self.convolutions
        )

    def put(self):
        torch.set_float32_matmul_precision(self.products)
        torch.backends.cudnn.allow_tf32 = self.convolutions

    @contextlib.contextmanager
    def at_work(self):
        """Inside, torch is set to it."""
        before = Precision(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
        with contextlib.ExitStack() as after:
            after.callback(before.put)
            self.put()
            yield
