"""The table of all checks.

A row names a check, the function that finds, the level that it belongs to, and the parameters the
models have meanwhile: the initial ones, or random ones, because initial weights of 1 and biases of
0 hide mistakes. The first rows run first, in this order; then level by level, in an order that is
drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from kernelwright.verify.cases import DISTRIBUTIONS, LAYOUTS, WHOLE
from kernelwright.verify.certificate import (
    DROP_IN,
    ESSENTIAL,
    FUNCTION,
    GRADIENTS,
    LEVELS,
    MODULE,
    Finding,
)
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
    uses,
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
    level: str = FUNCTION


TABLE: tuple[Row, ...] = (
    Row("runs", values.runs, "initial", quick=True, first=True),
    Row("weights", state.named, "initial", quick=True, first=True),
    Row("structure", values.same_structure, "initial", quick=True, first=True),
    Row(ESSENTIAL, values.oracle, "initial", quick=True, main=True, first=True),
    Row("state_dict", state.state_dict, "initial", quick=True, first=True, level=MODULE),
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
        Row(
            f"inputs: {str(x).removeprefix('torch.')}",
            partial(values.in_dtype, dtype=x),
            level=MODULE,
        )
        for x in (torch.float64, torch.float16)
    ),
    *(
        Row(f"batch {size}", partial(values.at_batch, size=size), quick=size in (1, 7))
        for size in (0, 1, 7, 37)
    ),
    Row("larger batch", values.at_larger_batch),
    Row("sizes: batch", sizes.batches, quick=True),
    Row("sizes: other dimensions", sizes.other_dimensions),
    Row("sizes: number of dimensions", sizes.other_ranks, level=MODULE),
    Row("sizes: more than 2^31", large.huge, thorough=True),
    *(
        Row(f"layout: {name}", partial(values.on_layout, name=name), quick=name == "transposed")
        for name in LAYOUTS
    ),
    Row("Python state", effects.python_state, quick=True),
    Row("global state", effects.global_state, quick=True),
    Row("eval mode", values.in_eval_mode, level=MODULE),
    Row("random numbers", values.random_numbers, quick=True),
    *(
        Row(f"uses: {level}", partial(uses.at_level, level=level), quick=True, level=level)
        for level in LEVELS
    ),
    Row("files", effects.files, quick=True),
    Row("arguments: defaults", arguments.defaults, quick=True, level=MODULE),
    Row("arguments: constructor", construction.other_arguments, "initial", level=MODULE),
    Row("attributes", changes.attributes, quick=True, level=DROP_IN),
    Row("submodules", changes.submodules, level=DROP_IN),
    Row("hooks", hooks.on_the_model, quick=True, level=DROP_IN),
    Row("hooks: sublayers", hooks.on_sublayers, level=DROP_IN),
    Row("weights: .to()", state.moved, level=MODULE),
    Row("weights: .double()", partial(state.cast, dtype=torch.float64), level=MODULE),
    Row("weights: .half()", partial(state.cast, dtype=torch.float16), level=MODULE),
    Row("weights: .bfloat16()", partial(state.cast, dtype=torch.bfloat16), level=MODULE),
    Row("memory: poisoned", memory.poisoned, quick=True),
    Row("memory: reallocated", memory.reallocated),
    Row("memory: earlier outputs", memory.earlier_outputs),
    Row("memory: beside", memory.beside),
    Row("repeats", memory.repeats),
    Row("many calls", rare.many_calls),
    Row("another process", rare.in_another_process),
    Row("threads", rare.in_threads),
    Row("thread counts", rare.with_threads),
    Row("stream", execution.on_another_stream, quick=True),
    Row("stream: unsynchronised", execution.unsynchronised),
    Row("graph replay", execution.replayed),
    Row("second device", execution.on_the_second_device, level=MODULE),
    Row("gradients", gradients.plain, quick=True, main=True, level=GRADIENTS),
    Row("gradients: twice", gradients.twice, level=GRADIENTS),
    Row("gradients: frozen", gradients.frozen, main=True, level=GRADIENTS),
    Row("gradients: hooks", gradients.hooks, level=GRADIENTS),
    Row("gradients: optimizer steps", gradients.optimizer_step, main=True, level=GRADIENTS),
    Row("inference_mode", gradients.inference, main=True, level=GRADIENTS),
    Row("autocast", values.under_autocast, level=MODULE),
)

ROWS: dict[str, Row] = {row.name: row for row in TABLE}
MAIN: frozenset[str] = frozenset(row.name for row in TABLE if row.main)
