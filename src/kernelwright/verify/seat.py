"""A process that runs user code for the judge: it loads modules, and does with them what is asked.

In: requests over a socket. Out: an answer to each: values, or what was raised. The process of the
reference has the original and the float64 oracle and never loads the candidate; the candidate has a
process of its own. Runs leave no traces for each other: each starts from the same buffers, plain
attributes and random numbers.
"""

from __future__ import annotations

import copy
import functools
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright import loading
from kernelwright.errors import KernelwrightError
from kernelwright.failures import build_failure
from kernelwright.verify import attributes, parameters
from kernelwright.verify.acts import ACTS, arguments, changes, construction, world
from kernelwright.verify.acts.here import Here
from kernelwright.verify.candidate import fallbacks_of
from kernelwright.verify.channel import Channel, Gone
from kernelwright.verify.inputs import (
    Inputs,
    copied,
    map_tensors,
    set_seed,
    shaken,
    taken,
    wide,
    widen,
)
from kernelwright.verify.maker import Maker, made
from kernelwright.verify.parameters import State
from kernelwright.verify.replay import Recorder, Replay, Unreplayable, moved, rng_state
from kernelwright.verify.rounding import as_tf32
from kernelwright.verify.wire import told, written

CANDIDATE, ORIGINAL, ORACLE = "candidate", "original", "oracle"
MESSAGE = 2000

Request = dict[str, Any]


def main(end: socket.socket) -> None:
    """Serve until the judge has no more requests."""
    loading.PREFIX = "user"
    seat = Seat()
    channel = Channel(end, find=seat.find)
    try:
        while True:
            request = channel.receive()
            answer = seat.answer(request)
            channel.send(told(answer) if CANDIDATE in seat.modules else answer)
    except Gone:
        return


STANDS: list[Callable[..., Any]] = []  # what times modules; bench/ adds its own


class Seat:
    """The modules of this process, by role, and what every run of them starts from."""

    def __init__(self) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.stack: list[tuple[dict[str, nn.Module], State, Any, Any]] = []
        self.modes: list[list[tuple[nn.Module, bool]]] = []
        self.buffers: State = {}
        self.still: State = {}
        self.begin: attributes.Attributes = {}
        self.volatile: attributes.Attributes = {}
        self.device = torch.device("cpu")
        self.dtype = torch.get_default_dtype()
        self.world = world.values(), world.functions()
        self.maker: Maker | None = None
        self.ways: list[arguments.Way] = []
        self.stand: Any = None
        self.graph: Any = None

    def answer(self, request: Request) -> dict[str, Any]:
        """Whatever happens is an answer; only the end of the process is none."""
        before = self._fallbacks()
        try:
            found: dict[str, Any] = REQUESTS[request["do"]](self, request)
        except KernelwrightError as error:
            found = {"fatal": type(error).__name__, "message": str(error)[:MESSAGE]}
        except (Exception, SystemExit) as error:
            found = {"raised": type(error).__name__, "message": str(error)[:MESSAGE]}
            found["build"] = build_failure(error)
            found["unreplayable"] = isinstance(error, Unreplayable)
        if request["do"] == "run" and (after := self._fallbacks()) is not None:
            found["fell"] = dict(after - (before or Counter()))
        return found

    def find(self, module: str, name: str) -> Any:
        """A class by name: in the user's own file first, then wherever it was defined."""
        spaces = [sys.modules.get(type(m).__module__) for m in self.modules.values()]
        spaces += [v for s in spaces for v in vars(s).values() if isinstance(v, type(sys))]
        for space in [*spaces, sys.modules.get(module)]:
            found: Any = space
            for part in name.split("."):
                found = getattr(found, part, None)
            if isinstance(found, type):
                return found
        try:
            return getattr(__import__(module, fromlist=[name]), name, None)
        except ImportError:
            return None

    # Modules

    def load(self, request: Request) -> dict[str, Any]:
        torch.set_float32_matmul_precision(request["precision"])
        torch.backends.cudnn.allow_tf32 = request["conv_tf32"]
        self.world = world.values(), self.world[1]
        self.maker = maker = made(request)
        self.device = maker.device
        role = CANDIDATE if request["role"] == CANDIDATE else ORIGINAL
        self.seat(role, maker.make(request.get("arguments"), request["seed"]))
        if request["training"] is not None:
            for module in self.modules.values():
                module.train(request["training"])
        return self.described(request)

    def described(self, request: Request) -> dict[str, Any]:
        """What the judge knows of a module."""
        assert self.maker is not None
        module = self._main
        state = parameters.snapshot(module)
        found = {
            "state_dict": {k: _entry(k, v, state) for k, v in module.state_dict().items()},
            "state": state,
            "parameters": [n for n, _ in module.named_parameters(remove_duplicate=False)],
            "buffers": [n for n, _ in module.named_buffers(remove_duplicate=False)],
            "tied": _tied(module),
            "training": module.training,
            "modules": {path: type(m).__name__ for path, m in module.named_modules()},
            "attributes": {p: list(changes.own_attributes(m)) for p, m in module.named_modules()},
            "float": sorted({str(p.dtype) for p in module.parameters()}),
        }
        if CANDIDATE not in self.modules:
            found["arguments"] = _sendable(self.maker.arguments)
        return found

    def construct(self, request: Request) -> dict[str, Any]:
        """Another module in the place of the first one, until it is asked back."""
        assert self.maker is not None
        given = request["arguments"]
        module = self.maker.construct(given, request["seed"])
        module.train(request["training"])
        self._push()
        self.seat(next(iter(self.modules)), module)
        return {} if request.get("unseen") else self.described(request)

    def back(self, request: Request) -> dict[str, Any]:
        self.modules, self.buffers, self.begin, self.volatile = self.stack.pop()
        return {}

    def mode(self, request: Request) -> dict[str, Any]:
        """All modules in a mode; None puts back what was there before."""
        if request["training"] is None:
            for module, training in self.modes.pop():
                module.training = training
            return {}
        inside = [m for root in self.modules.values() for m in root.modules()]
        self.modes.append([(m, m.training) for m in inside])
        for root in self.modules.values():
            root.train(request["training"])
        return {}

    def write(self, request: Request) -> dict[str, Any]:
        """New weights, from the judge."""
        state = {name: x.to(self.device) for name, x in request["state"].items()}
        for module in self.modules.values():
            parameters.write(module, state)
        names = [n for n, _ in self._main.named_buffers(remove_duplicate=False)]
        self.buffers = {name: state[name] for name in names if name in state}
        return {}

    @torch.no_grad()
    def shake(self, request: Request) -> dict[str, Any]:
        """Every parameter off by about a thousandth; None puts back what was there before.

        They are not sent as weights are: those of a large Linear travel for longer than it runs.
        """
        if request["seed"] is not None:
            self.still = parameters.snapshot(self._main)
            set_seed(request["seed"])
            for x in self._main.parameters():
                if x.is_floating_point():
                    x.copy_(shaken(x))
        else:
            parameters.write(self._main, self.still)
            self.still = {}
        if ORACLE in self.modules:
            parameters.write(self.modules[ORACLE], parameters.tensors(self._main))
        return {}

    def load_strictly(self, request: Request) -> dict[str, Any]:
        self._main.load_state_dict(request["state"], strict=True)
        return {}

    def reset(self, request: Request) -> dict[str, Any]:
        """Whether the device still works."""
        Here(self.device).finish()
        return {}

    # Inputs

    def draw(self, request: Request) -> dict[str, Any]:
        assert self.maker is not None
        set_seed(request["seed"])
        drawn, rows = self.maker.draw(), request.get("rows")
        if rows is not None:
            leaves, tree = pytree.tree_flatten(drawn)
            for index in request["resized"]:
                leaves[index] = leaves[index][:rows]
            drawn = pytree.tree_unflatten([_dense(x) for x in leaves], tree)
        return {"value": drawn}

    def list_changes(self, request: Request) -> dict[str, Any]:
        """What can be varied in the original: attributes, sublayers, arguments, constructions."""
        assert self.maker is not None
        found: list[Any] = []
        what = request["what"]
        if what == "attributes":
            found = [x for x in changes.attributes(self._main) if _is_sendable(x["value"])]
        elif what == "sublayers":
            found = list(changes.sublayers(self._main))
        elif what == "arguments":
            self.ways = arguments.ways(self._main, request["inputs"])
            found = [{"label": way.label, "optional": way.optional} for way in self.ways]
        elif self.maker.arguments is not None:
            found = construction.constructions(
                type(self._main),
                self.maker.arguments,
                taken(request["inputs"], self.device),
                self._main.training,
            )
        return {"value": found}

    def argue(self, request: Request) -> dict[str, Any]:
        way = self.ways[request["index"]]
        return {"value": way.make(request["inputs"], request["seed"])}

    # Runs

    def run(self, request: Request) -> dict[str, Any]:
        """One act that has finished when this returns.

        The memory of the message is given up before: user code finds none that is shared.
        """
        request["inputs"] = taken(request["inputs"], self.device)
        role = request["role"]
        if role != ORACLE:
            return self._run(role, request)
        if not request["replay"]:
            return self._run_oracle(request)
        with Recorder(self.device) as recorder:
            self._run(ORIGINAL, {**request, "inputs": copied(request["inputs"])})
        with Replay(recorder.draws, self.device):
            return self._run_oracle(request)

    def _run_oracle(self, request: Request) -> dict[str, Any]:
        """The original in float64; tensors made inside of forward are float64 too."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self._run(ORACLE, request)
        finally:
            torch.set_default_dtype(before)

    def _run(self, role: str, request: Request) -> dict[str, Any]:
        module = self.modules[role]
        here = Here(self.device, role == ORACLE, functools.partial(self._another, role))
        given: Inputs = request["inputs"]
        inputs = widen(given) if here.wide else map_tensors(lambda x: x, given)
        self._rewind(role, request)
        set_seed(request["noise"])
        before = rng_state(self.device)
        here.finish()
        start = time.perf_counter()
        with (
            torch.no_grad() if request.get("no_grad", True) else nullcontext(),
            as_tf32(**request["rounded"]) if request.get("rounded") else nullcontext(),
        ):
            outputs = ACTS[request["act"]](module, inputs, here, **request["parameters"])
        here.finish()
        seconds = time.perf_counter() - start
        drew = moved(before, self.device)
        if role == ORIGINAL:
            self._note_volatile()
        return {
            "value": told(outputs),
            "drew": drew,
            "ran": seconds,
            "volatile": self._begins(role),
        }

    def _another(self, role: str, seed: int) -> nn.Module:
        """Another instance, in the mode of the first; of a live module there are only copies."""
        first, maker = self.modules[role], self.maker
        if maker is None or maker.arguments is None:
            return copy.deepcopy(first)
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            made = maker.construct(maker.arguments, seed).train(first.training)
        finally:
            torch.set_default_dtype(before)
        if role != ORACLE:
            return made
        return attributes.widen_attributes(made._apply(wide))  # type: ignore[no-untyped-call]

    def _rewind(self, role: str, request: Request) -> None:
        """Buffers and the attributes that forward changes, as they were in the beginning."""
        parameters.write_buffers(self.modules[role], self.buffers)
        start = request["volatile"] if role == CANDIDATE else self.volatile
        start = {k: attributes.ABSENT if v == "absent" else v for k, v in start.items()}
        if start:
            start = map_tensors(wide, start) if role == ORACLE else start
            attributes.assign(self.modules[role], start)

    def _note_volatile(self) -> None:
        now = attributes.plain(self.modules[ORIGINAL])
        for name in attributes.changed(self.begin, now):
            self.volatile[name] = self.begin.get(name, "absent")

    def _begins(self, role: str) -> dict[str, Any]:
        if role != ORIGINAL:
            return {}
        return {k: v for k, v in self.volatile.items() if _is_sendable(v)}

    def plain(self, request: Request) -> dict[str, Any]:
        """The plain attributes of the module: where they are, and which have moved."""
        now = attributes.plain(self._main)
        return {"value": {"known": list(now), "moved": attributes.changed(self.begin, now)}}

    def look_around(self, request: Request) -> dict[str, Any]:
        """What loading and all calls so far have changed in the process."""
        values, functions = self.world
        found = world.changed(values, world.values())
        found += [f"{x} replaced" for x in world.changed(functions, world.functions())]
        return {"value": found}

    def inside(self, request: Request) -> dict[str, Any]:
        """The original's values under the names that a file of ours has for them."""
        from kernelwright.verify import inner

        problem = self.maker.problem if self.maker is not None else None
        if problem is None or ORACLE not in self.modules:
            return {"value": {}}
        both = self.modules[ORIGINAL], self.modules[ORACLE]
        inputs = taken(request["inputs"], self.device)
        for role in (ORIGINAL, ORACLE):
            parameters.write_buffers(self.modules[role], self.buffers)
        with torch.no_grad():
            self.graph = self.graph or inner.planned(problem)
            found = inner.values(self.graph, both, inputs, request["names"])
        return {"value": found}

    def time(self, request: Request) -> dict[str, Any]:
        """Requests of whoever times in this process (bench/stand.py)."""
        if self.stand is None:
            assert self.maker is not None
            (stand,) = STANDS
            self.stand = stand(self._main, self.device, self.maker.problem)
        answer: dict[str, Any] = self.stand.answer(request)
        return answer

    # Parts

    @property
    def _main(self) -> nn.Module:
        return next(iter(self.modules.values()))

    def seat(self, role: str, module: nn.Module) -> None:
        self.modules = {role: module}
        if role == ORIGINAL:
            exact = copy.deepcopy(module)._apply(wide)  # type: ignore[no-untyped-call]
            self.modules[ORACLE] = attributes.widen_attributes(exact)
        self.buffers = parameters.snapshot_buffers(module)
        self.begin = attributes.plain(module)
        self.volatile = {}

    def _push(self) -> None:
        self.stack.append((self.modules, self.buffers, self.begin, self.volatile))

    def _fallbacks(self) -> Counter[str] | None:
        return fallbacks_of(self.modules[CANDIDATE]) if CANDIDATE in self.modules else None


def _dense(x: Any) -> Any:
    """A part without the whole, which would travel with it."""
    return x.clone() if isinstance(x, Tensor) else x


def _tied(module: nn.Module) -> dict[str, str]:
    """For every name of a tensor, the first name of that tensor."""
    first: dict[int, str] = {}
    return {k: first.setdefault(id(v), k) for k, v in parameters.tensors(module).items()}


def _entry(name: str, value: Any, state: State) -> Any:
    """A value of a state_dict; None where it is that of the state, which travels anyway."""
    if not isinstance(value, Tensor):
        return repr(value)
    known = state.get(name)
    if known is not None and known.dtype == value.dtype and torch.equal(known, value):
        return None
    return value.detach().clone()


def _is_sendable(value: Any) -> bool:
    try:
        written(value)
    except Exception:
        return False
    return True


def _sendable(given: Inputs | None) -> Inputs | str | None:
    """The constructor's arguments; "own" where each process has to make its own."""
    return given if _is_sendable(given) else "own"


REQUESTS: dict[str, Callable[[Seat, Request], dict[str, Any]]] = {
    "load": Seat.load,
    "describe": Seat.described,
    "construct": Seat.construct,
    "back": Seat.back,
    "mode": Seat.mode,
    "write": Seat.write,
    "shake": Seat.shake,
    "load strictly": Seat.load_strictly,
    "reset": Seat.reset,
    "draw": Seat.draw,
    "list": Seat.list_changes,
    "argue": Seat.argue,
    "run": Seat.run,
    "plain": Seat.plain,
    "world": Seat.look_around,
    "inside": Seat.inside,
    "time": Seat.time,
}
