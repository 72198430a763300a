"""A model that fails becomes a small one that fails: every way to make it smaller, round by round.

In: a Recipe, and `failing`, which tells of many recipes at once which fail: they can be built
together. Out: a Recipe that fails of which none of the smaller ones does.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fuzzing.judge import module_of
from fuzzing.recipe import BATCH, NAME, Recipe, Statement

Failing = Callable[[Sequence[Recipe]], Sequence[bool]]
AT_ONCE = 24
ROUNDS = 40


def shrunk(recipe: Recipe, failing: Failing) -> Recipe:
    for _ in range(ROUNDS):
        for batch in _batches(smaller(recipe)):
            verdicts = failing(batch)
            found = [r for r, fails in zip(batch, verdicts, strict=True) if fails]
            if found:
                recipe = min(found, key=size)
                break
        else:
            return recipe
    return recipe


def size(recipe: Recipe) -> int:
    return len(recipe.text)


def smaller(recipe: Recipe) -> list[Recipe]:
    """The smallest first; those that torch itself refuses are left out."""
    found = {}
    for candidate in _proposed(recipe):
        candidate = candidate.pruned()
        if size(candidate) < size(recipe) and candidate.text not in found and _runs(candidate):
            found[candidate.text] = candidate
    return sorted(found.values(), key=size)


def _proposed(recipe: Recipe) -> Iterator[Recipe]:
    names = list(dict.fromkeys(NAME.findall(recipe.outputs)))
    made = [name for s in recipe.statements for name in s.names]
    for name in [*names, *made]:
        yield replace(recipe, outputs=name)
    if recipe.dtype != "float32":
        inputs = tuple(
            (n, text.replace(f", dtype=torch.{recipe.dtype}", "")) for n, text in recipe.inputs
        )
        yield replace(recipe, dtype="float32", inputs=inputs)
    if not recipe.training:
        yield replace(recipe, training=True)
    for statement in recipe.statements:
        for operand in sorted(statement.uses):
            for name in statement.names:
                yield _renamed(recipe, name, operand)
        if len(statement.names) == 1:
            yield from _as_input(recipe, statement)


def _renamed(recipe: Recipe, old: str, new: str) -> Recipe:
    """Without a statement: its users read one of its operands instead."""

    def change(text: str) -> str:
        return re.sub(rf"\b{old}\b", new, text)

    statements = tuple(
        Statement(s.name, change(s.text)) for s in recipe.statements if old not in s.names
    )
    return replace(recipe, statements=statements, outputs=change(recipe.outputs))


def _as_input(recipe: Recipe, statement: Statement) -> Iterator[Recipe]:
    """What a statement computes is given instead, so that nothing before it is needed."""
    try:
        shapes = [_shape(recipe, statement.name, batch) for batch in (BATCH, BATCH + 2)]
    except Exception:  # whatever torch raises: then there is no such model
        return
    if shapes[0] is None or shapes[1] is None or len(shapes[0]) != len(shapes[1]):
        return
    sizes = [
        str(a) if a == b else f"{a // BATCH} * batch"
        for a, b in zip(shapes[0], shapes[1], strict=True)
    ]
    name = f"x{1 + max(int(n[1:]) for n, _ in recipe.inputs)}"
    listed = ", ".join(sizes).replace("1 * batch", "batch") or "()"
    kept = tuple(s for s in recipe.statements if s.name != statement.name)
    given = replace(
        recipe, inputs=(*recipe.inputs, (name, f"torch.randn({listed})")), statements=kept
    )
    yield _renamed(given, statement.name, name)


def _shape(recipe: Recipe, name: str, batch: int) -> tuple[int, ...] | None:
    partial = replace(recipe, outputs=name).pruned()
    value = _outputs(partial, batch)
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return tuple(value.shape) if floating else None


def _outputs(recipe: Recipe, batch: int) -> object:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return recipe.run(module_of(recipe), recipe.make_inputs(batch, 0))


def _runs(recipe: Recipe) -> bool:
    try:
        _outputs(recipe, BATCH)
    except Exception:  # whatever torch raises: then there is no such model
        return False
    return True


def _batches(recipes: list[Recipe]) -> Iterator[list[Recipe]]:
    for i in range(0, len(recipes), AT_ONCE):
        yield recipes[i : i + AT_ONCE]
