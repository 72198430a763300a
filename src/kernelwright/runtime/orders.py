"""In which order of memory the library's convolutions get their operands."""


def from_batch(fewest, *operands):
    """Operands in channels_last, but below so many samples as eager has them.

    The library chooses by the batch: there eager's own convolution is more accurate.
    """
    if operands[0].shape[0] >= fewest:
        return operands
    return tuple(t.contiguous() for t in operands)
