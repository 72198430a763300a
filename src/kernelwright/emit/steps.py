"""Steps as the Python of fused(): one statement or two for each, in the user's names."""

from __future__ import annotations

from typing import Any

from kernelwright.emit.lines import METHOD, filled, indented, listed
from kernelwright.emit.names import Names
from kernelwright.graph import Call, Dim
from kernelwright.lower.slices import LARGE_BYTES
from kernelwright.lower.steps import (
    WORKSPACE,
    Alloc,
    Choice,
    Guard,
    Launch,
    Library,
    Panels,
    Slices,
    Step,
)
from kernelwright.plan.model import Buffer
from kernelwright.targets.target import MANY, HostWay

FRIENDLY = {
    "torch.ops.aten.linear.default": "torch.nn.functional.linear",
    "torch.ops.aten.add.Tensor": "torch.add",
    "torch.ops.aten.mm.default": "torch.mm",
    "torch.ops.aten.bmm.default": "torch.bmm",
    "torch.ops.aten.matmul.default": "torch.matmul",
    **{f"torch.ops.aten.conv{n}d.default": f"torch.nn.functional.conv{n}d" for n in (1, 2, 3)},
    "torch.ops.aten.conv_transpose1d.default": "torch.nn.functional.conv_transpose1d",
    "torch.ops.aten.conv_transpose2d.input": "torch.nn.functional.conv_transpose2d",
    "torch.ops.aten.conv_transpose3d.input": "torch.nn.functional.conv_transpose3d",
}
BODY = 4  # the indentation of fused()
PREFIX = len("_kw_")  # what a name of the file is longer by in the end
OPERANDS = 3  # of a convolution: x, W, bias
DEEPEST = 16  # that of an operand in a way inside of a way


def on_machine(guard: Guard, device: str) -> str:
    """Whether the device is one that a kernel is made for."""
    return f"capability({device}) == {guard.capability}"


def most(way: HostWay) -> str:
    """Up to how many rows, as Python."""
    return "1 << 40" if way.most == MANY else str(way.most)


class StepPrinter:
    """Prints steps over the names of one model."""

    def __init__(self, names: Names) -> None:
        self.names, self.graph = names, names.graph

    def step(self, step: Step) -> list[str]:
        if isinstance(step, Alloc):
            return self.alloc(step.buffer)
        if isinstance(step, Launch):
            return self.launch(step.kernel, self.operands(step), self.sizes(step))
        if isinstance(step, Library):
            return self.library(step)
        if isinstance(step, Choice):
            return self.choice(step)
        if isinstance(step, Panels):
            return self.panels(step)
        if isinstance(step, Slices):
            return self.slices(step)
        raise NotImplementedError(f"No {type(step).__name__} here.")

    # ---- memory and kernels ------------------------------------------------------------------

    def alloc(self, buffer: Buffer) -> list[str]:
        return [f"{self.variable(buffer.name)} = empty({', '.join(self.typed(buffer))})"]

    def typed(self, buffer: Buffer) -> list[str]:
        return [self.names.tuple_of(buffer.shape), str(buffer.dtype)]

    def variable(self, name: str) -> str:
        own = name in WORKSPACE and name not in self.graph.by_name
        return self.names.local[name] if own else self.names.variable(name)

    def operands(self, step: Launch) -> list[str]:
        return [*map(self.operand, step.reads), *map(self.variable, step.writes)]

    def operand(self, name: str) -> str:
        """A variable, or a view of one."""
        if name not in self.graph.by_name:
            return self.variable(name)
        return self.names.value(name)

    def sizes(self, step: Launch) -> list[str]:
        return [self.size(size) for size in step.sizes]

    def size(self, size: Dim | str) -> str:
        return self.names.local[size] if isinstance(size, str) else self.names.size(size)

    def launch(self, kernel: str, operands: list[str], sizes: list[str]) -> list[str]:
        line = ", ".join([f'launch("{kernel}"', f"[{', '.join(operands)}]", *sizes])
        if len(line) + BODY + PREFIX < 100:
            return [f"{line})"]
        tensors = filled("[", operands, "],", margin=DEEPEST)
        inside = [f'"{kernel}",', *tensors, *([f"{', '.join(sizes)},"] if sizes else [])]
        return ["launch(", *indented(inside), ")"]

    def copied(self, buffers: list[str], values: list[str]) -> list[str]:
        """Buffers of one type are given new values."""
        if len(buffers) == 1:
            return [f"{buffers[0]}.copy_({values[0]})"]
        both = [f"[{', '.join(texts)}]" for texts in (buffers, values)]
        return listed("", "torch._foreach_copy_(", both, ")")

    def counted(self, counters: list[str], by: int) -> list[str]:
        return listed("", "torch._foreach_add_(", [f"[{', '.join(counters)}]", str(by)], ")")

    # ---- the library -------------------------------------------------------------------------

    def library(self, step: Library) -> list[str]:
        return self.assigned(self.names.variable(step.output), step.call)

    def assigned(self, target: str, call: Call) -> list[str]:
        """A call of torch's, and the name of what it gives."""
        name, inside = self.spelled(call)
        turned = f".permute({', '.join(map(str, call.order))})" if call.order else ""
        if not name:
            return [f"{target} = {inside[0]}{turned}"]
        return filled(f"{target} = {name}(", inside, f"){turned}", margin=METHOD)

    def spelled(self, call: Call) -> tuple[str, list[str]]:
        """A function and its arguments; without one, the whole expression."""
        if call.target == "getitem":
            source, index = call.args
            return "", [f"{self.names.value(source.name)}[{index}]"]
        args: list[Any] = list(call.args)
        target = FRIENDLY.get(call.target, call.target)
        while target.startswith("torch.nn") and args and args[-1] is None:
            args.pop()
        if call.of_pixels:
            operands = [self.names.literal(a) for a in args[:OPERANDS] if a is not None]
            return "of_pixels", [target, *operands]
        inside = [self.names.literal(a) for a in args]
        if call.fewest > 1:
            inside[:2] = [f"*from_batch({call.fewest}, {', '.join(inside[:2])})"]
        return target, [*inside, *(f"{k}={self.names.literal(v)}" for k, v in call.kwargs)]

    # ---- ways --------------------------------------------------------------------------------

    def choice(self, step: Choice) -> list[str]:
        test = self.test([self.guard(g) for g in step.guards])
        first = [line for s in step.steps for line in self.step(s)]
        second = [line for s in step.otherwise for line in self.step(s)]
        if len(step.otherwise) == 1 and isinstance(step.otherwise[0], Choice):
            return [*test, *indented(first), f"el{second[0]}", *second[1:]]
        return [*test, *indented(first), "else:", *indented(second)]

    def test(self, guards: list[str]) -> list[str]:
        line = f"if {' and '.join(guards)}:"
        if len(line) + BODY + len("el") + PREFIX * len(guards) <= 100:
            return [line]
        return ["if (", *indented([guards[0], *(f"and {g}" for g in guards[1:])]), "):"]

    def guard(self, guard: Guard) -> str:
        """A condition."""
        if guard.capability is not None:
            return on_machine(guard, self.names.device_of())
        if guard.ways:
            ways = (f'("{w.feature}", {w.fewest}, {most(w)})' for w in guard.ways)
            rows = self.names.size(guard.size)
            return f"has_own({rows}, {', '.join(ways)})"
        if guard.kind == "generated":
            return "GENERATED_GEMM"
        limit = str(guard.limit)
        return f"{self.names.size(guard.size)} {guard.kind} {limit}"

    def panels(self, step: Panels) -> list[str]:
        panel, start, stop = (self.names.local[w] for w in ("panel", "start", "stop"))
        batch, rows = self.names.size(step.batch), step.rows
        name, buffer = self.variable(step.product.name), step.product
        part = f"[{start}:{stop}]"
        tensors = [panel if r == buffer.name else self.operand(r) for r in step.launch.reads]
        tensors += [f"{self.variable(w)}{part}" for w in step.launch.writes]
        factors = [f"{self.operand(step.left)}{part}", f"{self.operand(step.right)}.t()"]
        loop = [
            f"{stop} = min({start} + {rows}, {batch})",
            f"{panel} = {name}[: {stop} - {start}]",
            *listed("", "torch.mm(", [*factors, f"out={panel}"], ")"),
            *self.launch(step.launch.kernel, tensors, [f"{stop} - {start}"]),
        ]
        shape = f"(min({batch}, {rows}), {buffer.shape[1]})"
        return [
            f"{name} = empty({shape}, {buffer.dtype})",
            f"for {start} in range(0, {batch}, {rows}):",
            *indented(loop),
        ]

    def slices(self, step: Slices) -> list[str]:
        words = ("samples", "slices", "part", "start", "stop")
        samples, slices, number, start, stop = (self.names.local[w] for w in words)
        batch, large = self.names.size(step.batch), LARGE_BYTES // step.each
        part = f"[{start}:{stop}]"
        cut = {step.left, *(b.name for b in step.outputs)}
        inside = {step.product, *(b.name for b in step.inside)}
        sliced = f"round({step.slice} * torch.get_num_threads() / {step.each})"
        most = f"max(1, {batch} // {step.fewest})" if step.fewest > 1 else batch
        lines = [
            f"{samples} = max(1, {batch} if {batch} <= {large} else {sliced})",
            f"{slices} = min(-(-{batch} // {samples}), {most})",
        ]
        for b in step.inside:
            rest = "".join(f", {self.names.size(d)}" for d in b.shape[1:])
            shape = f"(-(-{batch} // max(1, {slices})){rest or ','})"
            lines.append(f"{self.variable(b.name)} = empty({shape}, {b.dtype})")
        base = self.graph.base(step.left)
        with self.names.within({**self.names.slots, base: f"{self.names.value(base)}{part}"}):
            product = self.assigned(self.variable(step.product), step.call)
        loop = [
            f"{start} = {batch} * {number} // {slices}",
            f"{stop} = {batch} * ({number} + 1) // {slices}",
            *product,
        ]
        for launch in step.launches:
            tensors = [
                self.operand(n) + (part if self.is_cut(n, step.batch, cut, inside) else "")
                for n in (*launch.reads, *launch.writes)
            ]
            loop += self.launch(launch.kernel, tensors, [f"{stop} - {start}"])
        return [*lines, f"for {number} in range({slices}):", *indented(loop)]

    def is_cut(self, name: str, batch: Dim, cut: set[str], inside: set[str]) -> bool:
        """Whether a slice is wanted: of what begins with samples, and is there as a whole."""
        if name in cut or name in inside:
            return name in cut
        return self.graph[name].type.shape[:1] == (batch,)
