"""Memory that a file for a GPU asks for lies as torch's own."""

from __future__ import annotations

import pytest
import torch

from kernelwright.runtime import device


@pytest.mark.parametrize("shape", [(), (5,), (0,), (4, 0), (0, 4), (2, 1, 3), (3, 0, 2, 5)])
def test_memory_is_dense(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.strides(shape) == torch.empty(shape).stride()
    made = device.empty(shape, torch.float16, torch.device("cpu"))
    assert made.shape == shape and made.dtype == torch.float16
    monkeypatch.setattr(device, "EMPTY", torch._C._dynamo.guards._empty_strided_cpu)
    monkeypatch.setattr(device, "HERE", lambda: 0)
    made = device.empty(shape, torch.float16, torch.device("cuda", 0))
    assert (made.shape, made.stride(), made.dtype) == (
        shape, torch.empty(shape).stride(), torch.float16,
    )  # fmt: skip


def test_another_device_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(device, "EMPTY", lambda *given: asked.append(given))
    monkeypatch.setattr(device, "HERE", lambda: 1)
    monkeypatch.setattr(torch, "empty", lambda shape, **given: given["device"])
    place = torch.device("cuda", 0)
    assert device.empty((3,), torch.float32, place) == place
    assert not asked
