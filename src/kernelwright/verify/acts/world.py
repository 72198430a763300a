"""The state of torch and of Python that belongs to the whole process.

In: nothing. Out: values by name, and the functions of torch and of Python's clocks as they are now,
so that two looks can be compared. The first look is taken before any user code is loaded.
"""

from __future__ import annotations

import builtins
import gc
import json
import math
import os
import random
import signal
import sys
import threading
import time
import warnings
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, forward
from kernelwright.verify.replay import moved, rng_state

# Where replaced functions would change what others compute, measure or see.
WATCHED: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": F,
    "torch.Tensor": torch.Tensor,
    "torch.nn.Module": nn.Module,
    "torch.nn.Linear": nn.Linear,
    "torch.nn.Conv2d": nn.Conv2d,
    "torch.autograd": torch.autograd,
    "torch.cuda": torch.cuda,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.testing": torch.testing,
    "time": time,
    "math": math,
    "json": json,
    "random": random,
    "builtins": builtins,
}


LAYERS = {f"torch.nn.{name}": x for name, x in vars(nn).items() if isinstance(x, type)}
GLOBAL_HOOKS = [
    value
    for name, value in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]

COMPILER = os.path.join(os.path.dirname(torch.__file__), "_dynamo")


def values() -> dict[str, Any]:
    """The settings that a call may not change."""
    products = torch.backends.cuda.matmul
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "TF32 products": products.allow_tf32,
        "reduced precision products": products.allow_fp16_reduced_precision_reduction,
        "TF32 convolutions": torch.backends.cudnn.allow_tf32,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "mkldnn.enabled": torch.backends.mkldnn.enabled,
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "filling of uninitialised memory": _fills_memory(),
        "flushing of denormals": _flushes_denormals(),
        "number of threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast on the GPU": torch.is_autocast_enabled("cuda"),
        "garbage collection": gc.isenabled(),
        "recursion limit": sys.getrecursionlimit(),
        "working directory": os.getcwd(),
        "tracing function": sys.gettrace() is not None or sys.getprofile() is not None,
        "signal handlers": _handlers(),
        "current stream": _stream(),
        "hooks of all modules": sum(len(hooks) for hooks in GLOBAL_HOOKS),
        "environment variables": _environment(),
        "warning filters": [f for f in warnings.filters if f[1] is None and f[2] is Warning],
        "standard output": (_Very(sys.stdout), _Very(sys.stderr)),
        "numpy's generator": _numpy_state(),
        "operators of torch": _operators(),
        "import system": [_Very(x) for x in (*_finders(), *sys.path_hooks)],
    }


class _Very:
    """Equal to what holds the very same object, which stays, so that no other gets its place."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Very) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def functions() -> dict[str, _Very]:
    """Every callable in the watched places."""
    found = {}
    for place, holder in (WATCHED | LAYERS).items():
        for name, value in list(vars(holder).items()):
            if callable(value) and not isinstance(value, ModuleType) and not _is_compilers(value):
                found[f"{place}.{name}"] = _Very(value)
    return found


def _is_compilers(value: Any) -> bool:
    """torch.compile puts functions of its own in the place of some of torch's."""
    return COMPILER in getattr(getattr(value, "__code__", None), "co_filename", "")


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, value in before.items() if name in after and after[name] != value]


def around(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """What a call, with gradients and without, changes in the process, and in its generators."""
    before, patched = values(), functions()
    generators = rng_state(here.device)
    python, count = random.getstate(), threading.active_count()
    forward(module, inputs)
    here.finish()
    now = changed(before, values())
    with torch.enable_grad():
        before = values()
        result = forward(module, inputs)
        now += [name for name in changed(before, values()) if name not in now]
    now += ["torch's generator"] * moved(generators, here.device)
    now += ["Python's generator"] * (random.getstate() != python)
    now += ["the number of Python threads"] * (threading.active_count() > count)
    return Named(
        {
            "settings that the call changed": ", ".join(now) or "none",
            "functions that the call replaced": ", ".join(changed(patched, functions())) or "none",
            "the result": result.detach() if isinstance(result, torch.Tensor) else result,
        }
    )


def _operators() -> list[float]:
    """What common operators give: torch.library may have put others in their place."""
    x = torch.linspace(-1.5, 2.0, 12, dtype=torch.float32, device="cpu").view(3, 4)
    w, maps = x[:, :3].contiguous(), x.view(1, 1, 3, 4)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        found = [
            *(x + x, x - w[:, :1], x * x, x / 3, x.exp(), x.tanh(), x.sigmoid(), x.sqrt(), x.abs()),
            *(w @ x, F.linear(x, x), x.sum(1), x.mean(0), x.amax(1), x.var(1), x.clamp(-1, 1)),
            *(F.relu(x), F.gelu(x), F.silu(x), F.softmax(x, 1), F.layer_norm(x, (4,)), x.cumsum(0)),
            *(
                F.conv2d(maps, maps[..., :2, :2]),
                F.max_pool2d(maps, 2),
                x.t().contiguous(),
                x.sort(1)[0],
            ),
            *(torch.cat([x, x]), torch.where(x > 0, x, 0.0), torch.bmm(w[None], x[None])),
        ]
    return [float(y.double().nan_to_num(7.0).sum()) for y in found]


def _environment() -> dict[str, str]:
    """But those that torch sets itself when it compiles, or first uses a GPU."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "TRITON", "CUDA"))}


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    kind, keys, place, *rest = numpy.random.get_state()
    return kind, keys.tobytes(), place, rest


def _finders() -> list[Any]:
    """Those of modules, up to the one of sys.path: who stands behind it hides none of its own.

    An emitted file has one there, of the modules that stood beside its model.
    """
    places = [i for i, finder in enumerate(sys.meta_path) if finder is PathFinder]
    return sys.meta_path[: places[0] + 1] if places else list(sys.meta_path)


def _fills_memory() -> bool:
    return bool(getattr(torch.utils.deterministic, "fill_uninitialized_memory", False))


def _flushes_denormals() -> bool:
    return float(torch.tensor([1e-39], dtype=torch.float32).mul(1.0).sum()) == 0.0


def _handlers() -> str:
    names = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    return ", ".join(str(signal.getsignal(name)) for name in names)


def _stream() -> int:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return int(torch.cuda.current_stream().cuda_stream)
