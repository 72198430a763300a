"""The library's convolutions of single places, asked for as products of matrices."""

import torch


def of_pixels(convolve, x, weight, bias=None):
    """A convolution whose windows are one place, as a product for each sample.

    Products may be rounded more than convolutions are, where the caller has allowed that.
    """
    if torch.backends.mkldnn.matmul.fp32_precision not in ("none", "ieee"):
        return convolve(x, weight, bias)
    factors = weight.flatten(1).expand(x.shape[0], -1, -1), x.flatten(2)
    made = torch.bmm(*factors) if bias is None else torch.baddbmm(bias[:, None], *factors)
    return made.view(x.shape[0], weight.shape[0], *x.shape[2:])
