"""What the judge sends twice is written once, and what has changed since is written again."""

from __future__ import annotations

import torch

from kernelwright.verify.sent import Sent
from kernelwright.verify.wire import Writer, read, written


def writer_of(*tensors: torch.Tensor) -> tuple[str, Writer]:
    return written(list(tensors))


def test_the_same_tensors_have_one_file() -> None:
    sent, x, y = Sent(), torch.ones(4), torch.zeros(3)
    try:
        first = sent.file(writer_of(x, y)[1])
        assert sent.file(writer_of(x, y)[1]) == first
        assert sent.file(writer_of(y, x)[1]) != first
        assert sent.file(writer_of(x.clone(), y)[1]) != first
    finally:
        sent.close()


def test_a_tensor_that_was_written_to_is_another() -> None:
    sent, x = Sent(), torch.ones(4)
    try:
        sent.file(writer_of(x)[1])
        x.mul_(3)
        text, writer = writer_of(x)
        assert read(text, sent.file(writer))[0].tolist() == [3.0] * 4
    finally:
        sent.close()


def test_the_oldest_files_go_first_and_the_newest_stays() -> None:
    sent = Sent(most=3 * 256)
    tensors = [torch.full((64,), float(i)) for i in range(5)]
    try:
        for x in tensors:
            sent.file(writer_of(x)[1])
        assert sent.size == 3 * 256
        text, writer = writer_of(torch.ones(4096))
        assert read(text, sent.file(writer))[0].sum() == 4096
        assert sent.size == 4096 * 4
    finally:
        sent.close()
        assert sent.size == 0
