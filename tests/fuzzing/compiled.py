"""Random models compiled and run: outputs, buffers and a training step against float64.

In: recipes. Out: for each the verdict. They are compiled one by one and built together, and run at
several batch sizes, and on inputs whose axes lie in memory the other way round, with gaps, or
whose samples are one and the same.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from alike import aliases, difference, tensors
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fuzzing import together
from fuzzing.judge import Truth, Wrong, check, module_of, widened
from fuzzing.recipe import Noise, Recipe
from kernelwright.errors import UnsupportedError
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS
from kernelwright.problem import problem_from_module

BATCHES = (5, 1, 9, 0)
RIGHT, UNSUPPORTED, WRONG, LOST = "right", "unsupported", "wrong", "lost"


@dataclass(frozen=True)
class Verdict:
    """`kernels` counts those of the model, `fallbacks` says why some calls did not use them."""

    kind: str
    why: str = ""
    kernels: int = 0
    fallbacks: tuple[str, ...] = ()


def judge_all(
    recipes: dict[str, Recipe], device: str, folder: Path, units: int = 1
) -> dict[str, Verdict]:
    """Every recipe by its name, which must be an identifier."""
    verdicts: dict[str, Verdict] = {}
    compiled: dict[str, Compiled] = {}
    for name, recipe in recipes.items():
        try:
            compiled[name] = compile_one(recipe, device, _pays(name, device))
        except UnsupportedError as error:
            verdicts[name] = Verdict(UNSUPPORTED, str(error))
        except Exception as error:
            verdicts[name] = Verdict(WRONG, describe(error))
    built = _built({n: c.source for n, c in compiled.items()}, folder, device, units)
    for name, made in compiled.items():
        if isinstance(unit := built.get(name), together.BuildFailed):
            verdicts[name] = Verdict(WRONG, describe(unit))
            continue
        if device == "cuda" and not alive():
            verdicts[name] = Verdict(LOST, "an earlier model left the GPU unusable")
            continue
        try:
            verdicts[name] = judge(recipes[name], made, unit, device)
        except UnsupportedError as error:
            verdicts[name] = Verdict(UNSUPPORTED, str(error))
        except Exception as error:
            verdicts[name] = Verdict(WRONG, describe(error))
    return verdicts


def _pays(name: str, device: str) -> bool:
    """Whether products are generated only where it pays: by the name, so that a seed says all.

    A generated product takes the CUDA compiler longer than all other kernels together.
    """
    one_of_four = zlib.crc32(name.encode()) % 4 == 3
    return one_of_four if device == "cpu" else not one_of_four


def _built(sources: dict[str, str], folder: Path, device: str, units: int) -> dict[str, Any]:
    """By name, its library, or what the compiler says of it: then each is built by itself."""
    try:
        return together.build(sources, folder, device, units)
    except together.BuildFailed as error:
        if len(sources) == 1:
            return dict.fromkeys(sources, error)
    built: dict[str, Any] = {}
    for name, source in sources.items():
        (folder / name).mkdir()
        built |= _built({name: source}, folder / name, device, 1)
    return built


def alive() -> bool:
    """Whether this process can still use the GPU: an illegal access is the end of it."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def describe(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}"[:600]


def compile_one(recipe: Recipe, device: str, pays: bool = False) -> Compiled:
    here = device if device == "cpu" or torch.cuda.is_available() else "cpu"
    inputs = moved(recipe.make_inputs(recipe.batch, 0), here)
    problem = problem_from_module(module_of(recipe).to(here), inputs)
    policy = replace(WHERE_IT_PAYS if pays else ALWAYS, backward=True)
    return compile_problem(problem, target=device, policy=policy)


def judge(recipe: Recipe, compiled: Compiled, built: Any, device: str) -> Verdict:
    emitted = together.load(compiled.source, built)
    eager = compiled.problem.module.to(device)
    causes: set[str] = set()
    with filled_memory():
        for batch in BATCHES:
            causes |= _forward(recipe, emitted, eager, batch, device)
        for lay in LAYS:
            _forward(recipe, emitted, eager, BATCHES[0], device, lay)
        causes |= _training_step(recipe, emitted, eager, device)
    causes |= {f"no backward: {compiled.untrained}"} if compiled.untrained else set()
    return Verdict(RIGHT, "", len(compiled.kernels), tuple(sorted(causes)))


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """Memory that nobody wrote holds NaN, whoever reads it."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def adopted(emitted: Any, module: nn.Module) -> nn.Module:
    """A ModelNew with a copy of the module's state."""
    new = emitted.ModelNew.__new__(emitted.ModelNew)
    new.__dict__ = {**copy.deepcopy(module).__dict__, "_kernelwright": None}
    return new


def turned(x: Tensor) -> Tensor:
    """The same values, with the axes in memory the other way round."""
    order = list(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order)


def with_gaps(x: Tensor) -> Tensor:
    """The same values, as a part of something larger along every axis."""
    wide = x.new_zeros([n + 1 for n in x.shape])
    return wide[tuple(map(slice, x.shape))].copy_(x)


def repeated(x: Tensor) -> Tensor:
    """The first sample, as many times."""
    return x[:1].expand_as(x) if x.ndim else x


LAYS = (turned, with_gaps, repeated)


def _forward(
    recipe: Recipe,
    emitted: Any,
    module: nn.Module,
    batch: int,
    device: str,
    lay: Callable[[Tensor], Tensor] = lambda x: x,
) -> set[str]:
    """Values and buffers at a batch size; what eager refuses is refused."""
    made = recipe.make_inputs(batch, 100 + batch)
    inputs = pytree.tree_map_only(Tensor, lay, moved(made, device))
    eager, ours = copy.deepcopy(module), adopted(emitted, module)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = eager(*inputs)
        except NotImplementedError as error:  # for this type, on this device
            raise UnsupportedError(f"eager: {error}") from error
        except Exception as error:
            check_refused(ours, inputs, error, batch)
            return set()
        before = [x.clone() for x in inputs]
        got = ours(*inputs)
    for x, kept in zip(inputs, before, strict=True):
        if not torch.equal(x, kept):
            raise Wrong(f"batch {batch}: an input was written")
    states = [dict(m.named_buffers()) for m in (ours, eager)]
    if batch:
        eps = torch.finfo(getattr(torch, recipe.dtype)).eps
        truth = Truth.of(recipe, module.cpu(), moved(inputs, "cpu"), eps / 2)
        module.to(device)
        check(f"batch {batch}", (got, states[0]), truth, (theirs, states[1]), eps)
    check_alike(f"batch {batch}", got, theirs)
    check_aliases(batch, aliases(got, inputs), aliases(theirs, inputs))
    return set(ours.fallbacks)


def run_eager(recipe: Recipe, device: str) -> bool:
    """Every call that `judge` makes of the original; whatever it raises is no matter here."""
    module = module_of(recipe).to(device)
    lays = (*((batch, torch.clone) for batch in BATCHES), *((BATCHES[0], lay) for lay in LAYS))
    for batch, lay in lays:
        made = moved(recipe.make_inputs(batch, 100 + batch), device)
        with torch.no_grad(), contextlib.suppress(Exception):
            module(*pytree.tree_map_only(Tensor, lay, made))
    with torch.backends.mkldnn.flags(enabled=False), contextlib.suppress(Exception):
        step(lambda x: module(*x), module, moved(recipe.make_inputs(5, 7), device))
    return True


def check_refused(ours: nn.Module, inputs: Any, error: Exception, batch: int) -> None:
    """What eager raises is raised; of no samples there may be a result, or another error first."""
    taken = type(error) if batch else Exception
    try:
        ours(*inputs)
    except taken:
        return
    if batch:
        raise Wrong(f"batch {batch}: eager raises {error!r:.200}, ModelNew gives a result")


def check_alike(what: str, ours: Any, theirs: Any) -> None:
    """Results are of eager's structure, types and layouts, and autograd knows as much of them."""
    if (wrong := difference(ours, theirs)) is not None:
        raise Wrong(f"{what}: {wrong}")


def check_aliases(batch: int, ours: list[list[bool]], theirs: list[list[bool]]) -> None:
    """Results share memory as eager's do."""
    if ours != theirs:
        raise Wrong(f"batch {batch}: results and inputs share memory otherwise than eager's")


def _training_step(recipe: Recipe, emitted: Any, module: nn.Module, device: str) -> set[str]:
    """Gradients of inputs and parameters, and the parameters after a step."""
    inputs = moved(recipe.make_inputs(5, 7), device)
    eager, ours = copy.deepcopy(module), adopted(emitted, module)
    # oneDNN leaves the gradient of a bfloat16 weight unwritten where windows reach no place.
    with torch.backends.mkldnn.flags(enabled=False):
        try:
            outputs, theirs = step(lambda x: eager(*x), eager, inputs)
        except Exception:  # as it does a forward that cannot be differentiated
            return set()
        made, got = step(lambda x: ours(*x), ours, inputs)
    check_alike("outputs of a training step", made, outputs)
    check_alike("a training step", got, theirs)
    eps = torch.finfo(getattr(torch, recipe.dtype)).eps
    wide = copy.deepcopy(module).cpu().double()
    given = widened(moved(inputs, "cpu"))

    def run(noise: Noise | None) -> Any:
        own = copy.deepcopy(wide)
        return step(lambda x: recipe.run(own, x, noise), own, given)[1]

    truth = Truth.drawn(run, eps / 2)
    check("a training step", got, truth, theirs, eps)
    behind = {f"backward by {cause}" for cause in getattr(ours, "backwards", ())}
    return {*ours.fallbacks, *behind}


def step(call: Any, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """The outputs of a step of gradient descent; its gradients, and the parameters after it."""
    given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = call(given)
        roots = [y for y in tensors(outputs) if y.requires_grad]
        loss = sum((weighted(y) for y in roots), torch.zeros((), dtype=torch.float64))
        if roots:
            loss.backward()
    gradients = [x.grad for x in given] + [p.grad for p in module.parameters()]
    with torch.no_grad():
        after = [p - 0.1 * p.grad if p.grad is not None else p for p in module.parameters()]
    return outputs, (gradients, [p.detach() for p in after])


def weighted(y: Tensor) -> Tensor:
    """A number that depends on every element, on each in another way."""
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64, device=y.device)
    return ((y.double().reshape(-1) * weights).sum() / y.numel()).cpu()


def moved(value: Any, device: str) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), value)
