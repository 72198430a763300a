"""The table of all checks, in the order in which they run.

A row names a check, the function that finds, and the parameters the models have meanwhile: the
initial ones, or random ones, because initial weights of 1 and biases of 0 hide mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kernelwright.verify.cases import DISTRIBUTIONS, LAYOUTS
from kernelwright.verify.certificate import ESSENTIAL, Finding
from kernelwright.verify.checks import (
    arguments,
    changes,
    construction,
    effects,
    gradients,
    hooks,
    memory,
    nulls,
    sizes,
    state,
    values,
)
from kernelwright.verify.subject import Subject


@dataclass(frozen=True)
class Row:
    """`main` checks must run the candidate's own kernels; `quick` ones run always."""

    name: str
    find: Callable[[Subject], Finding]
    parameters: str = "random"
    quick: bool = False
    main: bool = False


TABLE: tuple[Row, ...] = (
    Row("runs", values.runs, "initial", quick=True),
    Row("state_dict", state.state_dict, "initial", quick=True),
    Row("structure", values.same_structure, "initial", quick=True),
    Row(ESSENTIAL, values.oracle, "initial", quick=True, main=True),
    Row("null models", nulls.null_models, "initial", quick=True),
    Row("random parameters", values.on_own_inputs, quick=True, main=True),
    *(
        Row(
            f"inputs: {name}",
            partial(values.on_distribution, name=name),
            quick=name in ("normal", "NaN"),
            main=name == "normal",
        )
        for name in DISTRIBUTIONS
    ),
    *(
        Row(f"batch {size}", partial(values.at_batch, size=size), quick=size in (1, 7))
        for size in (0, 1, 7, 37)
    ),
    Row("larger batch", values.at_larger_batch),
    Row("sizes: batch", sizes.batches, quick=True),
    Row("sizes: other dimensions", sizes.other_dimensions),
    *(
        Row(f"layout: {name}", partial(values.on_layout, name=name), quick=name == "transposed")
        for name in LAYOUTS
    ),
    Row("side effects", effects.side_effects, quick=True),
    Row("buffers", effects.buffers, quick=True),
    Row("Python state", effects.python_state, quick=True),
    Row("eval mode", values.in_eval_mode),
    Row("eval and train", state.switched),
    Row("random numbers", values.random_numbers, quick=True),
    Row("arguments: defaults", arguments.defaults, quick=True),
    Row("arguments: constructor", construction.other_arguments, "initial"),
    Row("seeds", construction.other_seed, "initial", quick=True),
    Row("attributes", changes.attributes, quick=True),
    Row("submodules", changes.submodules),
    Row("hooks", hooks.hooks, quick=True),
    Row("weights: load_state_dict", state.after_load_state_dict),
    Row("weights: .data write", state.after_data_write, quick=True),
    Row("weights: save and load", state.after_saving),
    Row("weights: optimizer step", state.after_optimizer_step),
    Row("weights: deepcopy", state.in_deepcopy),
    Row("weights: pickle", state.in_pickle),
    Row("weights: .double()", state.in_float64),
    Row("weights: .half()", state.in_half),
    Row("memory: poisoned", memory.poisoned, quick=True),
    Row("memory: same address", memory.same_address, quick=True),
    Row("memory: earlier outputs", memory.earlier_outputs),
    Row("repeats", memory.repeats),
    Row("gradients", gradients.gradients, quick=True, main=True),
    Row("gradients: twice", gradients.twice),
    Row("gradients: frozen", gradients.frozen, main=True),
    Row("gradients: hooks", gradients.hooks),
    Row("gradients: in place", gradients.in_place),
    Row("gradients: checkpoint", gradients.checkpointed),
    Row("gradients: optimizer steps", gradients.optimizer_step, main=True),
    Row("inference_mode", gradients.inference, main=True),
)

ROWS: dict[str, Row] = {row.name: row for row in TABLE}
MAIN: frozenset[str] = frozenset(row.name for row in TABLE if row.main)
