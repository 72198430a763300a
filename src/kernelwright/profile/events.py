"""What a trace says of each step: torch.profiler's trace in, the time of every step out.

In: a trace as torch.profiler exports it (Chrome's format, which Perfetto reads), in which each call
of the model is a range, and each launch of a kernel of ours a range within it; and the steps of the
plan. Out: for each step the times of its launches, call by call. The one idea: who launched a GPU
kernel is known by the correlation of the launch with the kernel, so the same ranges serve a CPU,
where a range is the time itself, and a GPU, where it is that of the kernels it launched.
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CALL = "kernelwright: a call"
LAUNCH, RUN = "launch_", "run_"
HOST = ("user_annotation", "cpu_op")
STARTS = ("cuda_runtime", "cuda_driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# What torch does on the way and is no step: memory, and other views of it.
BESIDE = (
    *("empty", "empty_strided", "empty_like", "view", "reshape", "as_strided", "slice", "detach"),
    *("expand", "permute", "transpose", "t", "select", "narrow", "alias", "unsqueeze", "squeeze"),
)

# What a contraction may run as, where its step names another operator: panels, or a library's own.
CONTRACTS = (
    *("linear", "mm", "addmm", "matmul", "bmm", "baddbmm", "convolution", "einsum"),
    *("conv1d", "conv2d", "conv3d", "mkldnn_convolution", "_convolution"),
)

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Ran:
    """One range right inside of a call: a kernel of ours or an operator of torch, in us."""

    name: str
    us: float

    @property
    def kernel(self) -> str | None:
        return self.name.removeprefix(LAUNCH) if self.name.startswith(LAUNCH) else None

    @property
    def operator(self) -> str:
        return self.name.removeprefix("aten::")


@dataclass(frozen=True)
class Spent:
    """What a step took in us: the median of the calls, the tenth and the ninetieth percentile."""

    step: str
    name: str
    launches: int
    us: float
    low: float
    high: float


def calls(trace: Mapping[str, Any]) -> list[tuple[float, list[Ran]]]:
    """For each call the time of its range, and what ran in it, in the order of the launches."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    host = sorted((e for e in events if e.get("cat") in HOST), key=lambda e: (e["ts"], -e["dur"]))
    device = _device_times(events)
    on_gpu = any(e.get("cat") in DEVICE for e in events)
    found = []
    for call in (e for e in host if e["name"] == CALL):
        inside = [e for e in host if _within(e, call) and e is not call]
        ran = [
            Ran(e["name"], _time(e, device) if on_gpu else float(e["dur"])) for e in _outer(inside)
        ]
        whole = _time(call, device) if on_gpu else float(call["dur"])
        found.append((whole, ran))
    return found


def _within(event: Event, around: Event) -> bool:
    end = around["ts"] + around["dur"]
    return bool(event["tid"] == around["tid"] and around["ts"] <= event["ts"] < end)


def _outer(events: Iterable[Event]) -> list[Event]:
    """Those that are inside of no other; they come by their beginnings, longer ones first."""
    found: list[Event] = []
    end = float("-inf")
    for event in events:
        if event["ts"] >= end:
            found.append(event)
            end = event["ts"] + event["dur"]
    return found


def _device_times(events: Iterable[Event]) -> dict[Any, list[tuple[float, float]]]:
    """For each thread of the host when it launched something, and for how long that ran."""
    running: dict[Any, float] = defaultdict(float)
    for e in events:
        if e.get("cat") in DEVICE:
            running[e.get("args", {}).get("correlation")] += float(e["dur"])
    found: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for e in events:
        correlation = e.get("args", {}).get("correlation")
        if e.get("cat") in STARTS and correlation in running:
            found[e["tid"]].append((float(e["ts"]), running[correlation]))
    return {thread: sorted(times) for thread, times in found.items()}


def _time(event: Event, device: Mapping[Any, Sequence[tuple[float, float]]]) -> float:
    """Of everything on the device that was launched within a range."""
    times = device.get(event["tid"], ())
    first = bisect.bisect_left(times, (event["ts"], 0.0))
    last = bisect.bisect_left(times, (event["ts"] + event["dur"], 0.0))
    return sum(us for _, us in times[first:last])


def spent(found: Sequence[tuple[float, Sequence[Ran]]], steps: Sequence[Event]) -> list[Spent]:
    """The time of each step that ran, in running order, then what belongs to no step."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: dict[tuple[str, str], int] = {}
    for _, ran in found:
        own: dict[tuple[str, str], list[float]] = defaultdict(list)
        for step, one in assigned(ran, steps):
            own[step, one.kernel or one.operator].append(one.us)
        for key, times in own.items():
            sums[key].append(sum(times))
            counts[key] = len(times)
    order = {step["name"]: i for i, step in enumerate(steps)}
    keys = sorted(sums, key=lambda key: order.get(key[0], len(order)))
    return [_spent(key, counts[key], sums[key]) for key in keys]


def _spent(key: tuple[str, str], launches: int, times: Sequence[float]) -> Spent:
    ordered = sorted(times)
    last = len(ordered) - 1
    ends = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
    return Spent(*key, launches, statistics.median(ordered), *ends)


def assigned(ran: Sequence[Ran], steps: Sequence[Event]) -> list[tuple[str, Ran]]:
    """Each range with the step that it carries out; empty where it carries out none.

    Steps that share a kernel, or call the same operator, run in the order of the plan, each as
    often as the others.
    """
    total: dict[str, int] = defaultdict(int)
    for one in ran:
        total[one.name] += 1
    able = {name: _able(name, total, steps) for name in total}
    seen: dict[str, int] = defaultdict(int)
    found = []
    for one in ran:
        at = seen[one.name] * len(able[one.name]) // total[one.name]
        seen[one.name] += 1
        if able[one.name] or one.operator not in BESIDE:
            found.append((able[one.name][at] if able[one.name] else "", one))
    return found


def _able(name: str, ran: Mapping[str, int], steps: Sequence[Event]) -> list[str]:
    """The steps that a range of this name may carry out."""
    one = Ran(name, 0.0)
    if one.kernel is not None:
        return [s["name"] for s in steps if one.kernel in s["kernels"]]
    exact = [s["name"] for s in steps if _operator(s) == one.operator]
    if exact or one.operator not in CONTRACTS:
        return exact
    seen = {Ran(other, 0.0).operator for other in ran}
    return [s["name"] for s in steps if s["kind"] == "contract" and _operator(s) not in seen]


def _operator(step: Event) -> str:
    """`linear` of `aten.linear.default`; nothing for a kernel."""
    return "".join(step["call"].split(".")[1:2])
