"""The ModelNew writer: a plan and its kernels become one Python file that stands alone.

The file is written for whoever reviews it. The user's own source stands first, since ModelNew is a
subclass of Model; then what was made for this model: ModelNew with the ledger, the steps of a call,
the programs in C++; then what builds and launches them; last the library, which is the package's
and need not be read (library.py). What the kernels do not cover runs the original forward, counted
and warned about.
"""

from __future__ import annotations

import re

from kernelwright.emit import paste, products, runtime, values
from kernelwright.emit.apart import keep_apart, prefix_for
from kernelwright.emit.backward import training
from kernelwright.emit.baked import baked_in
from kernelwright.emit.forward import ForwardWriter
from kernelwright.emit.library import (
    CXX,
    FUSED,
    PROGRAMS,
    PYTHON,
    RULE,
    library_section,
    literal,
    sealed,
    section,
)
from kernelwright.emit.lines import docstring, listed
from kernelwright.emit.original import original
from kernelwright.emit.scopes import used
from kernelwright.emit.sources import source
from kernelwright.emit.values import python
from kernelwright.errors import UnsupportedError
from kernelwright.lower.lowered import Lowered
from kernelwright.lower.trained import TrainingStep
from kernelwright.plan.model import Plan
from kernelwright.problem import Problem
from kernelwright.version import __version__

HEAD = f"""\
{RULE}
# ModelNew is Model, faster: written by kernelwright {__version__} for {{device}}.
#
# 1. The original model, as it was given.
# 2. The fused model: ModelNew, where each operator went, and the steps of a call.
# 3. The generated programs, in C++, for this model alone.
{{rest}}
{RULE}

"""


REST = {
    "cuda": """\
# 4. The runtime, which builds and launches them.
# 5, 6. The library: the package's own text, of which `kernelwright check` on this file says so.
# 7. What happens when this file is imported.""",
    "cpu": """\
# 4, 5. The library: the package's own text, of which `kernelwright check` on this file says so.
# 6. What happens when this file is imported.""",
}


def emit(
    problem: Problem,
    plan: Plan,
    lowered: Lowered,
    ledger: str,
    device: str,
    step: TrainingStep | None = None,
) -> str:
    """The whole text of the emitted file, for `cuda` or `cpu`; with a `step`, for training too."""
    structures = (problem.inputs, problem.kwargs, plan.graph.outputs)
    user = original(problem, values.classes(structures))
    writer = ForwardWriter(problem, plan, lowered, device, user.names, step)
    writer.prefix = prefix_for(user.text, writer.arguments.taken)
    every = [lowered, *([step.saving, step.lowered] if step else [])]
    compiles = any(low.kernels or low.few for low in every)
    further = (
        [(step.forward.graph, step.saving), (step.backward.graph, step.lowered)] if step else []
    )
    text = source(plan.graph, lowered, device, further) if compiles else None
    model = _fused_model(writer, ledger, compiles)
    started = _started(writer, compiles)
    machinery = ""
    if not writer.direct:
        machinery = paste.pruned(_runtime(writer), used(model) | used(started))
    library = paste.library(used(model) | used(machinery) | used(started), device)
    parts = [
        section(2, f"{FUSED}: where each operator went, and the steps of a call."),
        model,
    ]
    if text is not None:
        parts += [
            section(3, f"{PROGRAMS}, for this model alone."),
            literal("PROGRAMS", text.programs),
        ]
    if machinery.strip():
        parts += [section(4, "The runtime: it builds and launches the programs."), machinery]
    number = 4 if writer.direct else 5
    parts += [library_section(number, PYTHON, device), library]
    if text is not None:
        parts += [library_section(number + 1, CXX, device), literal("HEADERS", text.headers)]
    parts += [
        section(number + 2, "At import: the programs are built, or found as built before."),
        started,
    ]
    above, below = keep_apart(user.text, parts, writer.prefix, paste.names(device))
    whole = "\n\n\n".join(p.strip("\n") for p in (above, *below)) + "\n"
    return sealed(HEAD.format(device=device, rest=REST[device]) + whole)


def _fused_model(writer: ForwardWriter, ledger: str, compiles: bool) -> str:
    """Everything in Python that was written for this model alone."""
    model = _model(writer, ledger, products.freezing(writer, writer.lowered.frozen))
    functions = _functions(writer)
    switched = "GENERATED_GEMM" in used("\n".join(functions))
    parts = [
        *([_defaults(writer)] if writer.arguments.defaults else []),
        products.SWITCH if switched else "",
        model,
        *functions,
        "\n".join(_constants(writer.plan)),
        _fusion(writer, switched, compiles),
    ]
    text = "\n\n\n".join(p.strip("\n") for p in parts if p) + "\n"
    imports = [f"import {name}" for name in ("functools", "torch") if name in used(text)]
    return "\n".join([*imports, "", text])


def _started(writer: ForwardWriter, compiles: bool) -> str:
    """What happens at import: the kernels are built, and everything is put together."""
    kernels = runtime.CUDA_KERNELS.lstrip()
    if writer.direct:
        built = f'library("{_stem(writer.problem)}", PROGRAMS, HEADERS)'
        kernels = f"KERNEL_LIBRARY = Library({built})\nlaunch = KERNEL_LIBRARY.launch\n"
    together = "_together()" if not writer.direct else _fusion_value(writer)
    return (kernels if compiles else "") + f"FUSION = {together}\n"


def _runtime(writer: ForwardWriter) -> str:
    """What builds the programs of any model for a GPU; the file holds what it uses of it."""
    problem = writer.problem
    precision = f'MATMUL_PRECISION = "{problem.precision}"\nCONV_TF32 = {problem.conv_tf32}\n'
    holes = {"flags": runtime.CUDA_FLAGS, "calls": runtime.CUDA_CALLS}
    holes |= {"stem": _stem(problem), "suffix": "cu"}
    build = _fill(runtime.BUILD, **holes)
    parts = [
        f"import functools\n{runtime.IMPORTS}",
        *(runtime.CUDA_MACHINE, _fill(runtime.UNITS, together=str(runtime.TOGETHER)), build),
        *(products.MACHINE, precision, runtime.PRECISION, runtime.CONSTANTS),
    ]
    return "\n\n\n".join(p.strip("\n") for p in parts if p) + "\n"


def _defaults(writer: ForwardWriter) -> str:
    """Defaults of forward that are no literals, from the original itself."""
    places = writer.arguments.defaults.items()
    listing = ", ".join(f'"{name}": Model.forward.{place}' for name, place in places)
    return f"DEFAULTS = {{{listing}}}"


def _functions(writer: ForwardWriter) -> list[str]:
    """What one model is to the code around it, as functions."""
    trained = training(writer, writer.step) if writer.step is not None else ()
    functions = (
        *writer.routines,
        writer.fused(),
        *trained,
        writer.outside(),
        writer.original(),
        writer.blank(),
        writer.state_types(),
        writer.state_reader(),
    )
    return ["\n".join(lines) for lines in functions if lines]


def _fusion(writer: ForwardWriter, switched: bool, compiles: bool) -> str:
    """The table of what tracing took for granted, and everything together."""
    baked = baked_in(writer.problem.module, writer.graph.mode != "any")
    rows = [line for entry in baked for line in entry]
    return "\n".join(
        [
            "# What tracing took for granted of the modules at these places: class, what is there,",
            "# hooks, plain attributes, others as text. Otherwise the original forward runs.",
            "BAKED_IN = (",
            *(f"    {line}" for row in rows for line in row.splitlines()),
            ")",
            *([] if writer.direct else ["", "", *_recording(writer, switched, compiles)]),
        ]
    )


def _fusion_value(writer: ForwardWriter) -> str:
    """The value that ModelNew asks, of all functions of this model."""
    rewritten, recalled, in_place = writer.rewritten()
    fields = {
        "model": writer.model(),
        **{name: name for name in ("outside", "fused", "original", "blank", "state")},
        "baked_in": "BAKED_IN",
        "inputs": len(writer.leaves),
        "reaches": writer.reaches(),
        "rewritten": rewritten,
        "recalled": recalled,
        "in_place": in_place or None,
        "alone": writer.alone() or None,
        **{name: name if writer.orders_otherwise else None for name in ("asking", "laid")},
        "random": writer.graph.contract.random,
        "refused": python(writer.graph.contract.refused),
        "globals": writer.reads_globals(),
        "training": TRAINING if writer.step is not None else None,
    }
    optional = ("in_place", "alone", "asking", "laid", "training")
    given = [f"{k}={v}" for k, v in fields.items() if v is not None or k not in optional]
    return "\n".join(listed("", "Fusion(", [f'"{_stem(writer.problem)}"', *given], ")"))


def _recording(writer: ForwardWriter, switched: bool, compiles: bool) -> list[str]:
    """The same for a GPU, where the steps of a call are recorded first."""
    stem = _stem(writer.problem)
    rewritten, recalled, in_place = writer.rewritten()
    alone = writer.alone()
    return [
        "def _together():",
        '    """All of this as one value, which ModelNew asks."""',
        "    return Fusion(",
        f'        "{stem}",',
        f'        device="{writer.device}",',
        f"        kernels={'KERNEL_LIBRARY' if compiles else None},",
        "        precision=_Precision,",
        f"        switch=lambda: {'GENERATED_GEMM' if switched else None},",
        "        outside=outside,",
        "        fused=fused,",
        "        original=original,",
        f"        model={writer.model()},",
        "        blank=blank,",
        "        state=state,",
        "        baked_in=BAKED_IN,",
        f"        inputs={len(writer.leaves)},",
        f"        given={writer.given()},",
        *([f"        flat={writer.flat()},"] if writer.arguments.starred else []),
        f"        reaches={writer.reaches()},",
        f"        rewritten={rewritten},",
        f"        recalled={recalled},",
        *([f"        in_place={in_place},"] if in_place else []),
        *([f"        alone={alone},"] if alone else []),
        *(["        ways=True,"] if writer.needs_its_way else []),
        *([f"        {f}={f}," for f in ("asking", "laid")] * bool(writer.orders_otherwise)),
        f"        random={writer.graph.contract.random},",
        f"        refused={python(writer.graph.contract.refused)},",
        f"        globals={writer.reads_globals()},",
        "    )",
    ]


TRAINING = "Training(saving, backward, KEPT, FLOWS, covers)"


def _stem(problem: Problem) -> str:
    return "kw_" + re.sub(r"\W", "_", problem.name, flags=re.ASCII)[:40]


def _fill(template: str, **holes: str) -> str:
    for key, value in holes.items():
        template = template.replace("{" + key + "}", value)
    return template


def _constants(plan: Plan) -> list[str]:
    """Small tensors that the original forward makes by itself."""
    lines = []
    for name, value in plan.graph.constants.items():
        if name in plan.graph.by_name and plan.graph.users[name]:
            if value.numel() > 4096:
                raise UnsupportedError(
                    "The forward builds a large constant tensor; register a buffer."
                )
            lines.append(f"_{name} = torch.tensor({python(value.tolist())}, dtype={value.dtype})")
    return lines


def _model(writer: ForwardWriter, ledger: str, freezing: str) -> str:
    doc = docstring(ledger)
    module = writer.problem.module
    made = "cls" if type(module).__new__ is object.__new__ else "cls, *args, **kwargs"
    return "\n".join(
        [
            "class ModelNew(Model):",
            *(f"    {line}".rstrip() for line in doc.splitlines()),
            "",
            "    def __new__(cls, *args, **kwargs):",
            f"        return FUSION.register(super().__new__({made}))",
            "",
            *writer.forward(),
            *([] if hasattr(module, "fallbacks") else [runtime.FALLBACKS.rstrip()]),
            *(
                [runtime.BACKWARDS.rstrip()]
                if writer.step and not hasattr(module, "backwards")
                else []
            ),
            freezing.rstrip(),
            "",
        ]
    )
