"""What the judge has sent lately: the same tensors are written to a file once, however many ask.

In: Writers. Out: files. Inputs go to candidate, original and oracle, and weights to two processes
and, when a check has changed them, back again. A tensor is the same if it is the very object and
nothing was written to it since.
"""

from __future__ import annotations

import os
from collections import OrderedDict

from torch import Tensor

from kernelwright.verify.wire import Writer

MOST_BYTES, MOST_FILES = 3 << 29, 32

Key = tuple[tuple[int, int], ...]


class Sent:
    """Files by the tensors in them, which are kept with them; the oldest go first."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most, self.size = most, 0
        self._files: OrderedDict[Key, tuple[int, int, list[Tensor]]] = OrderedDict()

    def file(self, writer: Writer) -> int:
        """The file with the bytes of a Writer's tensors; it stays open here."""
        key = tuple((id(x), x._version) for x in writer.sources)
        if key in self._files:
            self._files.move_to_end(key)
        else:
            self._files[key] = writer.file(), writer.size, writer.sources
            self.size += writer.size
            while len(self._files) > 1 and self._full:
                self._drop()
        return self._files[key][0]

    @property
    def _full(self) -> bool:
        return self.size > self.most or len(self._files) > MOST_FILES

    def _drop(self) -> None:
        _, (file, size, _) = self._files.popitem(last=False)
        os.close(file)
        self.size -= size

    def close(self) -> None:
        while self._files:
            self._drop()
