"""The ModelNew writer: a plan and its kernels become one Python file that stands alone.

The file is written for whoever reviews it. The user's own source stands first, since ModelNew is a
subclass of Model; then what was made for this model: ModelNew with the ledger, the steps of a call,
the programs in C++; then what builds and launches them; last the library, which is the package's
and need not be read (library.py). What the kernels do not cover runs the original forward, counted
and warned about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from kernelwright.emit import paste, products, values
from kernelwright.emit.apart import keep_apart, prefix_for
from kernelwright.emit.backward import TrainingWriter
from kernelwright.emit.baked import baked_in
from kernelwright.emit.forward import ForwardWriter, contracts
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
from kernelwright.emit.runs import OPENING
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
# 4, 5. The library: the package's own text, of which `kernelwright check` on this file says so.
# 6. What happens when this file is imported.
{RULE}

"""

FALLBACKS = '''
    @property
    def fallbacks(self):
        """How often the original forward ran instead of the kernels, by cause."""
        return FUSION.memo(self).fallbacks
'''
BACKWARDS = '''
    @property
    def backwards(self):
        """How often the backward ran: as "kernels", or else by the cause of the original's."""
        return FUSION.memo(self).backwards
'''
# What opens the library of a file, and what the file calls of it.
OPENS = {"cpu": "library", "cuda": "library_for_gpu"}
VERBS = ("launch", "run")


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
    text = None
    further = step.parts if step else ()
    every = [lowered, *(low for _, low in further)]
    compiles = any(low.kernels or low.few for low in every)
    trained = TrainingWriter(writer, step) if step else None
    if compiles:
        runs = [w.runs for w in (writer, *(trained.writers if trained else ())) if w.runs]
        host = "\n\n".join([OPENING, *(one.cxx() for one in runs)]) if runs else ""
        text = source(plan.graph, lowered, device, host, further)
    model = _fused_model(writer, ledger, trained)
    started = _started(writer, model, compiles)
    library = paste.library(used(model) | used(started), device)
    parts = [
        section(2, f"{FUSED}: where each operator went, and the steps of a call."),
        model,
    ]
    if text is not None:
        parts += [
            section(3, f"{PROGRAMS}, for this model alone."),
            literal("PROGRAMS", text.programs),
        ]
    parts += [library_section(4, PYTHON, device), library]
    if text is not None:
        parts += [library_section(5, CXX, device), literal("HEADERS", text.headers)]
    parts += [
        section(6, "At import: the programs are built, or found as built before."),
        started,
    ]
    above, below = keep_apart(user.text, parts, writer.prefix, paste.names(device))
    whole = "\n\n\n".join(p.strip("\n") for p in (above, *below)) + "\n"
    return sealed(HEAD.format(device=device) + whole)


def _fused_model(writer: ForwardWriter, ledger: str, trained: TrainingWriter | None) -> str:
    """Everything in Python that was written for this model alone."""
    model = _model(writer, ledger, products.freezing(writer, writer.lowered.frozen))
    functions = _functions(writer, trained)
    plans = [writer.plan, *((w.plan for w in trained.writers) if trained else ())]
    switched = "GENERATED_GEMM" in used("\n".join(functions))
    parts = [
        *([_defaults(writer)] if writer.arguments.defaults else []),
        products.SWITCH if switched else "",
        model,
        *functions,
        "\n".join(_constants(plans)),
        _table(writer),
    ]
    text = "\n\n\n".join(p.strip("\n") for p in parts if p) + "\n"
    imports = [f"import {name}" for name in ("functools", "torch") if name in used(text)]
    return "\n".join([*imports, "", text])


def _started(writer: ForwardWriter, model: str, compiles: bool) -> str:
    """What happens at import: the kernels are built, and everything is put together."""
    lines = []
    if compiles:
        built = f'{OPENS[writer.device]}("{_stem(writer.problem)}", PROGRAMS, HEADERS)'
        lines.append(f"KERNEL_LIBRARY = Library({built})")
        lines += [f"{verb} = KERNEL_LIBRARY.{verb}" for verb in VERBS if verb in used(model)]
    return "\n".join([*lines, f"FUSION = {_fusion(writer, compiles)}"]) + "\n"


def _defaults(writer: ForwardWriter) -> str:
    """Defaults of forward that are no literals, from the original itself."""
    places = writer.arguments.defaults.items()
    listing = ", ".join(f'"{name}": Model.forward.{place}' for name, place in places)
    return f"DEFAULTS = {{{listing}}}"


def _functions(writer: ForwardWriter, trained: TrainingWriter | None) -> list[str]:
    """What one model is to the code around it, as functions."""
    steps = [writer.fused, *(trained.functions if trained else ())]
    writers = [writer, *(trained.writers if trained else ())]
    text = "\n".join(line for lines in steps for line in lines)
    routines = [f for w in writers for f in w.routines if re.search(rf"\b{f.name}\(", text)]
    functions = (
        *(list(f.lines) for f in routines),
        *steps,
        writer.outside(),
        writer.original(),
        writer.blank(),
        writer.state_types(),
        writer.state_reader(),
        writer.served() if writer.served_directly else [],
    )
    return ["\n".join(lines) for lines in functions if lines]


def _table(writer: ForwardWriter) -> str:
    """What tracing took for granted."""
    baked = baked_in(writer.problem.module, writer.graph.mode != "any")
    rows = [line for entry in baked for line in entry]
    return "\n".join(
        [
            "# What tracing took for granted of the modules at these places: class, what is there,",
            "# hooks, plain attributes, others as text. Otherwise the original forward runs.",
            "BAKED_IN = (",
            *(f"    {line}" for row in rows for line in row.splitlines()),
            ")",
        ]
    )


def _fusion(writer: ForwardWriter, compiles: bool) -> str:
    """The value that ModelNew asks, of all functions of this model."""
    rewritten, recalled, in_place = writer.rewritten()
    refused = writer.graph.contract.refused
    asked = compiles and not refused and writer.device == "cpu"  # whether there is a compiler
    fields = {
        "model": writer.model(),
        **{name: name for name in ("outside", "fused", "original", "blank", "state")},
        "baked_in": "BAKED_IN",
        "inputs": len(writer.leaves),
        "reaches": writer.reaches(),
        "rewritten": rewritten,
        "recalled": recalled,
        "in_place": in_place or None,
        "uncounted": [i for i in in_place if i in writer.uncounted()] or None,
        "alone": writer.alone() or None,
        "served": "served" if writer.served_directly else None,
        **{name: name if writer.orders_otherwise else None for name in ("asking", "laid")},
        "random": writer.graph.contract.random,
        "refused": "KERNEL_LIBRARY.refused" if asked else python(refused),
        "globals": writer.reads_globals(),
        "freezes": writer.freezes or None,
        "guarded": writer.is_guarded() or None,
        "precision": _precision(writer),
        "training": TRAINING if writer.step is not None else None,
    }
    optional = (
        *(
            "in_place",
            "uncounted",
            "alone",
            "served",
            "asking",
            "laid",
            "freezes",
            "guarded",
            "precision",
        ),
        "training",
    )
    given = [f"{k}={v}" for k, v in fields.items() if v is not None or k not in optional]
    return "\n".join(listed("", "Fusion(", [f'"{_stem(writer.problem)}"', *given], ")"))


def _precision(writer: ForwardWriter) -> str | None:
    """What the library's products run at, if there are some on a GPU."""
    further = [low for _, low in writer.step.parts] if writer.step else []
    if writer.device == "cpu" or not any(map(contracts, [writer.lowered, *further])):
        return None
    return f'Precision("{writer.problem.precision}", {writer.problem.conv_tf32})'


TRAINING = "Training(saving, backward, KEPT, FLOWS, covers)"


def _stem(problem: Problem) -> str:
    return "kw_" + re.sub(r"\W", "_", problem.name, flags=re.ASCII)[:40]


def _constants(plans: Sequence[Plan]) -> list[str]:
    """Small tensors that the original forward makes by itself."""
    lines = []
    known: dict[str, torch.Tensor] = {}
    for plan, (name, value) in [(p, pair) for p in plans for pair in p.graph.constants.items()]:
        if name in known:
            if known[name] is not value:
                raise UnsupportedError("Two graphs of the step have constants of one name.")
        elif name in plan.graph.by_name and plan.graph.users[name]:
            known[name] = value
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
    counts = writer.step is not None and not hasattr(module, "backwards")
    return "\n".join(
        [
            "class ModelNew(Model):",
            *(f"    {line}".rstrip() for line in doc.splitlines()),
            "",
            "    def __new__(cls, *args, **kwargs):",
            f"        return FUSION.register(super().__new__({made}))",
            "",
            *writer.forward(),
            *([] if hasattr(module, "fallbacks") else [FALLBACKS.rstrip()]),
            *([BACKWARDS.rstrip()] if counts else []),
            freezing.rstrip(),
            "",
        ]
    )
