"""How long an emitted file takes to be ready, cold and warm, each in a process of its own.

Cold is the first use with an empty extension cache, warm the next process with the same cache. A
file's time to be ready is its import plus what its first call takes longer than the second; neither
the import of torch nor the making of the weights is in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

ROWS = 16


@dataclass(frozen=True)
class Ready:
    """Seconds until a file can be used."""

    cold_s: float
    warm_s: float


def build_time(emitted: Path, device: str) -> Ready:
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (_in_a_process(emitted, device, cache) for _ in range(2))
    return Ready(cold, warm)


def _in_a_process(emitted: Path, device: str, cache: str) -> float:
    command = [sys.executable, __file__, str(emitted), device]
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": cache, "XDG_CACHE_HOME": cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure(emitted: Path, device: torch.device) -> float:
    """Import, then two calls on a few rows; the device and its library are woken up before."""
    square = torch.zeros(64, 64, device=device)
    square.mm(square)
    spec = importlib.util.spec_from_file_location("emitted", emitted)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["emitted"] = module
    started = time.perf_counter()
    spec.loader.exec_module(module)
    loaded = time.perf_counter() - started
    model = module.ModelNew(*module.get_init_inputs()).to(device)
    inputs = [x[:ROWS].to(device) for x in module.get_inputs()]
    calls = []
    with torch.no_grad():
        for _ in range(2):
            started = time.perf_counter()
            model(*inputs)
            if device.type == "cuda":
                torch.cuda.synchronize()
            calls.append(time.perf_counter() - started)
    return loaded + max(0.0, calls[0] - calls[1])


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), torch.device(sys.argv[2]))))
