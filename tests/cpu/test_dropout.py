"""The kernel of dropout masks on the host, held against ATen's kernel written down in Python."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

KERNELS = Path(__file__).parents[2] / "src" / "kernelwright" / "kernels"
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
THREADS = 256
WORD = 2**32 - 1
# Random123's known answers for philox4x32-10: counter, key, result.
KNOWN = [
    ("00000000 " * 4, "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which(CXX) is None:
        pytest.skip(f"the C++ compiler {CXX} is not here")
    path = tmp_path_factory.mktemp("dropout") / "dropout.so"
    source = Path(__file__).with_name("dropout_check.cpp")
    command = [CXX, *FLAGS, f"-I{KERNELS}", str(source), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = ctypes.CDLL(str(path))
    found.uniform.restype, found.uniform.argtypes = ctypes.c_float, [ctypes.c_uint32]
    found.words_below.restype, found.words_below.argtypes = ctypes.c_uint32, [ctypes.c_float]
    found.philox.argtypes = [*[ctypes.c_uint64] * 3, ctypes.c_void_p]
    numbers = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint, ctypes.c_float]
    found.mask.argtypes = [ctypes.c_void_p, *numbers, ctypes.c_int]
    return found


def philox(seed: int, draw: int, sequence: int) -> list[int]:
    """The same ten rounds, once more."""
    c = [draw & WORD, draw >> 32, sequence & WORD, sequence >> 32]
    key = [seed & WORD, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [right >> 32 ^ c[1] ^ key[0], right & WORD, left >> 32 ^ c[3] ^ key[1], left & WORD]
        key = [key[0] + 0x9E3779B9 & WORD, key[1] + 0xBB67AE85 & WORD]
    return c


def uniform(word: int) -> np.float32:
    return np.float32(word) * np.float32(2.3283064e-10) + np.float32(2.3283064e-10 / 2)


class Thread:
    """A thread's cuRAND state: each draw gives its next four numbers."""

    def __init__(self, seed: int, thread: int, offset: int) -> None:
        self.seed, self.thread, self.draw = seed, thread, offset // 4

    def uniform4(self) -> list[np.float32]:
        self.draw += 1
        return [uniform(word) for word in philox(self.seed, self.draw - 1, self.thread)]


def by_aten(
    seed: int, offset: int, count: int, blocks: int, keep: float, vec: int
) -> Iterator[tuple[int, bool]]:
    """Elements with whether they are kept, thread by thread, as ATen's two kernels go."""
    threads = blocks * THREADS
    for thread in range(threads):
        state = Thread(seed, thread, offset)
        for start in range(thread * vec, count, threads * vec) if vec > 1 else ():
            numbers = [x for _ in range(-(-vec // 4)) for x in state.uniform4()]
            yield from ((start + i, bool(numbers[i] < np.float32(keep))) for i in range(vec))
        for start in range(thread, count, threads * 4) if vec == 1 else ():
            for i, number in enumerate(state.uniform4()):
                if start + i * threads < count:
                    yield start + i * threads, bool(number < np.float32(keep))


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(library: Any, counter: str, key: str, result: str) -> None:
    low, high, below, above = (int(word, 16) for word in counter.split())
    first, second = (int(word, 16) for word in key.split())
    words = (ctypes.c_uint32 * 4)()
    given = (first | second << 32, low | high << 32, below | above << 32)
    library.philox(*given, words)
    assert " ".join(f"{word:08x}" for word in words) == result
    assert list(words) == philox(*given)


def test_numbers_are_those_of_curand(library: Any) -> None:
    drawn = np.random.default_rng(0).integers(0, 2**32, 2000)
    for word in [0, 1, 2**24 + 1, 2**31 - 1, WORD, *map(int, drawn)]:
        assert library.uniform(word) == uniform(word)


@pytest.mark.parametrize("keep", [0.8, 0.5, 0.1, 0.999, 1.0, 1e-8])
def test_the_words_that_keep_are_the_first_ones(library: Any, keep: float) -> None:
    bound, count = np.float32(keep), library.words_below(keep)
    assert count == 0 or uniform(count - 1) < bound
    assert not uniform(count) < bound
    assert not any(uniform(min(count + 2**bit, WORD)) < bound for bit in range(32))


@pytest.mark.parametrize("vec", [1, 2, 4, 8])
@pytest.mark.parametrize("blocks", [1, 2])
def test_elements_get_the_numbers_of_aten(library: Any, vec: int, blocks: int) -> None:
    """With as many elements as make the threads go round twice, and a part of a third time."""
    count = blocks * THREADS * max(vec, 4) * 2 + 3 * vec
    seed, offset, keep = 0x123456789ABCDEF0, (1 << 36) + 8, 0.7
    mask = np.full(count, 7, np.uint8)
    library.mask(mask.ctypes.data, seed, offset // 4, count, blocks, keep, vec)
    theirs = dict(by_aten(seed, offset, count, blocks, keep, vec))
    assert len(theirs) == count and mask.tolist() == [theirs[i] for i in range(count)]
