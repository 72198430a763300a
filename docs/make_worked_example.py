"""Prints worked_example.md from the real objects, and the ledger that README.md shows.

In: small_model.py, beside this file. Out: with `--write`, the generated texts put in their places;
without it, the worked example on standard output. tests/null/test_docs.py checks that the committed
files are what this script gives.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import torch

from kernelwright.capture import capture
from kernelwright.emit.cpp import camel
from kernelwright.emit.library import fused_model, programs
from kernelwright.expr import show
from kernelwright.ledger import render
from kernelwright.lower import Kernel
from kernelwright.pattern import rewrite
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import Problem, load_problem, load_source, problem_from_module
from kernelwright.rules import ALL_RULES

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
MODEL = DOCS / "small_model.py"
EXAMPLE = DOCS / "worked_example.md"
README = ROOT / "README.md"
TWO_BIASES = ROOT / "examples" / "gemm_bias_hardtanh_mish_groupnorm" / "model.py"


def generated() -> dict[Path, str]:
    """Every file that holds generated text, as it should read."""
    problem = load_problem(MODEL, device="cpu", precision="highest")
    cpu, cuda = (compile_problem(problem, target=target) for target in ("cpu", "cuda"))
    seated = compile_problem(problem, target="cuda", policy=ALWAYS)
    excerpts = {"ledger": fenced(render(cuda.ledger))}
    return {
        EXAMPLE: worked_example(problem, cpu, cuda, seated),
        README: with_excerpts(README.read_text(), excerpts),
    }


def worked_example(problem: Problem, cpu: Compiled, cuda: Compiled, seated: Compiled) -> str:
    """`seated` is for CUDA as if the product were large enough to be generated."""
    main = cpu.kernels[0]
    program = struct(cpu, main)
    assert program == struct(cuda, main), "the two backends no longer share the program's text"
    sections = [
        INTRODUCTION,
        section("The model", MODEL_TEXT, fenced(MODEL.read_text().strip(), "python")),
        section("Problem", PROBLEM_TEXT, fenced(str(problem))),
        section("Captured graph", CAPTURED_TEXT, fenced(str(cpu.captured))),
        section("Rewrites", REWRITES_TEXT, fenced(rewrites(cpu)), LAW_TEXT, fenced(law_fires())),
        section("Primitives", PRIMITIVES_TEXT, fenced(str(cpu.primitives))),
        section("Plan", PLAN_TEXT, fenced(str(cpu.planned))),
        section(
            "Seat",
            SEAT_TEXT,
            fenced(str(cuda.planned.regions[0]) + "\n" + refused(cuda)),
            SEATED_TEXT,
            fenced(str(seated.planned.regions[0])),
            PARTS_TEXT,
            fenced(parts(seated)),
            TILE_TEXT,
            fenced(str(seated.kernels[0])),
        ),
        section("Schedule", SCHEDULE_TEXT, fenced(schedule(main))),
        section("Kernels", KERNELS_TEXT, fenced(kernels({"cpu": cpu, "cuda": cuda}))),
        section("Generated program", PROGRAM_TEXT, fenced(program, "cpp")),
        section("Launcher", LAUNCHER_TEXT, fenced(launcher(cuda, main), "cpp")),
        section("Emitted forward", FORWARD_TEXT, fenced(forward(cuda), "python")),
        section("Ledger", LEDGER_TEXT, fenced(render(cuda.ledger))),
    ]
    return "\n\n".join(sections) + "\n"


# ---- the pieces ------------------------------------------------------------------------------


def rewrites(compiled: Compiled) -> str:
    return "\n".join(compiled.rewrites) or "(no law fires)"


def law_fires() -> str:
    """The second founding model, small: its extra bias is merged into the Linear's own."""
    module = load_source(TWO_BIASES).Model(64, 128, (128,), 8)
    captured = capture(problem_from_module(module, (torch.rand(32, 64),)))
    after, fired = rewrite(captured, ALL_RULES)
    added = [n for n in after if n.name not in captured.by_name or n != captured[n.name]]
    return "\n".join([*map(str, fired), "", *map(str, added)])


def refused(compiled: Compiled) -> str:
    """Why the product is the library's."""
    return "\n".join(f"not generated: {r}" for r in compiled.refusals if "library" in r)


def parts(compiled: Compiled) -> str:
    """What the tiles of the product run, and what combines their results."""
    return "\n".join(f"{k.name}: {k.program}" for k in compiled.kernels[:2])


def schedule(kernel: Kernel) -> str:
    """Fields and scalars under the names that the C++ gives them."""
    labels, plan = kernel.program.labels, kernel.schedule
    names = {e: labels[e] for e in [*plan.fields, *(e for e, _ in plan.scalars)] if e in labels}
    lines = []
    for i, step in enumerate(plan.steps):
        is_stage = i < len(kernel.program.stages)
        lines.append(f"step {i}: {kernel.program.stages[i].name if is_stage else 'the stores'}")
        lines += [f"  keeps the field {names[e]}" for e in step.makes]
        lines += [
            f"  then the scalar {names[e]} = {show(e)}"
            for e, at in plan.scalars
            if at == i and e in names
        ]
    return "\n".join(lines)


def kernels(by_target: dict[str, Compiled]) -> str:
    return "\n".join(
        f"{target:4}  {kernel}" for target, c in by_target.items() for kernel in c.kernels
    )


def struct(compiled: Compiled, kernel: Kernel) -> str:
    """The struct of a kernel's program, with the comment above it."""
    text = "\n\n" + programs(compiled.source)
    start = text.index(f"struct {camel(kernel.name)} {{")
    start = text.rindex("\n\n", 0, start) + 2
    return text[start : text.index("\n};", start) + 3]


def launcher(compiled: Compiled, kernel: Kernel) -> str:
    """The kernel's Config and the C function that launches it."""
    text = "\n\n" + programs(compiled.source)
    start = text.index(f"struct {camel(kernel.name)}Config {{")
    start = text.rindex("\n\n", 0, start) + 2
    function = text.index(f"launch_{kernel.name}(", start)
    return text[start : text.index("\n}", function) + 2]


def forward(compiled: Compiled) -> str:
    """The kernels of the emitted file in their order, and the method that calls them."""
    text = fused_model(compiled.source)
    kernels = text[text.index("def _kw_fused(") : text.index("def _kw_outside(")]
    method = text[text.index("    def forward(") : text.index("    @property")]
    return kernels.rstrip() + "\n\n\n" + textwrap.dedent(method).rstrip()


# ---- markdown --------------------------------------------------------------------------------


def section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *parts])


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def with_excerpts(text: str, excerpts: dict[str, str]) -> str:
    """The text with each `<!-- NAME:start -->` ... `<!-- NAME:end -->` filled anew."""
    for name, body in excerpts.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        assert text.count(start) == text.count(end) == 1, f"{start} ... {end} must occur once"
        pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = pattern.sub(lambda _, s=start, b=body, e=end: f"{s}\n{b}\n{e}", text)
    return text


INTRODUCTION = """\
# A worked example: every stage, printed

This page is generated. [make_worked_example.py](make_worked_example.py) runs the passes of
[pipeline.py](../src/kernelwright/pipeline.py) on one small model and prints what each of them
returns. A test compares the page with what the script gives today, so it cannot fall behind the
code. To change it, change the code or the script and run

```sh
PYTHONPATH=src python docs/make_worked_example.py --write
```

[architecture.md](architecture.md) says what each stage is for."""

MODEL_TEXT = """\
The first of the three founding models with small sizes. `x` is (32, 64), the Linear maps 64
features to 128, the GroupNorm has 8 groups of 16 channels, the minimum is taken over all 128
features of a sample, and the last line adds a (1, 128, 1, 1) parameter to a (32, 1) tensor, which
broadcasts to (1, 128, 32, 1)."""

PROBLEM_TEXT = """\
The file is loaded, `Model(*get_init_inputs())` is built under a fixed seed, and everything that the
later passes need is frozen into a `Problem`."""

CAPTURED_TEXT = """\
`torch.export` traces the forward. Composites such as `group_norm` stay whole, the leading dimension
is the symbol `batch`, and parameters are values of the graph. Each line is a node: its name, taken
from the user's program where there is one, its type, the operator with all arguments in schema
order, and the ATen call that it stands for."""

REWRITES_TEXT = "The laws of `rules/` are tried until none fires. In this model:"

LAW_TEXT = """\
To see a law at work, take the second founding model at the same sizes. It adds a bias of its own to
the Linear's. The law is printed with its exactness, with the place where it fired and with what it
did away with; below it are the nodes that changed. The two parameters stay two parameters: their
sum is taken again on every call."""

PRIMITIVES_TEXT = """\
`expand` leaves maps, reductions, contractions and views. The Linear is parted from its bias, so
that a fused kernel can add it. GroupNorm is a reshape into groups, a sum, a map that centres, a sum
of squares, a map that scales, and the affine map. In an expression `$0` is the first operand."""

PLAN_TEXT = """\
The planner makes three steps of that. `i0`, `i1`, `i2` are atoms, the pieces of axes that a
kernel's loops run over; `r0` is the result of the first reduction of the same kernel. The
statistics are over segments of 16 elements and the minimum over the row of 128, so one kernel with
two levels does both. The final addition is refused with a reason: it needs 128 values for each one
that the row has. It becomes a kernel of its own, and its output index `batch*i0 + i1` is the (1,
128, batch, 1) shape. Bytes and operations are estimates for a batch of 1024."""

SEAT_TEXT = """\
On CUDA a Linear can be a generated product. This one is too small for that to pay, so it stays with
the library, with the reason; only a few rows have a kernel of their own."""

SEATED_TEXT = """\
For the rest of this section suppose that it paid. The kernel behind the product fits its epilogue:
the first two steps become one, with the same program. The steps that it replaces stay with it, for
calls with fewer rows than the reason says and for other GPUs."""

PARTS_TEXT = """\
A row of 128 columns lies in two tiles of 64, so that the minimum of a row is known only after both.
The program is parted: each tile stores the minimum of its own columns, and a second kernel has the
tiles as its elements. The GroupNorm's segments of 16 columns lie within a tile."""

TILE_TEXT = """\
`lower` chooses the width of a tile, with the reason against others."""

SCHEDULE_TEXT = """\
What the kernel behind the product computes when. A field is remembered for each element from one
step to the next, in a register or a cache line; a scalar is computed once for a segment or a row,
as soon as the reduction that it needs is finished."""

KERNELS_TEXT = """\
`lower` chooses a thread layout and its constants for each backend. `add` runs along the batch,
whose size is not known at compile time. On the GPU it therefore exists twice, with four lanes and
with one, and the launcher chooses by the size."""

PROGRAM_TEXT = """\
The C++ that is generated for the kernel behind the product. The template in `kernels/` calls these
functions; what they must look like is written in
[program.cuh](../src/kernelwright/kernels/program.cuh). The text is the same for CUDA and for the
CPU (the script that made this page compares the two)."""

LAUNCHER_TEXT = """\
The chosen constants and the C function around the launch, here for CUDA. Every launcher has the
same signature, an array of addresses and an array of numbers, so that Python can call it through
ctypes and no binding has to be compiled."""

FORWARD_TEXT = """\
What `class ModelNew(Model)` does, here for CUDA. `memo` knows whether the module is still as it was
traced, and `outside` returns the reason why the kernels cannot take a call, if there is one; then
the original forward runs, counted and with a warning. Otherwise `fused` runs: at once, or inside an
autograd function where gradients are needed. The product is that of the kernel for a few rows, or
the library's."""

LEDGER_TEXT = """\
Where every operator of the original went. The same text is the docstring of `ModelNew`."""


def main() -> None:
    texts = generated()
    if "--write" not in sys.argv[1:]:
        print(texts[EXAMPLE], end="")
        return
    for path, text in texts.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
