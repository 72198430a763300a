"""Values between processes come back as they were; what is no message of ours is refused."""

from __future__ import annotations

import collections
import contextlib
import enum
import fcntl
import json
import math
import os
import pickle
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from kernelwright.verify import wire
from kernelwright.verify.answers import is_answer
from kernelwright.verify.certificate import Finding
from kernelwright.verify.channel import HEADER, MARK, Channel, Gone, Silent
from kernelwright.verify.inputs import Inputs, Named, taken
from kernelwright.verify.judge import Trial, structure, trial_of
from kernelwright.verify.processes import printable
from kernelwright.verify.wire import (
    SEALS,
    Blob,
    Garbled,
    Member,
    Opaque,
    Record,
    read,
    seen,
    told,
    written,
)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Point:
    x: Any
    y: float = 0.5


class Colour(enum.Enum):
    RED = 1


CLASSES = {"Pair": Pair, "Point": Point, "Colour": Colour}


def find(module: str, name: str) -> Any:
    return CLASSES.get(name)


def through(value: Any, find: Any = None, believed: bool = True) -> Any:
    text, writer = written(value)
    fd = writer.file()
    try:
        return read(text, fd, find, believed)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**70),
        "text\u202e\x00",
        0.1,
        math.inf,
        1 + 2j,
        [1, (2.5, {"a": [None]})],
        {1, 2},
        collections.OrderedDict(b=1, a=2),
        Named({"the result": 1}),
        Inputs((1, 2), {"x": 3}),
        torch.float16,
        torch.device("cpu"),
        torch.Size([2, 3]),
        range(3),
        {3: "a", (1, 2): "b"},
    ],
    ids=repr,
)
def test_plain_values_come_back(value: Any) -> None:
    back = through(value)
    assert type(back) is type(value) and back == value


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(3, 4),
        torch.rand(4, 3).t(),
        torch.rand(1, 3).expand(5, 3),
        torch.rand(10)[3:7],
        torch.rand(6, 8)[:, ::3],
        torch.rand(3, 4).bfloat16(),
        torch.rand(3).to(torch.complex64),
        torch.tensor([math.nan, -0.0, math.inf]),
        torch.zeros(0, 5),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)} {x.stride()}",
)
def test_tensors_come_back_in_their_layout(x: torch.Tensor) -> None:
    back = through([x])[0]
    assert back.dtype == x.dtype and back.shape == x.shape and back.stride() == x.stride()
    assert torch.equal(back.reshape(-1).nan_to_num(7), x.reshape(-1).nan_to_num(7))
    assert back.storage_offset() == x.storage_offset()


def test_elements_far_apart_travel_alone() -> None:
    x = torch.rand(1000, 1000)[::100, ::100]
    text, writer = written(x)
    assert writer.size < 1000
    assert torch.equal(through(x), x) and json.loads(text)["tensors"][0]["stride"] == [100000, 100]


def test_classes_travel_by_name() -> None:
    value = [Pair(torch.ones(2), 3), Point(x=[1]), Colour.RED]
    pair, point, colour = through(value, find)
    assert type(pair) is Pair and pair.right == 3 and type(point) is Point and point.x == [1]
    assert colour is Colour.RED
    records = through(value)
    assert isinstance(records[0], Record) and records[0].name == "Pair"
    assert isinstance(records[2], Member) and records[2].member == "RED"
    assert type(through(records, find)[1]) is Point  # and back, through a judge without classes


class Armed:
    def __reduce__(self) -> Any:
        return os._exit, (3,)


def test_nothing_of_a_pickle_runs_in_the_judge() -> None:
    assert isinstance(through(Armed()), Blob)
    assert through(slice(1, 2), find) == slice(1, 2)
    assert pickle.loads(through(slice(1, 2)).pickled) == slice(1, 2)


@pytest.mark.parametrize("value", [Armed(), slice(1, 2), Point(1), Pair(1, 2), Colour.RED])
def test_from_who_is_not_believed_there_are_no_objects(value: Any) -> None:
    with pytest.raises(Garbled, match="numbers and tensors only"):
        through([{"a": value}], believed=False)
    shown = through(told([{"a": value}]), believed=False)[0]["a"]
    assert isinstance(shown, Opaque) or list(shown) == [type(value).__name__]


def test_results_are_told_with_their_names() -> None:
    x = torch.ones(2)
    value = [Point([x]), collections.OrderedDict(a=(1, {2.5})), Inputs((1,), {}), torch.float16]
    assert told(value) == [{"Point": {"x": [x], "y": 0.5}}, *value[1:2], told(value[2]), *value[3:]]
    assert told(value)[0]["Point"]["x"][0] is x and told(told(value)) == told(value)
    assert told(torch.max(torch.ones(2, 2), 1)).keys() == {"max"}


def test_subclasses_and_lazy_tensors_are_told_by_name() -> None:
    class Mine(torch.Tensor):
        pass

    assert seen(through(torch.ones(2).as_subclass(Mine))).kind == "Mine"
    assert seen(through(torch.ones(2))).kind == "Tensor"
    assert isinstance(through(torch.ones(2, device="meta")), Opaque)
    assert isinstance(through(torch.ones(2).to_sparse()), Opaque)


def test_sealed_memory_cannot_be_changed() -> None:
    fd = written(torch.ones(4))[1].file()
    try:
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


SPAN = {
    "dtype": "float32",
    "shape": [2],
    "stride": [1],
    "offset": 0,
    "count": 2,
    "at": 0,
    "device": "cpu",
    "kind": "Tensor",
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"value": 1}',
        '{"value": {"t": 0}, "tensors": []}',
        '{"value": {"x": 1}, "tensors": []}',
        '{"value": {"f": "0x"}, "tensors": []}',
        '{"value": {"l": 5}, "tensors": []}',
        '{"value": {"d": [[1]]}, "tensors": []}',
        '{"value": {"d": [[{"l": []}, 1]]}, "tensors": []}',
        '{"value": {"t": -1}, "tensors": []}',
        '{"value": {"size": [1.0]}, "tensors": []}',
        '{"value": {"size": [1e400]}, "tensors": []}',
        '{"value": {"dtype": "object"}, "tensors": []}',
        '{"value": {"dtype": ["float32"]}, "tensors": []}',
        '{"value": {"device": "nowhere"}, "tensors": []}',
        '{"value": {"c": ["x", "y"]}, "tensors": []}',
        '{"value": 1.5, "tensors": []}',
        '{"value": NaN, "tensors": []}',
        '{"value": 1' + "0" * 5000 + ', "tensors": []}',
        '{"value": ' + '{"l": [' * 101 + "]}" * 101 + ', "tensors": []}',
        b'{"value": "\xff", "tensors": []}',
        "[" * 100_000,
        *(
            json.dumps({"value": {"t": 0}, "tensors": [{**SPAN, **change}]})
            for change in (
                {"dtype": "object"},
                {"dtype": None},
                {"shape": [1 << 60]},
                {"shape": [-1]},
                {"shape": ["2"]},
                {"shape": [2.0]},
                {"shape": [True]},
                {"shape": [[2]]},
                {"shape": 2},
                {"shape": [0, 1 << 62], "stride": [1, 1]},
                {"shape": [1 << 40], "stride": [0]},
                {"shape": [1] * 65, "stride": [1] * 65},
                {"shape": [1, 2]},
                {"stride": [1, 1]},
                {"stride": [9]},
                {"stride": [1 << 40]},
                {"stride": [-1]},
                {"offset": 5},
                {"offset": -2},
                {"offset": "0"},
                {"count": 2.0},
                {"count": 1},
                {"count": None},
                {"at": 4},
                {"count": 1 << 60},
                {"count": -3},
                {"at": 4096},
                {"shape": [3], "offset": -1},
            )
        ),
    ],
    ids=lambda text: str(text)[:60],
)
def test_what_is_no_message_is_garbled(text: str | bytes) -> None:
    fd = written(torch.ones(16))[1].file()
    try:
        with pytest.raises(Garbled):
            read(text, fd)
    finally:
        os.close(fd)


def test_bytes_that_are_neither_true_nor_false() -> None:
    fd = written(torch.tensor([0, 1, 2, 255], dtype=torch.uint8))[1].file()
    text = json.dumps({"value": {"t": 0}, "tensors": [{**SPAN, "dtype": "bool", "count": 4}]})
    try:
        assert read(text, fd).view(torch.uint8).tolist() == [0, 1]
        wide = text.replace('"shape": [2]', '"shape": [4]')
        assert read(wide, fd).view(torch.uint8).tolist() == [0, 1, 1, 1]
    finally:
        os.close(fd)


def test_memory_that_its_sender_can_change_is_garbled() -> None:
    fd = os.memfd_create("data", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 64)
    text = json.dumps({"value": {"t": 0}, "tensors": [SPAN]})
    try:
        with pytest.raises(Garbled, match="can still change"):
            read(text, fd)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        assert read(text, fd).tolist() == [0.0, 0.0]
    finally:
        os.close(fd)


def test_what_is_written_to_a_mapped_tensor_stays_here() -> None:
    fd = written(torch.ones(4))[1].file()
    text = json.dumps({"value": {"t": 0}, "tensors": [SPAN]})
    try:
        read(text, fd).zero_()
        assert read(text, fd).tolist() == [1.0, 1.0]
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(6, 4).t(),
        torch.randn(3, 1).expand(3, 4),
        torch.arange(20.0)[3::4],
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.empty(0, 3),
        torch.tensor(1.5),
    ],
    ids=["transposed", "expanded", "strided", "channels_last", "empty", "scalar"],
)
def test_user_code_gets_memory_of_its_own_in_the_same_layout(x: torch.Tensor) -> None:
    arrived = through(Inputs((x,), {}))
    (own,) = taken(arrived, torch.device("cpu")).args
    (mapped,) = arrived.args
    assert torch.equal(own, x) and own.stride() == x.stride()
    assert own.storage_offset() == x.storage_offset()
    assert not x.numel() or own.data_ptr() != mapped.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.complex64])
@pytest.mark.parametrize("count", [1, 7, 64, 1000])
def test_what_comes_through_a_small_buffer_is_whole(
    count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As results on a GPU do; here the buffer is of ordinary memory."""
    monkeypatch.setattr(wire, "STAGED", 256)
    x = torch.randn(count).to(dtype)
    fd = os.memfd_create("data")
    try:
        wire._write_staged(fd, x, 64)
        written_bytes = os.pread(fd, 1 << 16, 64)
    finally:
        os.close(fd)
    assert torch.equal(torch.frombuffer(bytearray(written_bytes), dtype=dtype), x)


def test_channel_ends_in_time() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with pytest.raises(Silent):
        channel.receive(time.monotonic() + 0.05)
    with pytest.raises(Gone):
        channel.receive(None, alive=lambda: False)
    theirs.send(b"x" * HEADER.size)
    with pytest.raises(Garbled):
        channel.receive(time.monotonic() + 5)
    theirs.send(HEADER.pack(b"data", 1 << 40, False))
    with pytest.raises(Garbled):
        channel.receive(time.monotonic() + 5)
    theirs.send(HEADER.pack(b"data", 100 << 20, False))
    with pytest.raises(Garbled):
        Channel(ours, believed=False).receive(time.monotonic() + 5)
    sender = threading.Thread(target=Channel(theirs).send, args=({"x": torch.ones(1 << 16)},))
    sender.start()
    assert float(channel.receive(time.monotonic() + 5)["x"].sum()) == 1 << 16
    sender.join()
    theirs.close()
    with pytest.raises(Gone):
        channel.receive(time.monotonic() + 5)


def test_output_is_made_harmless() -> None:
    text = "a\x1b[31mred\x1b[0m\x1b]0;title\x07b\x00\x08c\rd\u202ee\tf\x9b31mg"
    assert printable(text) == "aredbc\nde\tf31mg"


MUTATIONS = 10_000
ODD = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, "", "\ud800", "f", "t", "x", "nan", [], {}),
    *(
        [[]],
        {"t": 0},
        {"t": -1},
        {"t": 10**9},
        {"f": "0x1p5000"},
        {"f": 3},
        {"d": [[{"d": []}, 1]]},
    ),
    *({"l": 3}, {"blob": ["a", "AA=="]}, {"record": ["os", "system", {"d": []}]}, {"u": [1]}),
    *({"dtype": "float32"}, {"device": "cuda:99999"}, {"device": "\x00"}, {"size": [-1]}),
    *({"range": [0, 1, 0]}, {"c": ["1"]}, {"inputs": [1, 2]}, {"s": [{"l": []}]}, {"od": [[1]]}),
    *(
        {"opaque": []},
        {"opaque": ["a" * 500, "\x1b"]},
        {"named": [[{"t": 0}, 2]]},
        {"t": 0, "f": 1},
    ),
]


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a tree of JSON with a key or an index in it."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from places(node[key])


def mutated(text: str, chance: random.Random) -> bytes:
    """The same message with a few nodes, or a few bytes, that are others."""
    if chance.random() < 0.4:
        data = bytearray(text.encode())
        for _ in range(chance.choice([1, 1, 2, 8])):
            at = chance.randrange(len(data))
            how = chance.randrange(3)
            data[at : at + how % 2 + 1] = [b"", bytes([chance.randrange(256)]), data[:at]][how]
        return bytes(data)
    content = json.loads(text)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        found = list(places(content))
        (holder, key), (other, name) = chance.choice(found), chance.choice(found)
        if chance.random() < 0.2:
            del holder[key]
        else:
            new = chance.choice(ODD) if chance.random() < 0.6 else other[name]
            holder[key] = json.loads(json.dumps(new))
    return json.dumps(content).encode()


def test_no_mutated_message_harms_its_reader() -> None:
    """Each is a value of plain parts, which can be looked into and judged, or none of ours."""
    eager = [torch.rand(2, 3), {"a": torch.arange(3), "b": (1, 0.5, True, "text")}]
    text, writer = written({"value": eager, "fell": {"a cause": 3}, "drew": False})
    chance = random.Random(5)
    taken_for_answers = 0
    fd = writer.file()
    for _ in range(MUTATIONS):
        data = mutated(text, chance)
        header = bytearray(HEADER.pack(MARK, len(data), True))
        if chance.random() < 0.05:
            header[chance.randrange(len(header))] ^= 1 << chance.randrange(8)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(theirs, [bytes(header)], [fd] if chance.random() < 0.98 else [])
            with contextlib.suppress(BlockingIOError):
                theirs.setblocking(False)
                theirs.send(data)
            theirs.close()
            try:
                answer = Channel(ours, believed=False).receive(time.monotonic() + 30)
            except (Garbled, Gone):
                continue
        if is_answer({"do": "run"}, answer) and "value" in answer:
            taken_for_answers += 1
            if structure(answer["value"], eager, strides=True) is None:
                found = trial_of("a message", answer["value"], eager, eager)
                assert isinstance(found, Trial | Finding)
    os.close(fd)
    assert MUTATIONS / 50 < taken_for_answers < MUTATIONS
