"""Which attentions are one kernel: the pattern over contractions, its limits, its reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import WHERE_IT_PAYS, Attention, Policy, Region
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module

HEADS, WIDTH, TOKENS = 4, 24, 37


class Attending(nn.Module):
    """A packed projection, heads of it, an attention by a function, and the heads together."""

    def __init__(self, attention: Callable[..., Any], heads: int = HEADS) -> None:
        super().__init__()
        self.attention, self.heads = attention, heads
        self.qkv = nn.Linear(WIDTH * heads, 3 * WIDTH * heads)
        self.out = nn.Linear(WIDTH * heads, WIDTH * heads)
        self.bias = nn.Parameter(torch.randn(heads, TOKENS, TOKENS))
        self.drop = nn.Dropout(0.2)
        self.register_buffer("seen", torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Any:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        mixed = self.attention(self, *qkv.permute(2, 0, 3, 1, 4).unbind(0))
        if isinstance(mixed, tuple):
            return mixed
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


def by_hand(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v


def biased(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q * 0.3 @ k.transpose(-2, -1) + m.bias).softmax(dim=-1) @ v


def masked(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(~m.seen, -math.inf).softmax(dim=-1) @ v


def by_einsum(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def capped(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Any expression of a score, and any of a result."""
    return torch.sigmoid((30 * torch.tanh(q @ k.mT / 30)).softmax(dim=-1) @ v)


def one_key_head(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k[:, :1].mT).softmax(dim=-1) @ v[:, :1]


def by_torch(**given: Any) -> Callable[..., Tensor]:
    def attention(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = {"seen": m.seen, "bias": m.bias}.get(given.get("attn_mask", ""))
        return F.scaled_dot_product_attention(q, k, v, **(given | {"attn_mask": mask}))

    return attention


def compiled(
    attention: Callable[..., Any],
    *,
    target: str = "cuda",
    train: bool = False,
    dtype: torch.dtype = torch.float32,
    precision: str = "highest",
    policy: Policy = WHERE_IT_PAYS,
    heads: int = HEADS,
) -> Compiled:
    module = Attending(attention, heads).train(train).to(dtype)
    x = torch.randn(5, TOKENS, WIDTH * heads).to(dtype)
    return compile_problem(
        problem_from_module(module, (x,), precision), target=target, policy=policy
    )


def attentions(found: Compiled) -> list[Attention]:
    return [r.attention for r in found.planned.regions if r.attention is not None]


def codes(found: Compiled) -> set[Code]:
    return {r.why.code for r in found.planned.refusals}


ONE_KERNEL = {
    "by_hand": by_hand,
    "biased": biased,
    "masked": masked,
    "by_einsum": by_einsum,
    "capped": capped,
    "by_torch": by_torch(),
    "torch_causal": by_torch(is_causal=True),
    "torch_mask": by_torch(attn_mask="seen"),
    "torch_bias": by_torch(attn_mask="bias", scale=0.3),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_products_and_softmax_are_one_kernel(name: str) -> None:
    """It reads the packed projection as it lies, and stores what the next product reads."""
    found = compiled(ONE_KERNEL[name])
    (made,) = attentions(found)
    assert (made.rows, made.keys, made.depth, made.columns) == (TOKENS, TOKENS, WIDTH, WIDTH)
    assert {o.buffer for o in made.operands} == {"qkv"}
    assert not [r for r in found.planned.refusals if r.op != "linear"]
    _, region, _ = found.planned.regions
    assert region.why.code is Code.ATTENTION
    rows = [row for row in found.ledger if row.where == region.name]
    assert rows and all(row.fate == "fused" for row in rows)


def test_the_score_program_has_what_stands_between_the_products() -> None:
    (made,) = attentions(compiled(biased))
    assert [s.kind for s in made.scores.stages] == ["max"]
    assert {a.buffer for a in made.scores.loads} == {made.product, "bias"}
    (capping,) = (r for r in compiled(capped).planned.regions if r.attention is not None)
    assert capping.program is not None
    assert "sigmoid" in str(capping.program)


def test_layers_share_the_kernel() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(Attending(biased) for _ in range(3)))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    problem = problem_from_module(Layers().eval(), (torch.randn(5, TOKENS, WIDTH * HEADS),))
    found = compile_problem(problem, target="cuda")
    assert len(attentions(found)) == 3
    assert sum(k.template.symbol == "attention" for k in found.kernels) == 1


def steps(region: Region) -> list[str]:
    return [r.kind for r in region.library]


def test_the_steps_apart_are_kept_for_other_machines() -> None:
    found = compiled(by_hand)
    (region,) = (r for r in found.planned.regions if r.attention is not None)
    assert steps(region) == ["contract", "rowwise", "contract", "rowwise"]
    assert region.outputs == region.library[-1].outputs
    assert "_KW_GENERATED_GEMM = True" in found.source


# ---- what is no such kernel ----------------------------------------------------------------------


def dropped(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return m.drop((q @ k.mT).softmax(dim=-1)) @ v


def test_dropout_keeps_the_weights_apart() -> None:
    assert len(attentions(compiled(dropped))) == 1
    assert not attentions(compiled(dropped, train=True))
    assert not attentions(compiled(by_torch(dropout_p=0.5), train=True))


def other_axis(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(dim=-2) @ v


def turned(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(dim=-1).mT @ v


def log_weights(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).log_softmax(dim=-1) @ v


@pytest.mark.parametrize("attention", [other_axis, turned, log_weights])
def test_another_function_is_no_attention(attention: Callable[..., Any]) -> None:
    assert not attentions(compiled(attention, policy=Policy(generate_always=True)))


def with_weights(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(dim=-1)
    return weights @ v, weights


def test_weights_that_are_returned_are_stored() -> None:
    found = compiled(with_weights)
    assert not attentions(found)
    assert Code.SCORES_SHARED in codes(found)


def test_wide_heads_do_not_fit() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.mT).softmax(dim=-1) @ x

    found = compile_problem(problem_from_module(Wide(), (torch.randn(5, 7, 72),)), target="cuda")
    assert not attentions(found)
    assert Code.SCORES_WIDE in codes(found)


def test_targets_without_the_kernel_leave_torchs_function_whole() -> None:
    assert not attentions(compiled(by_hand, target="sm_80"))
    found = compiled(by_torch(), target="sm_80")
    assert "scaled_dot_product_attention" in [row.op for row in found.ledger if row.fate == "aten"]


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_a_cpu_has_the_kernel_too(name: str) -> None:
    """Without steps apart: the file is for no other machine."""
    found = compiled(ONE_KERNEL[name], target="cpu")
    (made,) = attentions(found)
    assert (made.loop.name, made.library) == ("cores", ())
    assert {o.buffer for o in made.operands} == {"qkv"}
    assert "kw::attend<" in found.source and "_KW_GENERATED_GEMM" not in found.source
    module = found.problem.module.double()
    x = torch.randn(3, TOKENS, WIDTH * HEADS, dtype=torch.float64)
    torch.testing.assert_close(run_plan(found.planned, module, (x,)), module(x))


def test_what_torch_takes_by_steps_on_a_cpu_stays_with_it() -> None:
    """Heads of two widths overflow where its one kernel does not."""

    def two_widths(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v[..., :8]).repeat(1, 1, 1, 3)

    assert not attentions(compiled(two_widths, target="cpu"))
    assert attentions(compiled(two_widths))


def test_precision_says_how_it_multiplies() -> None:
    products = {p: attentions(compiled(by_hand, precision=p))[0].loop.products for p in
                ("highest", "high", "medium")}  # fmt: skip
    assert products == {"highest": 3, "high": 1, "medium": 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_its_own_type(dtype: torch.dtype) -> None:
    """Torch's own kernel for it is better than ours."""
    (made,) = attentions(compiled(by_hand, dtype=dtype))
    assert (made.loop.dtype, made.loop.products) == (dtype, 1)
    assert not attentions(compiled(by_torch(), dtype=dtype))


def test_grouped_queries_stay_with_torch() -> None:
    def grouped(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)

    assert not attentions(compiled(grouped))


# ---- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ONE_KERNEL, "one_key_head"])
def test_the_plan_computes_what_the_model_does(name: str) -> None:
    """By its strides and programs alone, in float64."""
    found = compiled(ONE_KERNEL.get(name, one_key_head))
    assert attentions(found)
    module = found.problem.module.double()
    x = torch.randn(3, TOKENS, WIDTH * HEADS, dtype=torch.float64)
    torch.testing.assert_close(run_plan(found.planned, module, (x,)), module(x))


def test_a_causal_attention_bounds_what_a_query_looks_at() -> None:
    assert attentions(compiled(by_torch(is_causal=True)))[0].horizon == 0
    assert attentions(compiled(masked))[0].horizon is None
    assert attentions(compiled(by_hand))[0].horizon is None


def twice(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The second product of one is the first of the next."""
    return ((q @ k.mT).softmax(dim=-1) @ v).softmax(dim=-1) @ k.mT @ v


def in_float32(m: Attending, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).float().softmax(dim=-1) @ v.float()).to(q.dtype)


def test_a_product_belongs_to_one_attention() -> None:
    found = compiled(twice)
    assert len(attentions(found)) == 1
    module = found.problem.module.double()
    x = torch.randn(3, TOKENS, WIDTH * HEADS, dtype=torch.float64)
    torch.testing.assert_close(run_plan(found.planned, module, (x,)), module(x))


def test_operands_have_one_type() -> None:
    assert not attentions(compiled(in_float32, dtype=torch.bfloat16))
