"""Gradients as ATen's own operators, by family: what is called, with what, and what stays there.

A case is a call of `torch.ops.aten.X_backward` or of a `native_*` operator that keeps statistics,
on inputs that depend on each other as in a training step (a mean is that of its operand).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module

aten = torch.ops.aten
MEAN, SUM, NONE = 1, 2, 0
Call = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`exact` computes the same where ATen has no kernel for the operator on a CPU.

    The first input is a cotangent, which may have any size, unless it is of a `forward`.
    """

    name: str
    call: Call
    inputs: tuple[Tensor, ...]
    exact: Call | None = None
    forward: bool = False


class Calls(nn.Module):
    """All cases of a family in one forward, each on inputs of its own."""

    def __init__(self, cases: tuple[Case, ...]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *inputs: Tensor) -> list[Any]:
        given = iter(inputs)
        return [case.call(*[next(given) for _ in case.inputs]) for case in self.cases]

    def exact(self, *inputs: Tensor) -> list[Any]:
        given = iter(inputs)
        calls = ((case.exact or case.call, case.inputs) for case in self.cases)
        return [call(*[next(given) for _ in own]) for call, own in calls]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(x for case in self.cases for x in case.inputs)


def compiled(module: Calls, target: str) -> Compiled:
    """For the very sizes of the example, as torch has no free sizes for some of these."""
    problem = problem_from_module(module, module.inputs)
    held = frozenset(range(len(problem.tensors)))
    return compile_problem(replace(problem, held=held), target=target)


def drawn(*shape: int, scale: float = 1.0, shift: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(hash((shape, scale, shift, seed)) % 2**31)
    return torch.randn(shape, generator=generator) * scale + shift


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(count))


def chosen(wanted: tuple[bool, ...], results: Any) -> list[Tensor]:
    return [r for r, want in zip(results, wanted, strict=True) if want]


# ---- pointwise -------------------------------------------------------------------------------

ROWS = (12, 40)


def of_x(name: str, *more: Any, named: dict[str, Any] | None = None) -> Case:
    """g and x, then parameters."""
    operator = getattr(aten, name)
    called = ",".join(map(str, (*more, *(named or {}).values())))
    return Case(
        f"{name}({called})",
        lambda g, x: operator(g, x, *more, **(named or {})),
        (drawn(*ROWS), drawn(*ROWS, scale=3.0, seed=1)),
    )


POINTWISE = (
    of_x("gelu_backward"),
    of_x("gelu_backward", named={"approximate": "tanh"}),
    of_x("silu_backward"),
    of_x("mish_backward"),
    of_x("hardtanh_backward", -1.0, 1.5),
    of_x("hardswish_backward"),
    of_x("hardsigmoid_backward"),
    of_x("leaky_relu_backward", 0.1, False),
    of_x("leaky_relu_backward", 0.1, True),
    Case(
        "elu_backward",
        lambda g, x: aten.elu_backward(g, 0.7, 1.1, 1.3, False, x),
        (drawn(*ROWS), drawn(*ROWS, seed=1)),
    ),
    Case(
        "elu_backward of the result",
        lambda g, y: aten.elu_backward(g, 0.7, 1.1, 1.3, True, y),
        (drawn(*ROWS), drawn(*ROWS, seed=1).clamp(-0.7)),
    ),
    of_x("softplus_backward", 1.0, 20.0),
    of_x("softplus_backward", 2.0, 1.5),
    of_x("threshold_backward", 0.0),
    of_x("softshrink_backward", 0.5),
    of_x("hardshrink_backward", 0.5),
    of_x("tanh_backward"),
    of_x("sigmoid_backward"),
    Case(
        "glu_backward",
        lambda g, x: aten.glu_backward(g, x, 1),
        (drawn(12, 20), drawn(*ROWS, seed=1)),
    ),
    Case(
        "log_sigmoid",
        lambda x: aten.log_sigmoid_forward(x)[0],
        (drawn(*ROWS),),
    ),
    Case(
        "log_sigmoid_backward",
        lambda g, x: aten.log_sigmoid_backward(g, x, aten.log_sigmoid_forward(x)[1]),
        (drawn(*ROWS), drawn(*ROWS, seed=1)),
    ),
    Case(
        "logit_backward",
        lambda g, x: aten.logit_backward(g, x),
        (drawn(*ROWS), drawn(*ROWS, seed=1).sigmoid()),
    ),
    Case(
        "logit_backward(0.2)",
        lambda g, x: aten.logit_backward(g, x, 0.2),
        (drawn(*ROWS), drawn(*ROWS, seed=1).sigmoid()),
    ),
    Case("logit(0.2)", lambda x: torch.logit(x, 0.2), (drawn(*ROWS).sigmoid(),)),
    Case(
        "native_dropout_backward",
        lambda g, keep: aten.native_dropout_backward(g, keep, 2.0),
        (drawn(*ROWS), drawn(*ROWS) > 0),
    ),
    Case(
        "_prelu_kernel_backward",
        lambda g, x, w: aten._prelu_kernel_backward(g, x, w),
        (drawn(*ROWS), drawn(*ROWS, seed=1), drawn(1, 40)),
    ),
    Case("pow(-0.5)", lambda x: x.abs() ** -0.5, (drawn(*ROWS),)),
    Case("pow(-2)", lambda x: x**-2, (drawn(*ROWS),)),
    Case("pow(3)", lambda x: x**3, (drawn(*ROWS),)),
    Case("sgn", torch.sgn, (drawn(*ROWS),)),
    Case("xlogy", torch.xlogy, (drawn(*ROWS), drawn(*ROWS, seed=1).abs())),
    Case("hardshrink", lambda x: aten.hardshrink(x, 0.5), (drawn(*ROWS),)),
    Case("softshrink", lambda x: aten.softshrink(x, 0.5), (drawn(*ROWS),)),
)


# ---- rows: norms and softmax -----------------------------------------------------------------


def layer_norm(shape: tuple[int, ...], axes: int, affine: bool = True, **of: float) -> Case:
    x, normalised = drawn(*shape, seed=1, **of), list(shape[-axes:])
    weight, bias = (drawn(*normalised, seed=s) if affine else None for s in (2, 3))
    _, mean, rstd = aten.native_layer_norm(x, normalised, weight, bias, 1e-5)
    parameters = (weight, bias) if affine else ()

    def call(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *parameters: Tensor) -> Any:
        weight, bias = parameters or (None, None)
        wanted = (True, affine, affine)
        made = aten.native_layer_norm_backward(
            g, x, normalised, mean, rstd, weight, bias, list(wanted)
        )
        forward = aten.native_layer_norm(x, normalised, weight, bias, 1e-5)
        return [*chosen(wanted, made), *forward]

    name = f"layer_norm{list(shape)}{of or ''}"
    return Case(name, call, (drawn(*shape), x, mean, rstd, *parameters))


def rms_norm(affine: bool) -> Case:
    x, weight = drawn(12, 40, seed=1), drawn(40)

    def call(g: Tensor, x: Tensor, *of: Tensor) -> Any:
        weight = of[0] if of else None
        wanted = (True, affine)
        result, rstd = aten._fused_rms_norm(x, [40], weight, 1e-5)
        made = aten._fused_rms_norm_backward(g, x, [40], rstd, weight, list(wanted))
        return [*chosen(wanted, made), result, rstd]

    def exact(g: Tensor, x: Tensor, *of: Tensor) -> Any:
        own = [v.detach().requires_grad_() for v in (x, *of)]
        weight = own[1] if of else None
        result, rstd = aten._fused_rms_norm(own[0], [40], weight, 1e-5)
        return [*torch.autograd.grad(result, own, g), result.detach(), rstd.detach()]

    inputs = (drawn(12, 40), x, *([weight] * affine))
    return Case(f"rms_norm({affine})", call, inputs, exact)


def group_norm(shape: tuple[int, ...], groups: int, affine: bool = True, **of: float) -> Case:
    x = drawn(*shape, seed=1, **of)
    samples, channels = shape[:2]
    space = x[0, 0].numel()
    weight, bias = (drawn(channels, seed=s) if affine else None for s in (2, 3))
    sizes = (samples, channels, space, groups)
    _, mean, rstd = aten.native_group_norm(x, weight, bias, *sizes, 1e-5)
    parameters = (weight, bias) if affine else ()

    def call(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *parameters: Tensor) -> Any:
        weight, bias = parameters or (None, None)
        wanted = (True, affine, affine)
        made = aten.native_group_norm_backward(g, x, mean, rstd, weight, *sizes, list(wanted))
        forward = aten.native_group_norm(x, weight, bias, *sizes, 1e-5)
        return [*chosen(wanted, made), *forward]

    name = f"group_norm{list(shape)}{of or ''}"
    return Case(name, call, (drawn(*shape), x, mean, rstd, *parameters))


def batch_norm(shape: tuple[int, ...], training: bool, affine: bool = True, **of: float) -> Case:
    x, channels = drawn(*shape, seed=1, **of), shape[1]
    weight = drawn(channels, seed=2) if affine else None
    running = (drawn(channels, seed=4), drawn(channels, seed=5).abs() + 0.5)
    _, mean, rstd = aten.native_batch_norm(x, weight, None, *running, True, 0.1, 1e-5)
    kept = (*running, mean, rstd)

    def call(g: Tensor, x: Tensor, *more: Tensor) -> Any:
        weight, *kept = more if affine else (None, *more)
        wanted = (True, affine, affine)
        made = aten.native_batch_norm_backward(g, x, weight, *kept, training, 1e-5, list(wanted))
        if not training:
            return chosen(wanted, made)
        legit = aten._native_batch_norm_legit_functional
        forward = legit(x, weight, weight, kept[0], kept[1], True, 0.1, 1e-5)
        return [*chosen(wanted, made), *forward]

    name = f"batch_norm{list(shape)}{training}{of or ''}"
    return Case(name, call, (drawn(*shape), x, *([weight] if affine else []), *kept))


def softmax(name: str, dim: int, shape: tuple[int, ...] = (12, 40), scale: float = 2.0) -> Case:
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward_data")
    result = forward(drawn(*shape, scale=scale, seed=1), dim, False)

    def call(g: Tensor, y: Tensor, x: Tensor) -> Any:
        return backward(g, y, dim, torch.float32), forward(x, dim, False)

    inputs = (drawn(*shape), result, drawn(*shape, scale=scale, seed=1))
    return Case(f"{name}{list(shape)}x{scale:g}", call, inputs)


NORMS = (
    layer_norm((12, 40), 1),
    layer_norm((3, 4, 6, 10), 2, affine=False),
    layer_norm((12, 40), 1, shift=1e3),
    rms_norm(affine=True),
    rms_norm(affine=False),
    group_norm((12, 40), 4),
    group_norm((6, 8, 5, 7), 2),
    group_norm((6, 8, 5, 7), 4, affine=False, shift=100.0),
    group_norm((2, 4, 70, 130), 2),
    batch_norm((12, 40), training=True),
    batch_norm((6, 8, 5, 7), training=True, shift=100.0),
    batch_norm((6, 8, 5, 7), training=True, affine=False),
    batch_norm((6, 8, 5, 7), training=False),
    softmax("_softmax", 1),
    softmax("_softmax", 1, (4, 5, 6)),
    softmax("_log_softmax", 1, scale=30.0),
    softmax("_log_softmax", 0),
    Case(
        "_safe_softmax",
        lambda x: aten._safe_softmax(torch.where(x[:, :1] > 0, x, -torch.inf), 1),
        (drawn(12, 40),),
    ),
)

# ---- losses ----------------------------------------------------------------------------------


def of_pair(name: str, reduction: int, *more: Any) -> Case:
    operator = getattr(aten, name)
    g = drawn(12, 40) if reduction == NONE else drawn()
    x, y = drawn(12, 40, seed=1), drawn(12, 40, seed=2)
    if "entropy" in name:
        x, y = x.sigmoid(), y.sigmoid()
    return Case(
        f"{name}({reduction})",
        lambda g, x, y: operator(g, x, y, *more_of(reduction, more)),
        (g, x, y),
    )


def more_of(reduction: int, more: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*more[:1], reduction) if more[:1] == (None,) else (reduction, *more)


def nll(name: str, reduction: int, weighted: bool, shape: tuple[int, ...]) -> Case:
    forward, backward = getattr(aten, f"{name}_forward"), getattr(aten, f"{name}_backward")
    x = drawn(*shape, seed=1).log_softmax(min(1, len(shape) - 1))
    count = shape[min(1, len(shape) - 1)]
    target = classes(count, *((shape[0], *shape[2:]) if len(shape) > 1 else ()))
    if target.ndim:
        target.view(-1)[::3] = 2
    weight = drawn(count, seed=3).abs()
    loss, total = forward(x, target, weight if weighted else None, reduction, 2)

    def call(g: Tensor, x: Tensor, target: Tensor, total: Tensor, *of: Tensor) -> Any:
        weight = of[0] if of else None
        made = backward(g, x, target, weight, reduction, 2, total)
        return made, *forward(x, target, weight, reduction, 2)[: 1 if reduction == NONE else 2]

    g = drawn(*loss.shape, seed=4)
    name = f"{name}({reduction}, {weighted}){list(shape)}"
    return Case(name, call, (g, x, target, total, *([weight] * weighted)))


LOSSES = (
    *(of_pair("mse_loss_backward", r) for r in (MEAN, SUM, NONE)),
    *(of_pair("smooth_l1_loss_backward", r, 0.7) for r in (MEAN, NONE)),
    of_pair("smooth_l1_loss_backward", SUM, 0.0),
    *(of_pair("huber_loss_backward", r, 0.7) for r in (MEAN, NONE)),
    of_pair("binary_cross_entropy_backward", MEAN, None),
    of_pair("binary_cross_entropy_backward", NONE, None),
    *(of_pair("soft_margin_loss_backward", r) for r in (MEAN, NONE)),
    Case(
        "soft_margin_loss",
        aten.soft_margin_loss,
        (drawn(12, 40), drawn(12, 40, seed=1).sign()),
        forward=True,
    ),
    Case(
        "binary_cross_entropy",
        lambda x, y, w: aten.binary_cross_entropy(x, y, w),
        (drawn(12, 40).sigmoid(), drawn(12, 40, seed=1).sigmoid(), drawn(12, 40, seed=2)),
        forward=True,
    ),
    nll("nll_loss", MEAN, False, (12, 10)),
    nll("nll_loss", SUM, True, (12, 10)),
    nll("nll_loss", MEAN, True, (12, 10)),
    nll("nll_loss", NONE, True, (12, 10)),
    nll("nll_loss", MEAN, False, (9,)),
    nll("nll_loss2d", MEAN, True, (3, 7, 4, 5)),
    nll("nll_loss2d", NONE, False, (3, 7, 4, 5)),
)

# ---- places: slices, scatters, pools ---------------------------------------------------------


def pool(name: str, size: tuple[int, ...], *options: Any) -> Case:
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
    x = drawn(2, 3, *size, seed=1)
    made = forward(x, *options)
    if "max" not in name:
        inputs = (drawn(*made.shape), x)
        called = f"{name}{list(size)}{options}"
        return Case(called, lambda g, x: backward(g, x, *options_of(options)), inputs)
    values, places = made
    full = (*options, *(False,) * (5 - len(options)))
    inputs = (drawn(*values.shape), x, places)
    return Case(f"{name}{list(size)}{options}", lambda g, x, at: backward(g, x, *full, at), inputs)


def options_of(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """(kernel, stride, padding, ceil_mode, count_include_pad, divisor), all of them."""
    return (*options, *(0, False, True, None)[len(options) - 2 :])


def spots() -> Tensor:
    return classes(6, 4, 1, 5)


def sliced(size: int, *options: int) -> Case:
    def call(g: Tensor) -> Tensor:
        return aten.slice_backward(g, [4, 9], 1, *options)

    return Case(f"slice_backward{options}", call, (drawn(4, size),))


def with_ties(*shape: int) -> Tensor:
    """Whole numbers, and one NaN."""
    x = drawn(*shape).round()
    x.view(-1)[7] = torch.nan
    return x


VALUES, ONE = (4, 6, 5), (4, 1, 5)
PLACES = (
    sliced(5, 2, 7, 1),
    sliced(3, 1, 9, 3),
    sliced(2, -4, 99, 2),
    Case("select_backward", lambda g: aten.select_backward(g, [4, 5, 3], 1, -2), (drawn(4, 3),)),
    Case("max", lambda x: torch.max(x, 1), (with_ties(*VALUES),)),
    Case("min", lambda x: torch.min(x, -1, keepdim=True), (with_ties(*VALUES),)),
    Case("count", lambda x: x / (x > 0).sum(1, keepdim=True), (drawn(*VALUES),)),
    Case("flip", lambda x: torch.flip(x, [0, -1]), (drawn(*VALUES),)),
    Case("compared", lambda x, at: x * (at == 3), (drawn(*ONE), spots())),
    Case("crop", lambda g: aten.constant_pad_nd(g, [-1, 2, 1, -2], 0.5), (drawn(3, 6, 7),)),
    Case(
        "scatter",
        lambda x, at, v: torch.scatter(x, 1, at, v),
        (drawn(*VALUES), spots(), drawn(*ONE)),
    ),
    Case(
        "scatter of a number",
        lambda x, at: torch.scatter(x, 1, at, 2.0),
        (drawn(*VALUES), spots()),
    ),
    Case(
        "scatter_add",
        lambda x, at, v: torch.scatter_add(x, 1, at, v),
        (drawn(*VALUES), spots(), drawn(*ONE)),
    ),
)
POOLS = (
    pool("avg_pool2d", (9, 8), [3, 2], [2, 2]),
    pool("avg_pool2d", (9, 8), [3, 3], [2, 1], [1, 1], True, False),
    pool("avg_pool2d", (9, 8), [2, 3], [3, 4], [1, 0], False, True, 5),
    pool("avg_pool3d", (6, 7, 8), [2, 2, 2], [2, 2, 2]),
    pool("max_pool2d_with_indices", (8, 8), [2, 2], [2, 2], [0, 0], [1, 1]),
    pool("max_pool2d_with_indices", (9, 8), [3, 3], [2, 2], [1, 1], [1, 1]),
    pool("max_pool2d_with_indices", (9, 8), [3, 2], [1, 3], [1, 0], [1, 1]),
    pool("max_pool3d_with_indices", (6, 7, 8), [2, 3, 2], [2, 2, 1], [0, 1, 0], [1, 1, 1]),
    Case(
        "_adaptive_avg_pool2d_backward",
        lambda g, x: aten._adaptive_avg_pool2d_backward(g, x),
        (drawn(2, 3, 4, 2), drawn(2, 3, 8, 6)),
    ),
)

# ---- convolutions ----------------------------------------------------------------------------


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], *options: Any, wanted: tuple[bool, ...] = (True,) * 3
) -> Case:
    """(stride, padding, dilation, transposed, output padding, groups)."""
    value, weight = drawn(*x, seed=1), drawn(*w, seed=2)
    channels = w[1] * options[5] if options[3] else w[0]
    made = aten.convolution(value, weight, None, *options)

    def call(g: Tensor, x: Tensor, w: Tensor) -> Any:
        found = aten.convolution_backward(g, x, w, [channels], *options, list(wanted))
        return [*chosen(wanted, found), aten.convolution(x, w, None, *options)]

    name = f"convolution{list(x)}{list(w)}{options}"
    return Case(name, call, (drawn(*made.shape), value, weight))


CONVOLUTIONS = (
    convolution((2, 4, 9, 8), (6, 4, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    convolution((2, 4, 9, 8), (6, 2, 3, 2), [2, 3], [1, 0], [1, 2], False, [0, 0], 2),
    convolution((2, 4, 17), (6, 4, 3), [2], [1], [1], False, [0], 1),
    convolution((2, 4, 5, 6), (4, 3, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    convolution((2, 2, 5, 6, 4), (3, 2, 2, 2, 2), [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
)
# Whose gradients, where x is NaN, are other ones by ATen's vectors on a CPU.
LIKE_A_GPU = ("hardtanh_backward", "elu_backward", "softshrink_backward", "hardshrink_backward")
FAMILIES = {
    "pointwise": POINTWISE,
    "norms": NORMS,
    "losses": LOSSES,
    "places": PLACES,
    "pools": POOLS,
    "convolutions": CONVOLUTIONS,
}
