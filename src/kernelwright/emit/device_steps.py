"""Steps on a GPU as the Python of fused(): memory on the device, kernels one by one, masks.

What a call like the example does is a run of kernels instead, as far as that goes (runs.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.dropout import is_mask
from kernelwright.emit.lines import filled, indented, listed
from kernelwright.emit.names import Names
from kernelwright.emit.steps import BODY, DEEPEST, PREFIX, StepPrinter
from kernelwright.emit.values import python
from kernelwright.lower.steps import DECISIONS, Decide, Guard, Kept, Library, Step
from kernelwright.plan.model import Buffer


class DevicePrinter(StepPrinter):
    """Prints steps over the names of one model; `targets` are texts for weights' places."""

    def __init__(self, names: Names, targets: Mapping[str, str] | None = None) -> None:
        super().__init__(names)
        self.targets = targets or {}
        self.kept = names.local["kept"]

    def step(self, step: Step) -> list[str]:
        if isinstance(step, Decide):
            return self.decide(step)
        if isinstance(step, Kept):
            return self.halves(step)
        return super().step(step)

    @property
    def device(self) -> str:
        return self.names.device_of()

    def typed(self, buffer: Buffer) -> list[str]:
        return [*super().typed(buffer), self.device]

    def launch(self, kernel: str, operands: list[str], sizes: list[str]) -> list[str]:
        return self.started("launch", kernel, operands, sizes)

    def started(self, verb: str, name: str, operands: list[str], sizes: list[str]) -> list[str]:
        """A kernel or a run of them, on these operands with these sizes."""
        head = f'"{name}", {self.device}'
        line = ", ".join([f"{verb}({head}", f"[{', '.join(operands)}]", *sizes])
        if len(line) + BODY + BODY + PREFIX < 100:
            return [f"{line})"]
        tensors = filled("[", operands, "],", margin=DEEPEST)
        numbers = [f"{size}," for size in sizes]
        if not any("(" in size for size in sizes):
            numbers = [f"{', '.join(sizes)},"] if sizes else []
        return [f"{verb}(", *indented([f"{head},", *tensors, *numbers]), ")"]

    def halves(self, step: Kept) -> list[str]:
        """Those of a frozen weight, or memory for them."""
        pair = [self.names.local[b.name] for b in (step.halves, step.scales)]
        frozen = self.names.local[step.frozen]
        found = self.halves_of(step)
        made = [line for b in (step.halves, step.scales) for line in self.alloc(b)]
        return [
            *listed("", f"{', '.join(pair)} = halves_of(", found, ")"),
            f"{frozen} = {pair[0]} is not None",
            f"if not {frozen}:",
            *indented(made),
        ]

    def halves_of(self, step: Kept) -> list[str]:
        """The arguments of the function that gives them."""
        return [self.kept, self.target(step.target), self.operand(step.weight)]

    def target(self, place: str) -> str:
        return self.targets.get(place) or python(place)

    def decide(self, step: Decide) -> list[str]:
        made = ", ".join(self.names.local[name] for name in DECISIONS[:3])
        frozen = self.names.local[step.frozen] if isinstance(step.frozen, str) else "False"
        return filled(
            f"{made}, _ = product_launch(", self.decision(step, frozen), ")", margin=DEEPEST
        )

    def decision(self, step: Decide, frozen: str) -> list[str]:
        """The arguments of the function that decides."""
        sizes = [self.names.size(n) for n in (step.rows, step.batch)]
        return [*sizes, str(step.rule), f"processors({self.device})", frozen]

    def library(self, step: Library) -> list[str]:
        if not is_mask(step.call):
            return super().library(step)
        given = ["KERNEL_LIBRARY", self.device, *map(self.names.literal, step.call.args)]
        target = self.names.variable(step.output)
        return listed("", f"{target} = keep_mask(", given, ")()")

    def moved(self, name: str) -> list[str]:
        """A tensor of the file or of an attribute that lies on the host, on the device instead."""
        text = self.names.variable(name)
        return [f"{text} = {text}.to({self.device})"]

    def guard(self, guard: Guard) -> str:
        if not guard.frozen:
            return super().guard(guard)
        limits = f"{guard.frozen_limit} if {self.target(guard.frozen)} in {self.kept}"
        return f"{self.names.size(guard.size)} {guard.kind} ({limits} else {guard.limit})"


def printer_for(names: Names, targets: Mapping[str, str] | None = None) -> StepPrinter:
    return StepPrinter(names) if names.device == "cpu" else DevicePrinter(names, targets)
