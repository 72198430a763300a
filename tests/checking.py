"""What a compiled model must satisfy, shared by the CPU and the CUDA tier.

The oracle is the original in float64; the tolerance is twice eager's own error plus a few eps. A
model with live Dropout has no float64 oracle (the mask depends on the type): there eager is it.
"""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from alike import difference, gradients, parts, required
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.emit import library
from kernelwright.expand.contractions import LOWERINGS as CONTRACTIONS
from kernelwright.graph import Node, is_differentiable
from kernelwright.ledger import COUNTED
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.plan.means import LAW
from kernelwright.plan.reasons import Code
from kernelwright.problem import load_problem, load_source
from kernelwright.runtime.build import NATIVE
from kernelwright.verify.compare import first_misplaced, measure, same_bits
from kernelwright.verify.inputs import set_seed

TESTS = Path(__file__).parent
MODELS = sorted((TESTS / "models").glob("*.py"))
EXAMPLES = sorted((TESTS.parent / "examples").glob("*/model.py"))
REDUCED = {"batch_size = 1024": "batch_size = 33", "features = 8192": "features = 256"}
REDUCED |= {"num_groups = 512": "num_groups = 16", "num_groups = 256": "num_groups = 8"}
FEW = 8
SPECIAL = "special values"
NEEDS_TWO = "too few samples for a statistic"


def native_flags() -> list[str]:
    """What emitted files ask the compiler for on this machine."""
    return list(NATIVE)


def name_of(path: Path) -> str:
    return path.parent.name if path.name == "model.py" else path.stem


def reduced_example(path: Path, folder: Path) -> Path:
    """A founding example with small sizes and the same line numbers."""
    text = path.read_text()
    for large, small in REDUCED.items():
        text = text.replace(large, small)
    small_file = folder / f"{path.parent.name}.py"
    small_file.write_text(text)
    return small_file


@dataclass(frozen=True)
class Subject:
    """A model file, what was compiled from it, and the emitted file as a loaded module."""

    user: ModuleType
    compiled: Compiled
    emitted: ModuleType
    device: str
    fallbacks: Counter[str] = field(default_factory=Counter)

    @property
    def new_class(self) -> Any:
        return self.emitted.ModelNew

    @property
    def random(self) -> bool:
        return getattr(self.user, "RANDOM", False)

    def inputs(self, batch: int | None = None, seed: int = 7) -> tuple[Any, ...]:
        """Normal inputs like those of the file, with another leading size where one is given."""
        generator = torch.Generator().manual_seed(seed)
        made = []
        for x in self.compiled.problem.inputs:
            shape = x.shape if batch is None else (batch, *x.shape[1:])
            values = torch.randn(shape, generator=generator)
            made.append(
                (values > 0 if x.dtype == torch.bool else values.to(x.dtype)).to(self.device)
            )
        return tuple(made)

    def modules(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        """The candidate, eager and float64, all with the same random parameters and buffers."""
        arguments = self.user.get_init_inputs()
        eager = self.user.Model(*arguments)
        randomise(eager)
        candidate = self.new_class(*arguments)
        candidate.load_state_dict(copy.deepcopy(eager.state_dict()), strict=True)
        eager = eager.to(self.device)
        oracle = copy.deepcopy(eager) if self.random else copy.deepcopy(eager).double()
        return candidate.to(self.device), eager, oracle


def subject(path: Path, folder: Path, device: str) -> Subject:
    """Compile a model file and load what was emitted for it."""
    compiled = compile_problem(load_problem(path, device), policy=ALWAYS)
    emitted = folder / f"{path.stem}_new.py"
    emitted.write_text(compiled.source)
    return loaded(path, compiled, emitted, device)


def loaded(path: Path, compiled: Compiled, emitted: Path, device: str) -> Subject:
    return Subject(load_source(path), compiled, load_source(emitted), device)


def randomise(module: nn.Module) -> None:
    """Weights of their usual size, but biases, scales and running statistics of any value."""
    generator = torch.Generator().manual_seed(11)
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if not value.is_floating_point():
            continue
        drawn = torch.randn(value.shape, generator=generator)
        if value.ndim > 1:
            drawn *= value[0].numel() ** -0.5
        value.data.copy_(drawn.abs() + 0.5 if name.endswith("running_var") else drawn)


def outcome(subject: Subject, inputs: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """What the candidate, eager and the oracle make of the same inputs."""
    candidate, eager, oracle = subject.modules()
    ours = run(candidate, inputs)
    subject.fallbacks.update(candidate.fallbacks)
    theirs = run(eager, inputs)
    return ours, theirs, run(oracle, inputs if subject.random else widened(inputs))


def redrawn(inputs: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(100 + seed)
    drawn = (torch.randn(x.shape, generator=generator) for x in inputs)
    pairs = zip(inputs, drawn, strict=True)
    return tuple(
        (y.to(x.dtype) if x.is_floating_point() else x.cpu()).to(x.device) for x, y in pairs
    )


def widened(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def run(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    set_seed(5)
    with torch.no_grad():
        return module(*inputs)


@contextlib.contextmanager
def spied(subject: Subject) -> Iterator[set[str]]:
    """The names of the kernels that are launched meanwhile."""
    names: set[str] = set()
    kernels = subject.emitted._KW_KERNEL_LIBRARY

    def note(started: tuple[str, ...]) -> None:
        names.update(name.removeprefix("launch_") for name in started)

    kernels.watchers.append(note)
    try:
        yield names
    finally:
        kernels.watchers.clear()


def check_close(
    what: str, ours: Any, theirs: Any, exact: Any, slack: float = 1.0, laid_out: bool = True
) -> None:
    """Alike in all but values; errors up to twice eager's; NaN and infinities in their places.

    `slack`: so many times as much, where eager has one draw to be lucky in, as gradients have.
    """
    wrong = difference(ours, theirs, laid_out)
    assert wrong is None, f"{what}: {wrong}"
    known, right = dict(parts(theirs)), dict(parts(exact))
    for place, value in parts(ours):
        if isinstance(value, Tensor):
            of = value, known[place], right[place]
            of = tuple(x.detach().resolve_conj().resolve_neg() for x in of)
            _check_numbers(f"{what} {place}".strip(), *of, slack)


def _check_numbers(what: str, ours: Tensor, theirs: Tensor, exact: Tensor, slack: float) -> None:
    if not is_differentiable(ours.dtype):
        assert torch.equal(ours, theirs), what
        return
    assert first_misplaced(ours, theirs, exact) is None, f"{what}: a NaN or an infinity elsewhere"
    figures = measure(ours, theirs, exact)
    assert figures.worst.ratio <= slack, f"{what}: {figures.worst}"


GRADIENTS = 4.0  # their slack


def check_values(subject: Subject, inputs: tuple[Any, ...], what: str) -> None:
    """One draw, or where eager may be exact by luck on the few numbers there are, several."""
    before = [x.clone() for x in inputs]
    outcomes = [outcome(subject, inputs)]
    wrong = difference(*outcomes[0][:2])
    assert wrong is None, f"{what}: {wrong}"
    numbers = sum(x.numel() for x in pytree.tree_leaves(outcomes[0][1]))
    if 0 < numbers < FEW and inputs[0].shape[0] and what != SPECIAL:
        outcomes += [outcome(subject, redrawn(inputs, seed)) for seed in range(FEW)]
    together = [
        pytree.tree_map(lambda *x: torch.stack(x), *part) for part in zip(*outcomes, strict=True)
    ]
    # Eager stands for float64 in a random model, so both sides' errors are in the distance to it.
    check_close(what, *together, slack=2.0 if subject.random else 1.0)
    assert all(same_bits(x, y) for x, y in zip(inputs, before, strict=True)), "an input was written"


def check_gradients(subject: Subject) -> None:
    """Outputs of a call that is recorded, and the gradients of all inputs and parameters."""
    found = []
    candidate, eager, oracle = subject.modules()
    for module in (candidate, eager, oracle):
        given = subject.inputs()
        wide = module is oracle and not subject.random
        given = tuple(x.clone() for x in (widened(given) if wide else given))
        required(given)
        set_seed(5)
        outputs = module(*given)
        found.append((outputs, gradients(module, outputs, given)))
    (ours, mine), (theirs, wanted), (exact, right) = found
    check_close("outputs", ours, theirs, exact, slack=2.0 if subject.random else 1.0)
    check_close("gradients", mine, wanted, right, GRADIENTS)


def batches(subject: Subject) -> dict[str, int]:
    own = subject.compiled.problem.batch
    return {"batch 1": 1, "an odd batch": 5, "a larger batch": 2 * own + 3, "batch 0": 0}


def check_batches(subject: Subject) -> None:
    """Other batch sizes: what eager takes is right, a batch of one that it refuses is refused."""
    for what, batch in batches(subject).items():
        inputs = subject.inputs(batch)
        candidate, eager, _ = subject.modules()
        error = raised(lambda e=eager, x=inputs: run(e, x))
        if error is None:
            check_values(subject, inputs, what)
        elif batch:
            assert raised(lambda c=candidate, x=inputs: run(c, x)) is error, what


def raised(call: Callable[[], Any]) -> type[Exception] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def scattered(x: Tensor) -> Tensor:
    """The same values with the memory of the transpose, one element into its storage."""
    order = list(reversed(range(x.ndim)))
    storage = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    memory = storage[1:].view([x.shape[d] for d in order])
    return memory.copy_(x.permute(order)).permute(order)


def with_specials(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """NaN and both infinities in the first input, in different samples where there are several."""
    first = inputs[0].clone()
    flat = first.view(-1)
    for i, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        flat[i * (flat.numel() - 1) // 2] = value
    return (first, *inputs[1:])


def check_state(subject: Subject) -> None:
    """Running statistics after two steps, and a strict state dict in both directions."""
    candidate, eager, oracle = subject.modules()
    for step in range(2):
        inputs = subject.inputs(seed=step)
        run(candidate, inputs)
        run(eager, inputs)
        run(oracle, inputs if subject.random else widened(inputs))
    states = [dict(m.named_buffers()) for m in (candidate, eager, oracle)]
    assert list(states[0]) == list(states[1])
    for name in states[0]:
        check_close(name, *(s[name] for s in states))
    eager.load_state_dict(candidate.state_dict(), strict=True)


def check_fallbacks(subject: Subject) -> None:
    """Nothing fell back, but for statistics over a batch that has none."""
    causes = set(subject.fallbacks) - {NEEDS_TWO}
    # A size that torch's trace had to tell apart from others, such as a half that is one sample.
    causes = {cause for cause in causes if not cause.startswith("compiled for ")}
    assert not causes, causes


def _computes(node: Node) -> bool:
    return node.op != "view" and node.origin.op != "channels_last"


def check_expectations(subject: Subject) -> None:
    """At least one kernel; exactly what EXPECTED says where the file has it, for a target or device
    or all.

    It speaks of the path on which every product is the library's. What follows a generated
    convolution may be in more kernels there: statistics are parted from what they are for, or into
    those of samples or channels. So may what follows one whose result is turned on the way.
    """
    compiled = subject.compiled
    assert compiled.kernels
    expected = getattr(subject.user, "EXPECTED", None)
    if expected is None:
        return
    places = (compiled.target.name, subject.device)
    expected = next((expected[place] for place in places if place in expected), expected)
    generated = [r for r in compiled.planned.regions if r.gemm or r.conv]
    products = dict.fromkeys((r.gemm or r.conv).product for r in generated)
    # A counter that no kernel counts is no operator of the plan.
    left = [row for row in compiled.ledger if row.fate == "aten" and row.why != COUNTED]
    stayed = [row.op for row in left]
    stayed += [_contracted(compiled, name) for name in products]
    # Live dropout is a mask on CUDA, and a product with it in a kernel.
    aten = [op for op in expected["aten"] if op != "dropout" or subject.device == "cpu"]
    graph = compiled.planned.graph
    kernels = [
        region
        for region in compiled.planned.library
        if region.program is not None
        # An input that is stored in another order for the library is no operator either.
        and any(_computes(graph[n]) for n in region.nodes)
    ]
    parted = any(r.why.code in (Code.CONV_AGAIN, Code.CONV_STORED) for r in generated)
    parted |= any(r.why.code is Code.CHANNELS_BACK for r in compiled.planned.regions)
    parted |= any(r.conv for r in generated) and any(LAW in law for law in compiled.rewrites)
    assert len(kernels) == expected["kernels"] or (parted and len(kernels) > expected["kernels"])
    assert Counter(stayed) == Counter(aten)


def _contracted(compiled: Compiled, product: str) -> str:
    """The operator that a product carries out: a law may have brought others into it."""
    sources = [compiled.captured[s] for s in compiled.planned.graph[product].sources]
    return next(n.origin.op for n in sources if n.op in CONTRACTIONS)


def kernel_text(compiled: Compiled) -> str:
    """The C++ or CUDA source inside the emitted file."""
    return library.headers(compiled.source) + "\n" + programs(compiled)


def programs(compiled: Compiled) -> str:
    """The generated part of it."""
    return library.programs(compiled.source)


def model_functions(compiled: Compiled) -> str:
    """The Python that is written for this model alone."""
    return library.fused_model(compiled.source)


def fused(compiled: Compiled) -> str:
    """The function with the kernels in order, behind the routines that it calls."""
    text = model_functions(compiled)
    functions = text[: text.index("def _kw_outside(")]
    return functions[functions.index("\ndef _kw_") :]


LOAD = "import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), {'__name__': 'm'})"


def build(path: Path) -> str:
    """Import an emitted file in a process of its own; what it said if that failed."""
    command = [sys.executable, "-c", LOAD, str(path)]
    # A model that a test defines imports what that test imports.
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stderr if done.returncode else ""
