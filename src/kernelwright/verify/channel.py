"""Messages over a socket between the judge and its processes: a header, a text, perhaps a file.

In: a socket and values. Out: messages, with whatever tensors they carry in a file in memory beside
them. Waiting has an end, and a message that is no message of ours is Garbled.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from kernelwright.verify.sent import Sent
from kernelwright.verify.wire import Find, Garbled, read, written

HEADER = struct.Struct("!4sQ?")
MARK = b"data"
MOST_TEXT, MOST_DOUBTED = 256 << 20, 32 << 20
STEP = 0.2  # seconds between two looks at whether the other side is still there


class Silent(Exception):
    """Nothing came in time."""


class Gone(Exception):
    """The other side has ended."""


class Channel:
    """One end of a socket; from a sender who is not `believed` nothing but plain data is taken."""

    def __init__(self, end: socket.socket, find: Find | None = None, believed: bool = True) -> None:
        self.end, self.find, self.believed = end, find, believed
        self._waited, self._patience = 0.0, math.inf
        self._excused: Callable[[], bool] = lambda: False

    def send(self, value: Any, sent: Sent | None = None) -> None:
        """A message; `sent` knows which tensors lie in a file already."""
        text, writer = written(value)
        data = text.encode(errors="surrogatepass")
        fds = [os.dup(sent.file(writer)) if sent else writer.file()] if writer.tensors else []
        try:
            header = HEADER.pack(MARK, len(data), bool(fds))
            socket.send_fds(self.end, [header], fds)
            self.end.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Gone from error
        finally:
            for fd in fds:
                os.close(fd)

    def receive(
        self,
        deadline: float | None = None,
        alive: Callable[[], bool] = lambda: True,
        patience: float = math.inf,
        excused: Callable[[], bool] = lambda: False,
    ) -> Any:
        """The next message, before a time of the monotonic clock.

        `patience` is how long to wait by looks at the socket, so that it lasts while this process
        is stopped; it begins anew after a look at which the other side is `excused`.
        """
        self._waited, self._patience, self._excused = 0.0, patience, excused
        fd: int | None = None
        try:
            header, fds, _, _ = self._header(deadline, alive)
            fd = fds[0] if fds else None
            header += self._exactly(HEADER.size - len(header), deadline, alive)
            mark, length, has_file = HEADER.unpack(header)
            if mark != MARK or length > self._most or has_file != (fd is not None):
                raise Garbled("bytes that begin no message")
            return read(self._exactly(length, deadline, alive), fd, self.find, self.believed)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Gone from error
        finally:
            if fd is not None:
                os.close(fd)

    @property
    def _most(self) -> int:
        return MOST_TEXT if self.believed else MOST_DOUBTED

    def _header(self, deadline: float | None, alive: Callable[[], bool]) -> Any:
        self._wait(deadline, alive)
        got = socket.recv_fds(self.end, HEADER.size, 1)
        if not got[0]:
            raise Gone
        return got

    def _exactly(self, count: int, deadline: float | None, alive: Callable[[], bool]) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self._wait(deadline, alive)
            part = self.end.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise Gone
            parts += part
        return bytes(parts)

    def _wait(self, deadline: float | None, alive: Callable[[], bool]) -> None:
        while True:
            start = time.monotonic()
            readable = self._readable(STEP if deadline is None else min(STEP, deadline - start))
            self._waited += min(STEP, time.monotonic() - start)
            if self._waited > self._patience:
                if not self._excused():
                    raise Silent
                self._waited = 0.0
            if readable:
                return
            if not alive() and not self._readable(0.0):
                raise Gone
            if deadline is not None and time.monotonic() > deadline:
                raise Silent

    def _readable(self, seconds: float) -> bool:
        """Before so many seconds are over; poll, for select knows only the first 1024 files."""
        waiting = select.poll()
        waiting.register(self.end, select.POLLIN)
        return bool(waiting.poll(max(0.0, seconds) * 1e3))

    def close(self) -> None:
        self.end.close()
