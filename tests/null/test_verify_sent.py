"""What the judge sends twice is written once, and what has changed since is written again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from museum.models import LINEAR, forward
from museum.wrong import RIGHT
from verifying import subject

from kernelwright.verify.inputs import tensors_in
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


@pytest.mark.parametrize("batch", [1, 3, 10**4])
def test_rows_of_large_inputs_are_those_of_the_whole(batch: int, tmp_path: Path) -> None:
    loaded = subject(tmp_path, LINEAR, forward(RIGHT))
    reference = loaded.reference
    try:
        assert not reference.cuts
        whole = tensors_in(reference.draw(batch, 1))
        reference._drawn.clear()
        reference.cuts = True
        rows = tensors_in(reference.draw(batch, 1))
        assert rows[0] is not whole[0] and all(map(torch.equal, rows, whole))
    finally:
        reference.cuts = False
        loaded.close()


def test_inputs_that_are_drawn_again_are_the_same_until_they_are_written_to(tmp_path: Path) -> None:
    loaded = subject(tmp_path, LINEAR, forward(RIGHT))
    try:
        first, second = (tensors_in(loaded.draw(3, 1))[0] for _ in range(2))
        assert first is second
        assert tensors_in(loaded.draw(3, 2))[0] is not first
        known = first.clone()
        first.zero_()
        again = tensors_in(loaded.draw(3, 1))[0]
        assert again is not first and torch.equal(again, known)
    finally:
        loaded.close()
