"""What is measured of the processor, where it is kept, and what it changes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelwright.targets import X86_64, processor, target_here
from kernelwright.targets.processor import Processor

PROCESSOR = Processor("a processor", 16, 32, (49152, 2097152), 2, 3e10, 3e11, 2.5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path / "processors.json"


def test_it_is_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def measured() -> tuple[float, float, float]:
        counted.append(1)
        return 2e10, 1e11, 1.5

    monkeypatch.setattr(processor, "measured", measured)
    first = processor.this_processor()
    assert processor.this_processor() == first and len(counted) == 1
    assert (first.reads, first.multiplies, first.few) == (2e10, 1e11, 1.5)
    assert "reads 20 GB/s" in str(first) and "100 GFLOP/s" in str(first)
    monkeypatch.setattr(processor, "instructions", lambda: ["flags : sse2"])
    processor.this_processor()
    assert len(counted) == 2  # another machine on the same home


@pytest.mark.parametrize("damage", ["", "{}", '{"reads": "many"}'])
def test_a_damaged_entry_is_measured_again(
    damage: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "measured", lambda: (2e10, 1e11, 1.5))
    first = processor.this_processor()
    if damage:
        kept = cache.read_text()
        start = kept.index("{", kept.index('": {', kept.index("processors")) + 4)
        cache.write_text(kept[:start] + damage + kept[kept.index("}", start) + 1 :])
    else:
        cache.write_text("")
    assert processor.this_processor() == first


def test_what_is_measured_is_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "SIDE", 256)
    rates = processor.measured()
    assert all(rate > 0 and math.isfinite(rate) for rate in rates)


@pytest.mark.parametrize(("few", "rows"), [(1.1, 17), (2.5, 4)])
def test_a_library_at_the_rate_of_memory_keeps_few_rows(few: float, rows: int) -> None:
    assert X86_64.host is not None
    host = replace(X86_64.host, processor=lambda: replace(PROCESSOR, few=few))
    assert min(way.fewest for way in host.fitting(2048, 2048, along=True)) == rows


def test_nothing_is_measured_where_no_kernel_fits() -> None:
    def measure() -> Processor:
        raise AssertionError("nobody asked")

    assert X86_64.host is not None
    assert replace(X86_64.host, processor=measure).fitting(8, 8, along=True) == ()


def test_only_who_compiles_for_here_asks() -> None:
    assert X86_64.host is not None and X86_64.host.processor is None
    here = target_here(torch.device("cpu"))
    assert here.host is None or here.host.processor is processor.this_processor
