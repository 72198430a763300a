"""Values between processes: nested inputs and outputs as JSON, and the bytes of their tensors.

In: a tree of plain values and tensors. Out: a text and a file in memory, and back. The one idea: a
reader builds nothing but plain containers and tensors, each checked first, so what the other side
sends can be wrong but can do nothing. The file is sealed: nobody can change it any more, so readers
map it and copy nothing. Classes travel by name; a process that has them puts them back, and the
judge, which runs no user code, keeps them as Records.
"""

from __future__ import annotations

import base64
import binascii
import collections
import ctypes
import dataclasses
import enum
import fcntl
import json
import math
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.verify.inputs import Inputs, Named

ALIGNMENT = 64
SHOWN = 200  # characters of an object that is known by its text alone
MOST_BYTES = 64 << 30
LITTLE = 1 << 20  # bytes that are copied rather than mapped
STAGED = 1 << 23  # bytes of a GPU's memory that come to the host at a time
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SPREAD = 4  # times its elements that the memory under a tensor may span and still travel whole
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.uint8),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
    )
}


class Garbled(Exception):
    """What arrived is no message of ours."""


@dataclass(frozen=True)
class Record:
    """An instance of a class that this process does not have."""

    module: str
    name: str
    fields: dict[str, Any]


pytree.register_pytree_node(
    Record,
    lambda r: (list(r.fields.values()), (r.module, r.name, tuple(r.fields))),
    lambda values, c: Record(c[0], c[1], dict(zip(c[2], values, strict=True))),
)


@dataclass(frozen=True)
class Member:
    """A member of an enumeration that this process does not have."""

    module: str
    name: str
    member: str

    def __repr__(self) -> str:
        return f"{self.name}.{self.member}"


@dataclass(frozen=True)
class Opaque:
    """An object of which only the type and the beginning of its text are told."""

    kind: str
    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Blob:
    """An object of the user's that only the processes that run user code look into."""

    kind: str
    pickled: bytes

    def __repr__(self) -> str:
        return f"<{self.kind}>"


@dataclass(frozen=True)
class Seen:
    """What a process says of a tensor besides its values."""

    device: str = "cpu"
    kind: str = "Tensor"


def seen(x: Tensor) -> Seen:
    found: Seen = getattr(x, "_seen", None) or Seen(str(x.device), _kind(x))
    return found


def _kind(x: Tensor) -> str:
    """Its class, and what torch has put off to do with what it holds."""
    conjugated, negated = " conjugated lazily" * x.is_conj(), " negated lazily" * x.is_neg()
    return f"{type(x).__name__}{conjugated}{negated}"


Find = Callable[[str, str], Any]  # a class by its module and qualified name, or None


@dataclass
class Writer:
    """Collects the tensors of a value while the rest of it becomes JSON.

    With `opaque`, objects that are neither plain nor records are told by their text, as results
    are; without it they are pickled, as inputs are.
    """

    opaque: bool = True
    sources: list[Tensor] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0

    def node(self, value: Any) -> Any:
        if value is None or type(value) in (bool, str, int):
            return value
        if type(value) is float:
            return {"f": value.hex() if math.isfinite(value) else repr(value)}
        if isinstance(value, Tensor):
            return self._tensor(value)
        if type(value) in CONTAINERS:
            return {CONTAINERS[type(value)]: [self.node(x) for x in value]}
        if isinstance(value, Inputs):
            return {"inputs": [self.node(value.args), self.node(value.kwargs)]}
        if type(value) in DICTS:
            return {DICTS[type(value)]: [[self.node(k), self.node(v)] for k, v in value.items()]}
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if isinstance(value, Record):
            return {"record": [value.module, value.name, self.node(value.fields)]}
        if isinstance(value, Member):
            return {"member": [value.module, value.name, value.member]}
        if isinstance(value, Blob):
            return {"blob": [value.kind, base64.b64encode(value.pickled).decode()]}
        if isinstance(value, enum.Enum):
            kind = type(value)
            return {"member": [kind.__module__, kind.__qualname__, value.name]}
        if (fields := fields_of(value)) is not None:
            kind = type(value)
            return {"record": [kind.__module__, kind.__qualname__, self.node(fields)]}
        for kind, (tag, write, _) in SPELLED.items():
            if type(value) is kind:
                return {tag: write(value)}
        name = type(value).__name__
        if self.opaque or isinstance(value, Opaque):
            shown = value.kind if isinstance(value, Opaque) else name
            return {"opaque": [shown[:SHOWN], _text(value)]}
        return {"blob": [name, base64.b64encode(pickle.dumps(value)).decode()]}

    def _tensor(self, x: Tensor) -> Any:
        kind = _kind(x)
        try:
            plain = x.detach()
            if type(plain) is not Tensor:
                plain = plain.as_subclass(Tensor)
            plain = plain.resolve_conj().resolve_neg()
            flat, stride, offset = _span(plain)
            if flat.device.type != "cuda" or flat.numel() * flat.element_size() <= STAGED:
                flat = flat.cpu()
            name = str(x.dtype).removeprefix("torch.")
            nbytes = flat.numel() * flat.element_size()
            if name not in DTYPES or (nbytes and flat.data_ptr() == 0):
                raise TypeError("no plain tensor")
        except Exception:
            return {"opaque": [kind, f"a {kind} without values"]}
        self.spans.append(
            {
                "dtype": name,
                "shape": list(x.shape),
                "stride": stride,
                "offset": offset,
                "count": flat.numel(),
                "at": self.size,
                "device": str(x.device),
                "kind": kind,
            }
        )
        self.sources.append(x)
        self.tensors.append(flat)
        self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return {"t": len(self.tensors) - 1}

    def file(self) -> int:
        """A file in memory with the bytes of all tensors, which nobody can change."""
        fd = os.memfd_create("data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, self.size)
        for flat, span in zip(self.tensors, self.spans, strict=True):
            _write_at(fd, flat, span["at"])
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
        return fd


def written(value: Any, opaque: bool = True) -> tuple[str, Writer]:
    """The JSON of a value, and the Writer that has its tensors."""
    writer = Writer(opaque)
    node = writer.node(value)
    return json.dumps({"value": node, "tensors": writer.spans}), writer


def read(text: str | bytes, fd: int | None, find: Find | None = None) -> Any:
    """The value of a text and its file; Garbled where they do not fit together.

    With `find`, classes are looked up and pickled objects loaded: for processes of the user's.
    """
    try:
        content = json.loads(text)
        memory = _memory(fd)
        tensors = [_read_tensor(span, memory) for span in content["tensors"]]
        if find is None:
            for tensor, span in zip(tensors, content["tensors"], strict=True):
                said = Seen(str(span["device"])[:SHOWN], str(span["kind"])[:SHOWN])
                tensor._seen = said  # type: ignore[attr-defined]
        return _Reader(tensors, find).value(content["value"])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise Garbled(f"{type(error).__name__}: {error}"[:SHOWN]) from error
    except (RuntimeError, OSError, OverflowError, RecursionError, binascii.Error) as error:
        raise Garbled(f"{type(error).__name__}: {error}"[:SHOWN]) from error


@dataclass
class _Reader:
    tensors: list[Tensor]
    find: Find | None

    def value(self, node: Any) -> Any:
        if node is None or isinstance(node, bool | str | int):
            return node
        ((tag, body),) = node.items()
        if tag == "t":
            return self.tensors[body]
        if tag == "f":
            return float.fromhex(body) if "x" in body else float(body)
        if tag in _CONTAINER_OF:
            return _CONTAINER_OF[tag](self.value(x) for x in body)
        if tag in _DICT_OF:
            return _DICT_OF[tag]([(self.value(k), self.value(v)) for k, v in body])
        if tag == "inputs":
            args, kwargs = (self.value(x) for x in body)
            return Inputs(tuple(args), dict(kwargs))
        if tag in _SPELLED_OF:
            return _SPELLED_OF[tag](body)
        return self._object(tag, body)

    def _object(self, tag: str, body: Any) -> Any:
        if tag == "opaque":
            return Opaque(str(body[0])[:SHOWN], str(body[1])[:SHOWN])
        if tag == "blob":
            pickled = base64.b64decode(body[1])
            return pickle.loads(pickled) if self.find else Blob(str(body[0]), pickled)
        module, name, inner = body
        known = self.find(module, name) if self.find else None
        if tag == "record":
            fields = self.value(inner)
            return known(**fields) if known else Record(str(module), str(name), dict(fields))
        if tag == "member":
            return known[inner] if known else Member(str(module), str(name), str(inner))
        raise ValueError(f"an unknown kind of value: {tag}")


CONTAINERS: dict[type, str] = {list: "l", tuple: "u", set: "s", frozenset: "fs"}
_CONTAINER_OF: dict[str, Callable[[Any], Any]] = {tag: kind for kind, tag in CONTAINERS.items()}
DICTS: dict[type, str] = {dict: "d", collections.OrderedDict: "od", Named: "named"}
_DICT_OF: dict[str, Callable[[Any], Any]] = {tag: kind for kind, tag in DICTS.items()}


def _numbers(body: Any) -> list[int]:
    if not all(type(x) is int for x in body):
        raise ValueError("numbers expected")
    return list(body)


SPELLED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    torch.dtype: ("dtype", lambda x: str(x).removeprefix("torch."), lambda b: DTYPES[b]),
    torch.device: ("device", str, lambda b: torch.device(str(b))),
    torch.Size: ("size", list, lambda b: torch.Size(_numbers(b))),
    complex: ("c", lambda x: [repr(x.real), repr(x.imag)], lambda b: complex(*map(float, b))),
    range: ("range", lambda x: [x.start, x.stop, x.step], lambda b: range(*_numbers(b))),
}
_SPELLED_OF = {tag: back for tag, _, back in SPELLED.values()}


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass instance or a named tuple; None for anything else."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) and not isinstance(value, Record | Member | Opaque | Blob):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(kind) if f.init}
    if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return dict(zip(kind._fields, value, strict=True))
    if isinstance(value, tuple) and kind.__module__ == "torch.return_types":
        return dict(zip(kind.__match_args__, value, strict=True))
    return None


def _text(value: Any) -> str:
    try:
        return (value.text if isinstance(value, Opaque) else repr(value))[:SHOWN]
    except Exception:
        return f"<{type(value).__name__}>"


def _span(x: Tensor) -> tuple[Tensor, list[int], int]:
    """The memory under a tensor as one dimension, with the strides and the offset in it.

    A tensor whose elements lie far apart travels as its elements, and its strides are told only.
    """
    stride, offset = list(x.stride()), int(x.storage_offset())
    if x.numel() == 0:
        return x.new_empty(0), stride, 0
    last = sum((n - 1) * s for n, s in zip(x.shape, stride, strict=True))
    span = offset + last + 1
    if span > SPREAD * x.numel() + ALIGNMENT:
        return x.contiguous().reshape(-1), stride, -1
    return torch.as_strided(x, (span,), (1,), 0), stride, offset


def _memory(fd: int | None) -> mmap.mmap | bytearray:
    """The file's bytes; what is written to them here is seen here alone.

    A mapping holds a file open, of which a process may have some hundreds: little is copied.
    """
    size = 0 if fd is None else os.fstat(fd).st_size
    if fd is None or not size:
        return bytearray()
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise ValueError("memory that its sender can still change")
    return mmap.mmap(fd, size, access=mmap.ACCESS_COPY) if size > LITTLE else _copied(fd, size)


def _copied(fd: int, size: int) -> bytearray:
    memory = bytearray(size)
    if os.preadv(fd, [memory], 0) != size:
        raise ValueError("a file that ends too early")
    return memory


def _read_tensor(span: dict[str, Any], memory: mmap.mmap | bytearray) -> Tensor:
    dtype, count, at = DTYPES[span["dtype"]], span["count"], span["at"]
    shape, stride, offset = _numbers(span["shape"]), _numbers(span["stride"]), span["offset"]
    _numbers([count, at, offset])
    nbytes = count * dtype.itemsize
    if min([count, at, *shape], default=0) < 0 or nbytes > MOST_BYTES:
        raise ValueError("sizes that cannot be")
    flat = torch.empty(0, dtype=dtype)
    if nbytes:
        if at + nbytes > len(memory):
            raise ValueError("a tensor beyond its file")
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at)
    if offset < 0:
        return _restrided(flat.view(shape), stride)
    return torch.as_strided(flat, shape, stride, offset)


def _restrided(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Dense elements whose real strides span much memory: kept in the order of those strides."""
    order = sorted(range(x.ndim), key=lambda d: (-stride[d], d))
    back = [order.index(d) for d in range(x.ndim)]
    return x.permute(order).contiguous().permute(back)


def _buffer(flat: Tensor) -> Any:
    nbytes = flat.numel() * flat.element_size()
    return (ctypes.c_char * nbytes).from_address(flat.data_ptr())


def _write_at(fd: int, flat: Tensor, at: int) -> None:
    if flat.device.type != "cpu":
        _write_staged(fd, flat, at)
    elif flat.numel():
        view, done = memoryview(_buffer(flat)).cast("B"), 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


def _write_staged(fd: int, flat: Tensor, at: int) -> None:
    """From a GPU through a small buffer, again and again.

    As one piece it would come to fresh memory of the host, and for hundreds of megabytes the first
    touch of every page of that costs more than the copy.
    """
    stage = _stage(min(STAGED, flat.numel() * flat.element_size()))
    step = len(stage) // flat.element_size()
    for start in range(0, flat.numel(), step):
        part = flat[start : start + step]
        here = stage[: part.numel() * part.element_size()].view(flat.dtype)
        here.copy_(part)
        _write_at(fd, here, at + start * flat.element_size())


def _stage(size: int) -> Tensor:
    """Bytes that the GPU can write to by itself, if there are any to be had."""
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
