"""The table of all checks.

A row names a check, the function that finds, and the parameters the models have meanwhile: the
initial ones, or random ones, because initial weights of 1 and biases of 0 hide mistakes. The first
rows run first, in this order; the order of the others is drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from kernelwright.verify import weights
from kernelwright.verify.cases import DISTRIBUTIONS, LAYOUTS, WHOLE
from kernelwright.verify.certificate import ESSENTIAL, Finding
from kernelwright.verify.checks import (
    arguments,
    changes,
    construction,
    effects,
    execution,
    gradients,
    hooks,
    large,
    memory,
    nulls,
    rare,
    sizes,
    state,
    values,
)
from kernelwright.verify.subject import Subject


@dataclass(frozen=True)
class Row:
    """`main` checks must run the candidate's own kernels; `quick` ones run always.

    `first` ones come before all others, `thorough` ones run only where that is asked for.
    """

    name: str
    find: Callable[[Subject], Finding]
    parameters: str = "random"
    quick: bool = False
    main: bool = False
    first: bool = False
    thorough: bool = False


TABLE: tuple[Row, ...] = (
    Row("runs", values.runs, "initial", quick=True, first=True),
    Row("state_dict", state.state_dict, "initial", quick=True, first=True),
    Row("structure", values.same_structure, "initial", quick=True, first=True),
    Row(ESSENTIAL, values.oracle, "initial", quick=True, main=True, first=True),
    Row("null models", nulls.null_models, "initial", quick=True),
    Row("random parameters", values.on_own_inputs, quick=True, main=True),
    Row("parameters of mixed sizes", values.as_a_whole, "mixed"),
    *(
        Row(
            f"inputs: {name}",
            partial(values.on_distribution, name=name),
            "whole" if name == WHOLE else "random",
            quick=name in ("normal", "NaN"),
            main=name == "normal",
        )
        for name in DISTRIBUTIONS
    ),
    *(
        Row(f"inputs: {str(x).removeprefix('torch.')}", partial(values.in_dtype, dtype=x))
        for x in (torch.float64, torch.float16)
    ),
    *(
        Row(f"batch {size}", partial(values.at_batch, size=size), quick=size in (1, 7))
        for size in (0, 1, 7, 37)
    ),
    Row("larger batch", values.at_larger_batch),
    Row("sizes: batch", sizes.batches, quick=True),
    Row("sizes: other dimensions", sizes.other_dimensions),
    Row("sizes: number of dimensions", sizes.other_ranks),
    Row("sizes: more than 2^31", large.huge, thorough=True),
    *(
        Row(f"layout: {name}", partial(values.on_layout, name=name), quick=name == "transposed")
        for name in LAYOUTS
    ),
    Row("side effects", effects.side_effects, quick=True),
    Row("aliasing", effects.aliasing, quick=True),
    Row("buffers", effects.buffers, quick=True),
    Row("Python state", effects.python_state, quick=True),
    Row("global state", effects.global_state, quick=True),
    Row("eval mode", values.in_eval_mode),
    Row("eval and train", state.switched),
    Row("random numbers", values.random_numbers, quick=True),
    Row("arguments: defaults", arguments.defaults, quick=True),
    Row("arguments: constructor", construction.other_arguments, "initial"),
    Row("seeds", construction.other_seed, "initial", quick=True),
    Row("attributes", changes.attributes, quick=True),
    Row("submodules", changes.submodules),
    Row("hooks", hooks.on_the_model, quick=True),
    Row("hooks: sublayers", hooks.on_sublayers),
    *(
        Row(f"weights: {name}", partial(state.after_change, way=way), quick=way == ".data")
        for name, way in (
            ("load_state_dict", "load_state_dict"),
            (".data write", ".data"),
            ("save and load", "save and load"),
        )
    ),
    *(
        Row(f"weights: {name}", partial(state.after_change, way=".data", change=change))
        for name, change in (
            ("small change", weights.nudged),
            ("one element", weights.one_element),
            ("buffers", weights.other_buffers),
        )
    ),
    Row("weights: assigned", state.assigned),
    Row("weights: .to()", state.moved),
    Row("weights: optimizer step", state.after_optimizer_step),
    Row("weights: deepcopy", partial(state.in_copy, how="deepcopy")),
    Row("weights: pickle", partial(state.in_copy, how="pickle")),
    Row("weights: .double()", partial(state.cast, dtype=torch.float64)),
    Row("weights: .half()", partial(state.cast, dtype=torch.float16)),
    Row("weights: .bfloat16()", partial(state.cast, dtype=torch.bfloat16)),
    Row("memory: poisoned", memory.poisoned, quick=True),
    Row("memory: same address", memory.same_address, quick=True),
    Row("memory: part changed", memory.part_changed),
    Row("memory: reallocated", memory.reallocated),
    Row("memory: earlier outputs", memory.earlier_outputs),
    Row("memory: beside", memory.beside),
    Row("repeats", memory.repeats),
    Row("many calls", rare.many_calls),
    Row("threads", rare.in_threads),
    Row("thread counts", rare.with_threads),
    Row("stream", execution.on_another_stream, quick=True),
    Row("stream: unsynchronised", execution.unsynchronised),
    Row("graph replay", execution.replayed),
    Row("second device", execution.on_the_second_device),
    Row("gradients", gradients.plain, quick=True, main=True),
    Row("gradients: rows", gradients.one_row),
    Row("gradients: summed", gradients.summed),
    Row("gradients: transposed", gradients.transposed),
    Row("gradients: twice", gradients.twice),
    Row("gradients: frozen", gradients.frozen, main=True),
    Row("gradients: hooks", gradients.hooks),
    Row("gradients: in place", gradients.in_place),
    Row("gradients: checkpoint", gradients.checkpointed),
    Row("gradients: optimizer steps", gradients.optimizer_step, main=True),
    Row("inference_mode", gradients.inference, main=True),
    Row("autocast", values.under_autocast),
)

ROWS: dict[str, Row] = {row.name: row for row in TABLE}
MAIN: frozenset[str] = frozenset(row.name for row in TABLE if row.main)
