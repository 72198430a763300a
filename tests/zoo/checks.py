"""What every module of the zoo must satisfy after `optimize`, on either device.

In: a case and a device. The module is compiled through the public API; the result, eager and a
float64 oracle then live through the same calls from the same state. One test has several stages;
each starts from equal states, so that a failure in one does not hide the others, and the report
names all that failed.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from alike import aliases, gradients, required, tensors
from checking import GRADIENTS, check_close
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import kernelwright
from kernelwright.errors import UnsupportedError
from kernelwright.pipeline import Compiled
from kernelwright.plan import ALWAYS
from kernelwright.verify.inputs import wide
from zoo.case import Case

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Trio:
    """The compiled module, eager and the oracle; `kernels` is what the plan launches."""

    case: Case
    device: str
    fused: nn.Module
    eager: nn.Module
    oracle: nn.Module
    kernels: int

    def synchronise(self) -> None:
        """Everybody has eager's parameters and buffers."""
        for other in (self.fused, self.oracle):
            other.load_state_dict(copy.deepcopy(self.eager.state_dict()), strict=True)


def built(case: Case, device: str) -> nn.Module:
    seed(3)
    module = case.make().train(case.mode == "train")
    randomise(module)
    return moved(module, device)


def randomise(module: nn.Module) -> None:
    """Weights of their usual size; biases, scales and running statistics of any value."""
    generator = torch.Generator().manual_seed(11)
    state = [*module.named_parameters(), *module.named_buffers()]
    for name, value in state:
        statistic = name.endswith(("running_mean", "running_var"))
        if not value.is_floating_point() or not (isinstance(value, nn.Parameter) or statistic):
            continue
        drawn = torch.randn(value.shape, generator=generator)
        if value.ndim > 1:
            drawn *= max(value[0].numel(), 1) ** -0.5
        value.data.copy_(drawn.abs() + 0.5 if name.endswith("running_var") else drawn)


def moved(module: nn.Module, device: str) -> nn.Module:
    return module.to(device)


def widened_module(module: nn.Module) -> nn.Module:
    """A float64 copy, its plain tensor attributes included."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                vars(part)[name] = value.detach()  # as pruning leaves it; it cannot be copied
    copied = copy.deepcopy(module)._apply(wide)
    for part in copied.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                vars(part)[name] = wide(value)
    return copied


def seed(number: int) -> None:
    """What torch.manual_seed does, without its search for devices that are not there."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)


def arguments(case: Case, batch: int, number: int, device: str) -> Arguments:
    seed(number)
    made = case.inputs(batch), case.kwargs(batch)
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), made)


def widened(given: Arguments) -> Arguments:
    return pytree.tree_map_only(Tensor, wide, given)


def compiled_case(case: Case, device: str) -> tuple[nn.Module, Compiled]:
    """The module that is compiled, and what came out; both on the device."""
    module = built(case, device)
    args, kwargs = arguments(case, case.batch, 0, device)
    made = kernelwright.explain(module, args, kwargs, policy=ALWAYS) if kwargs else None
    return module, made or kernelwright.explain(module, args, policy=ALWAYS)


def trio(case: Case, device: str) -> Trio:
    module, compiled = compiled_case(case, device)
    eager = copy.deepcopy(module)
    oracle = copy.deepcopy(module) if case.random else widened_module(module)
    fused = compiled.instantiate()
    pairs = zip(fused.parameters(), module.parameters(), strict=True)
    assert all(a is b for a, b in pairs), "the parameters are not those of the original"
    return Trio(case, device, fused, eager, oracle, len(compiled.kernels))


@contextlib.contextmanager
def launches(module: nn.Module) -> Iterator[list[str]]:
    """The names of the kernels that the emitted file of a module launches meanwhile."""
    names: list[str] = []
    # A user's own name stays what it is; then the emitted one has another.
    values = list(type(module).forward.__globals__.values())
    library = next((v for v in values if hasattr(v, "compiled") and hasattr(v, "watchers")), None)
    if library is None:
        yield names
        return
    library.watchers.append(names.extend)
    try:
        yield names
    finally:
        library.watchers.clear()


def fallbacks(module: nn.Module) -> Counter[str]:
    """A copy of the module's counter; a user's own attribute of that name does not count."""
    for holder in (module, type(module)):
        counter = getattr(holder, "fallbacks", None)
        if isinstance(counter, Counter):
            return Counter(counter)
    return Counter()


@contextlib.contextmanager
def in_kernels(t: Trio, module: nn.Module | None = None) -> Iterator[None]:
    """Meanwhile the kernels run and nothing falls back, unless the case says why."""
    module = module or t.fused
    before = fallbacks(module)
    with launches(module) as names:
        yield
    if t.case.falls_back:
        return
    causes = fallbacks(module) - before
    assert not causes, f"fell back: {dict(causes)}"
    assert names or not t.kernels, "no kernel was launched"


def call(module: nn.Module, given: Arguments) -> Any:
    seed(5)
    return module(*given[0], **given[1])


def same_call(t: Trio, given: Arguments) -> tuple[Any, Any, Any]:
    """One call of each; they write the same arguments, and their outputs share the same memory."""
    copies = [copied(given) for _ in range(2)]
    exact = call(t.oracle, copied(given) if t.case.random else widened(copied(given)))
    theirs = call(t.eager, copies[1])
    ours = call(t.fused, copies[0])
    check_close("the arguments after the call", *copies, widened(copies[1]))
    assert aliases(ours, copies[0]) == aliases(theirs, copies[1]), "outputs that alias inputs"
    return ours, theirs, exact


def copied(given: Arguments, requires_grad: bool = False) -> Arguments:
    """The same values in new memory of the same strides, expanded and sliced ones too."""

    def fresh(tensor: Tensor) -> Tensor:
        memory = tensor.detach().untyped_storage().clone()
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory, *place)

    made: Arguments = pytree.tree_map_only(Tensor, fresh, given)
    if requires_grad:
        required(made)
    return made


def check_values(t: Trio, batch: int) -> None:
    given = arguments(t.case, batch, 7, t.device)
    with torch.no_grad(), in_kernels(t):
        check_close("outputs", *same_call(t, given))


def recorded(module: nn.Module, given: Arguments) -> tuple[Any, dict[str, Tensor | None]]:
    """The outputs, and the gradients of arguments and parameters."""
    module.zero_grad(set_to_none=True)
    outputs = call(module, given)
    return outputs, gradients(module, outputs, given)


def check_gradients(t: Trio, batch: int) -> None:
    given = arguments(t.case, batch, 8, t.device)
    wide = given if t.case.random else widened(given)
    try:
        theirs, expected = recorded(t.eager, copied(given, True))
    except RuntimeError:  # eager refuses, as an in-place operation on a leaf
        assert refused(lambda: recorded(t.fused, copied(given, True)))
        return
    exact, right = recorded(t.oracle, copied(wide, True))
    with in_kernels(t):
        ours, found = recorded(t.fused, copied(given, True))
    check_close("outputs", ours, theirs, exact)
    check_close("gradients", found, expected, right, GRADIENTS)


def refused(action: Callable[[], Any]) -> bool:
    try:
        action()
    except RuntimeError:
        return True
    return False


def trained(module: nn.Module, batches: list[Arguments]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The losses of a few steps of SGD with momentum, and the state after them."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.05, momentum=0.9)
    losses = []
    for given in batches:
        outputs = [y for y in tensors(call(module, given)) if y.requires_grad]
        loss = sum((y - 0.5).square().mean() for y in outputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, dict(module.state_dict())


def check_steps(t: Trio) -> None:
    if not any(p.requires_grad for p in t.eager.parameters()):
        return
    batches = [arguments(t.case, t.case.batch, number, t.device) for number in (21, 22)]
    copies = [copy.deepcopy(m) for m in (t.fused, t.eager, t.oracle)]
    with in_kernels(t, copies[0]):
        ours = trained(copies[0], copied_all(batches))
    theirs = trained(copies[1], copied_all(batches))
    wide = batches if t.case.random else [widened(b) for b in batches]
    check_close("losses and parameters", ours, theirs, trained(copies[2], wide))


def copied_all(batches: list[Arguments]) -> list[Arguments]:
    return [copied(b) for b in batches]


def check_state(t: Trio) -> None:
    """Buffers after two calls, and one state_dict for both."""
    with torch.no_grad():
        for number in (31, 32):
            same_call(t, arguments(t.case, t.case.batch, number, t.device))
    states = [dict(m.state_dict()) for m in (t.fused, t.eager, t.oracle)]
    assert list(states[0]) == list(states[1]), "the names of the state"
    check_close("the state after two calls", *states)
    t.eager.load_state_dict(t.fused.state_dict(), strict=True)


def check_modes(t: Trio) -> None:
    """The other mode is eager's other mode; back again, the kernels run as before."""
    training = t.eager.training
    given = arguments(t.case, t.case.batch, 41, t.device)
    for module in (t.fused, t.eager, t.oracle):
        module.train(not training)
    allowed = contextlib.nullcontext() if t.case.mode_matters else in_kernels(t)
    try:
        with torch.no_grad(), allowed:
            laid_out = not t.case.strides_by_mode
            check_close("outputs", *same_call(t, given), laid_out=laid_out)
    finally:
        for module in (t.fused, t.eager, t.oracle):
            module.train(training)
    with torch.no_grad(), in_kernels(t):
        check_close("outputs, back in the first mode", *same_call(t, given))


def check_fused(t: Trio) -> None:
    assert t.kernels or t.case.only_aten, "nothing was fused"


def stages(case: Case) -> dict[str, Callable[[Trio], None]]:
    sizes = [case.batch, *([] if case.other is None else [case.other])]
    found: dict[str, Callable[[Trio], None]] = {"fused": check_fused}
    for n in sizes:
        found[f"values at batch {n}"] = lambda t, n=n: check_values(t, n)
        found[f"gradients at batch {n}"] = lambda t, n=n: check_gradients(t, n)
    return found | {"steps": check_steps, "state": check_state, "modes": check_modes}


def check(case: Case, device: str) -> None:
    """Compile a case and go through all stages; an AssertionError names each that failed."""
    failures = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            t = trio(case, device)
        except UnsupportedError:
            if case.refused:
                return
            raise
        for name, stage in stages(case).items():
            try:
                t.synchronise()
                stage(t)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {str(error)[:600]}"
    text = "".join(f"\n  {name}: {why}" for name, why in failures.items())
    assert not failures, f"{case.name} on {device}:{text}"
