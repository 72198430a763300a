"""Steps as they are recorded on a GPU: each is said to `run`, which notes it for later calls."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.dropout import is_mask
from kernelwright.emit.lines import METHOD, filled, indented, listed
from kernelwright.emit.names import Names
from kernelwright.emit.steps import BODY, DEEPEST, StepPrinter
from kernelwright.emit.values import python
from kernelwright.graph import Call, refs
from kernelwright.lower.steps import DECISIONS, Decide, Guard, Kept, Library, Step
from kernelwright.plan.model import Buffer


class TapedPrinter(StepPrinter):
    """Prints steps over the names of one model; `targets` are texts for weights' places."""

    def __init__(self, names: Names, targets: Mapping[str, str] | None = None) -> None:
        super().__init__(names)
        self.targets = targets or {}
        self.run = names.local["run"]

    def step(self, step: Step) -> list[str]:
        if isinstance(step, Decide):
            return self.decide(step)
        if isinstance(step, Kept):
            return self.kept(step)
        return super().step(step)

    def alloc(self, buffer: Buffer) -> list[str]:
        return [f"{self.variable(buffer.name)} = {self.run}.empty({', '.join(self.typed(buffer))})"]

    def called(self, verb: str, text: str, given: list[str]) -> str:
        head = f"lambda {', '.join(given)}:" if given else "lambda:"
        return f"{self.run}.{verb}({', '.join([f'{head} {text}', *given])})"

    def launch(self, kernel: str, operands: list[str], sizes: list[str]) -> list[str]:
        line = ", ".join([f'{self.run}.launch("{kernel}"', f"[{', '.join(operands)}]", *sizes])
        if len(line) + BODY + 5 <= 100:
            return [f"{line})"]
        tensors = filled("[", operands, "],", margin=DEEPEST)
        inside = [f'"{kernel}",', *tensors, *([f"{', '.join(sizes)},"] if sizes else [])]
        return [f"{self.run}.launch(", *indented(inside), ")"]

    def kept(self, step: Kept) -> list[str]:
        names = [step.halves.name, step.scales.name, step.frozen]
        made = ", ".join(self.names.local[name] for name in names)
        buffers = [f"({', '.join(self.typed(b))})" for b in (step.halves, step.scales)]
        items = [self.target(step.target), self.operand(step.weight), *buffers]
        return listed("", f"{made} = {self.run}.kept(", items, ")")

    def target(self, place: str) -> str:
        return self.targets.get(place) or python(place)

    def decide(self, step: Decide) -> list[str]:
        made = ", ".join(self.names.local[name] for name in DECISIONS[:3])
        sizes = [self.names.size(n) for n in (step.rows, step.batch)]
        frozen = self.names.local[step.frozen] if isinstance(step.frozen, str) else "False"
        items = [*sizes, str(step.rule), f"_processors({self.names.device_of()})", frozen]
        return filled(f"{made}, _ = product_launch(", items, ")", margin=DEEPEST)

    def library(self, step: Library) -> list[str]:
        verb = "contract" if step.contracts else "call"
        target = self.names.variable(step.output)
        if is_mask(step.call):
            given = ["KERNEL_LIBRARY", self.names.device_of()]
            given += map(self.names.literal, step.call.args)
            head = f"KeepMask({', '.join(given)})"
            return listed("", f"{target} = {self.run}.call(", [head], ")")
        given = self.given(refs((step.call.args, step.call.kwargs)))
        return self.spread(f"{target} = {self.run}.{verb}(", step.call, given)

    def spread(self, opening: str, call: Call, operands: list[str]) -> list[str]:
        """A call as a function of its tensors, and these."""
        given = self.given(refs((call.args, call.kwargs)))
        name, inside = self.spelled(call)
        if name and inside == given and not call.order:
            return listed("", opening, [name, *operands], ")")
        turned = f".permute({', '.join(map(str, call.order))})" if call.order else ""
        head = f"lambda {', '.join(given)}: ".replace("lambda :", "lambda:")
        text = f"{name}({', '.join(inside)})" if name else inside[0]
        lines = listed("", opening, [f"{head}{text}{turned}", *operands], ")")
        if not name or all(len(line) + METHOD <= 100 for line in lines):
            return lines
        long = filled(f"{head}{name}(", inside, f"){turned},", margin=DEEPEST)
        return [opening, *indented(long), *(f"    {operand}," for operand in operands), ")"]

    def moved(self, name: str) -> list[str]:
        """A tensor of the file or of an attribute that lies on the host, on the device instead."""
        text = self.names.variable(name)
        return [f"{text} = {self.called('call', f'{text}.to({self.names.device_of()})', [text])}"]

    def guard(self, guard: Guard) -> str:
        if not guard.frozen:
            return super().guard(guard)
        kept = f"{self.target(guard.frozen)} in {self.run}.frozen"
        limit = f"({guard.frozen_limit} if {kept} else {guard.limit})"
        return f"{self.names.size(guard.size)} {guard.kind} {limit}"

    def changed(self, function: str, given: list[str]) -> list[str]:
        return listed("", f"{self.run}.call(", [function, *given], ")")

    def copied(self, buffers: list[str], values: list[str]) -> list[str]:
        function, half = "torch.Tensor.copy_", len(buffers)
        if half > 1:
            function = f"lambda *both: torch._foreach_copy_(both[:{half}], both[{half}:])"
        return self.changed(function, [*buffers, *values])

    def counted(self, counters: list[str], by: int) -> list[str]:
        return self.changed(f"lambda *counters: torch._foreach_add_(counters, {by})", counters)
