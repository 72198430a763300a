"""Attention in one kernel, in emitted models: values, hard numbers, masks, order, repeats.

The inputs are query, key and value themselves, so that every test says what is in them. That the
one kernel ran is seen in the launches: with the file's switch off, others run.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import checking
import pytest
import torch
from torch import Tensor, nn

from kernelwright.bench.context import matmul_precision
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem
from kernelwright.verify.compare import same_bits

DEVICE = "cuda"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="the kernel asks for compute capability 9.0")

INF, NAN = math.inf, math.nan
EPS = torch.finfo(torch.float32).eps
BATCH, HEADS = 5, 3

SOURCE = """
import math
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        bias = torch.randn({heads}, {rows}, {keys}, generator=torch.Generator().manual_seed(3))
        self.bias = nn.Parameter(bias)
        seen = torch.ones({rows}, {keys}, dtype=torch.bool).tril({keys} - {rows})
        self.register_buffer("seen", seen)
        self.to(torch.{dtype})

    def forward(self, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return ({attention}).transpose(1, 2)


def get_inputs():
    q = torch.randn({batch}, {rows}, {heads}, {depth})
    k = torch.randn({batch}, {keys}, {heads}, {depth})
    v = torch.randn({batch}, {keys}, {heads}, {columns})
    return [x.to(torch.{dtype}) for x in (q, k, v)]


def get_init_inputs():
    return []
"""
PLAIN = "(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v"
BIASED = "(q @ k.mT * 0.2 + self.bias).softmax(-1) @ v"
MASKED = "(q @ k.mT * 0.2).masked_fill(~self.seen, -math.inf).softmax(-1) @ v"
CAPPED = "torch.sigmoid((5 * torch.tanh(q @ k.mT / 5)).softmax(-1) @ v) * 2"
TORCH = "F.scaled_dot_product_attention(q, k, v)"
CAUSAL = "F.scaled_dot_product_attention(q, k, v, is_causal=True)"
TORCH_MASKED = "F.scaled_dot_product_attention(q, k, v, attn_mask=self.seen)"
TORCH_BIASED = "F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, scale=0.3)"


@dataclass(frozen=True)
class Spec:
    """A model file to write: an attention over so many queries and keys, at a precision."""

    attention: str
    rows: int = 37
    keys: int = 37
    depth: int = 24
    columns: int = 24
    precision: str = "highest"
    dtype: str = "float32"

    @property
    def text(self) -> str:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return SOURCE.format(**fields, batch=BATCH, heads=HEADS)


SPECS = {
    "plain": Spec(PLAIN),
    "window": Spec(BIASED, 49, 49, 32, 32),
    "long": Spec(PLAIN, 300, 417, 64, 64),
    "wide": Spec(PLAIN, 130, 70, 64, 48),
    "odd": Spec(BIASED, 5, 131, 19, 7),
    "narrow": Spec(PLAIN, 20, 30, 12, 20),  # pairs of a depth that fills no step
    "one": Spec(PLAIN, 1, 9, 8, 8),
    "masked": Spec(MASKED, 70, 100, 16, 40),
    "capped": Spec(CAPPED, 33, 65, 40, 16),
    "torch": Spec(TORCH, 128, 128, 64, 64),
    "causal": Spec(CAUSAL, 200, 200, 64, 64),
    "causal_short": Spec(CAUSAL, 70, 30, 16, 16),
    "torch_masked": Spec(TORCH_MASKED, 50, 40, 32, 32),
    "torch_biased": Spec(TORCH_BIASED, 66, 34, 32, 32),
    "high": Spec(PLAIN, 100, 130, 64, 32, precision="high"),
    "high_causal": Spec(CAUSAL, 100, 100, 32, 32, precision="high"),
    "bfloat16": Spec(BIASED, 49, 49, 32, 32, dtype="bfloat16"),
    "float16": Spec(MASKED, 70, 101, 24, 40, dtype="float16"),
}
HALF = ("bfloat16", "float16")
ROUNDED = ("high", "high_causal")
EXACT = [name for name in SPECS if name not in (*HALF, *ROUNDED)]


@pytest.fixture(scope="module")
def subjects(
    tmp_path_factory: pytest.TempPathFactory, extensions: Path
) -> dict[str, checking.Subject]:
    """All models, emitted in turn and built side by side."""
    folder = tmp_path_factory.mktemp("attention")
    made = {}
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        builds = []
        for name, spec in SPECS.items():
            path, emitted = folder / f"{name}.py", folder / f"{name}_new.py"
            path.write_text(spec.text)
            compiled = compile_problem(load_problem(path, DEVICE, spec.precision))
            assert [r.kind for r in compiled.planned.regions] == ["attention"], name
            emitted.write_text(compiled.source)
            made[name] = path, compiled, emitted
            builds.append(pool.submit(checking.build, emitted))
    failures = [said for done in builds if (said := done.result())]
    assert not failures, failures[0]
    return {
        name: checking.loaded(path, compiled, emitted, DEVICE)
        for name, (path, compiled, emitted) in made.items()
    }


@pytest.fixture(autouse=True)
def nothing_falls_back(subjects: dict[str, checking.Subject]) -> Iterator[None]:
    for subject in subjects.values():
        subject.fallbacks.clear()
    yield
    assert not {n: dict(s.fallbacks) for n, s in subjects.items() if s.fallbacks}


@contextlib.contextmanager
def switched_off(subject: checking.Subject) -> Iterator[None]:
    before, subject.emitted._KW_GENERATED_GEMM = subject.emitted._KW_GENERATED_GEMM, False
    try:
        yield
    finally:
        subject.emitted._KW_GENERATED_GEMM = before


def attended(subject: checking.Subject, model: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
    """One call, of which it is certain that the one kernel ran in it, and twice gives the same."""
    with checking.spied(subject) as launched:
        out = checking.run(model, given)
    (kernel,) = (k.name for k in subject.compiled.kernels if k.template.symbol == "attention")
    assert any(kernel in name for name in launched)
    assert same_bits(out, checking.run(model, given))
    return out


def errors(subject: checking.Subject, given: tuple[Tensor, ...]) -> tuple[Tensor, float, float]:
    """Ours, and the relative errors in the norm, ours and eager's, against float64."""
    candidate, eager, oracle = subject.modules()
    ours, theirs = attended(subject, candidate, given), checking.run(eager, given)
    exact = checking.run(oracle, tuple(x.double() for x in given))
    of = [float((y.double() - exact).norm() / exact.norm()) for y in (ours, theirs)]
    return ours, *of


def check_kinds(ours: Tensor, theirs: Tensor) -> None:
    """NaN and both infinities exactly where eager has them."""
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        wrong = (kind(ours) != kind(theirs)).nonzero()
        assert not len(wrong), f"{kind.__name__}: {len(wrong)} differ, first {wrong[0].tolist()}"


def eager_math(subject: checking.Subject, given: tuple[Tensor, ...]) -> Tensor:
    """Eager, and of torch's own attention the form that is made of matmul and softmax."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return checking.run(subject.modules()[1], given)


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 4.0, 1e-4])
@pytest.mark.parametrize("name", EXACT)
def test_values(subjects: dict[str, checking.Subject], name: str, scale: float) -> None:
    """As exact as eager, at sizes that no tile divides, for flat and for sharp softmaxes."""
    subject = subjects[name]
    q, k, v = subject.inputs(BATCH)
    _, ours, theirs = errors(subject, (q * scale, k, v))
    assert ours <= max(2 * theirs, 4 * EPS), f"{ours:.2e}, eager {theirs:.2e}"


@pytest.mark.parametrize("name", HALF)
def test_values_in_half_precision(subjects: dict[str, checking.Subject], name: str) -> None:
    """Scores are not rounded on the way, so it is at least as exact as eager."""
    _, ours, theirs = errors(subjects[name], subjects[name].inputs(BATCH))
    assert ours <= theirs, f"{ours:.2e}, eager {theirs:.2e}"


@pytest.mark.parametrize("name", ROUNDED)
def test_values_as_tf32(subjects: dict[str, checking.Subject], name: str) -> None:
    subject = subjects[name]
    with matmul_precision("high"):
        _, ours, _ = errors(subject, subject.inputs(BATCH))
    assert ours <= 1.5e-3


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_any_batch(subjects: dict[str, checking.Subject], batch: int) -> None:
    _, ours, theirs = errors(subjects["window"], subjects["window"].inputs(batch))
    assert ours <= max(2 * theirs, 4 * EPS)


def test_the_steps_apart_give_the_same(subjects: dict[str, checking.Subject]) -> None:
    for name in EXACT:
        subject = subjects[name]
        candidate, given = subject.modules()[0], subject.inputs(BATCH)
        ours = attended(subject, candidate, given)
        with switched_off(subject):
            apart = checking.run(candidate, given)
        torch.testing.assert_close(ours, apart, rtol=1e-4, atol=1e-5, msg=name)


def test_a_row_does_not_depend_on_its_batch(subjects: dict[str, checking.Subject]) -> None:
    subject = subjects["long"]
    candidate, given = subject.modules()[0], subject.inputs(BATCH)
    whole = attended(subject, candidate, given)
    one = attended(subject, candidate, tuple(x[2:3] for x in given))
    assert same_bits(whole[2:3], one)


# ---- hard numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [NAN, INF, -INF, 3e38, 1e-38])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("name", ["plain", "window", "long", "odd", "capped", "high", "bfloat16"])
def test_hard_numbers(
    subjects: dict[str, checking.Subject], name: str, where: str, number: float
) -> None:
    """One number in one head; everywhere else the results stay what they were."""
    subject = subjects[name]
    given = [x.clone() for x in subject.inputs(BATCH)]
    before = checking.run(subject.modules()[0], tuple(given))
    given[("query", "key", "value").index(where)][3, 0, 1, 2] = number
    with matmul_precision(SPECS[name].precision):
        ours = attended(subject, subject.modules()[0], tuple(given))
        theirs = eager_math(subject, tuple(given))
    check_kinds(ours, theirs)
    finite = torch.isfinite(theirs)
    loose = 1e-4 if name in EXACT else 5e-2
    torch.testing.assert_close(ours[finite], theirs[finite], rtol=loose, atol=loose)
    others = [i for i in range(BATCH) if i != 3]
    assert same_bits(ours[others], before[others])


def test_rows_without_a_key(subjects: dict[str, checking.Subject]) -> None:
    """By hand they are NaN, of torch's own attention zero."""
    for name, value in (("masked", NAN), ("torch_masked", 0.0)):
        subject = subjects[name]
        models = subject.modules()
        for model in models:
            model.seen[4] = False
        given = subject.inputs(BATCH)
        ours = attended(subject, models[0], given)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            theirs = checking.run(models[1], given)
        check_kinds(ours, theirs)
        row = ours[:, 4]
        assert torch.isnan(row).all() if math.isnan(value) else (row == value).all()


def test_scores_that_are_infinite(subjects: dict[str, checking.Subject]) -> None:
    """A bias of -inf hides a key; one of +inf makes its row NaN."""
    subject = subjects["window"]
    candidate, eager, _ = models = subject.modules()
    for model in models:
        model.get_parameter("bias").data[1, 5, 7] = INF
        model.get_parameter("bias").data[0, :, 3] = -INF
    given = subject.inputs(BATCH)
    ours, theirs = attended(subject, candidate, given), checking.run(eager, given)
    check_kinds(ours, theirs)
    assert torch.isnan(ours[:, 5, 1]).all() and torch.isfinite(ours[:, :, 0]).all()


@pytest.mark.parametrize("name", ["plain", "long"])
def test_large_ranges(subjects: dict[str, checking.Subject], name: str) -> None:
    """Values of all sizes; a key that nobody looks at may have any."""
    subject = subjects[name]
    q, k, v = (x.clone() for x in subject.inputs(BATCH))
    v *= torch.exp2(torch.randint(-60, 60, v.shape, device=DEVICE).float())
    _, ours, theirs = errors(subject, (q, k, v))
    assert ours <= max(2 * theirs, 4 * EPS)
    q, k, v = (x.clone() for x in subject.inputs(BATCH))
    q[..., 0], k[:, 5, :, 0], v[:, 5] = 1e3, -1e3, 1e30
    _, ours, theirs = errors(subject, (q, k, v))
    assert ours <= max(2 * theirs, 4 * EPS)


def test_operands_as_they_lie(subjects: dict[str, checking.Subject]) -> None:
    """Parts of one projection, and tensors in another order: copied or not, the same bits."""
    subject = subjects["window"]
    candidate = subject.modules()[0]
    packed = torch.randn(BATCH, 49, 3, HEADS, 32, device=DEVICE)
    parts = packed.unbind(2)
    ours = checking.run(candidate, tuple(p.contiguous() for p in parts))
    assert same_bits(checking.run(candidate, tuple(parts)), ours)
