"""Steps that combine elements: reductions, norms, softmax, losses."""

from __future__ import annotations

from fuzzing.pointwise import broadcasting
from fuzzing.writer import FLOAT, INT, Refused, Value, Writer

PLAIN = ("sum", "mean", "amax", "amin", "logsumexp", "var", "std", "norm", "sum", "mean")
ORDERS = ("1", "2", 'float("inf")', "3")
REDUCTIONS_OF_LOSSES = ("mean", "sum", "none")


def flag(w: Writer, percent: int = 50) -> bool:
    return w.choices.chance(percent)


def reduce(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: v.rank > 0)
    axes, keepdim = w.axes(x), flag(w, 60)
    kind = w.choices.pick(PLAIN)
    arguments = f"dim={axes}, keepdim={keepdim}"
    if kind in ("var", "std"):
        arguments += f", correction={w.choices.pick((0, 1, 1))}"
        text = f"torch.{kind}({x.name}, {arguments})"
        if any(x.follows(a) for a in axes) or torch_numel(x, axes) < 3:
            raise Refused
    elif kind == "norm":
        text = f"torch.linalg.vector_norm({x.name}, {w.choices.pick(ORDERS)}, {arguments})"
    else:
        text = f"torch.{kind}({x.name}, {arguments})"
    w.emit(text)


def torch_numel(x: Value, axes: list[int]) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


def reduce_all(w: Writer) -> None:
    x = w.value()
    kind = w.choices.pick(("sum", "mean", "max", "min", "norm", "std", "var", "logsumexp"))
    if kind == "logsumexp":
        w.emit(f"torch.logsumexp({x.name}, {list(range(x.rank))})")
    else:
        w.emit(f"{x.name}.{kind}()")


def along(w: Writer) -> None:
    """Over one axis, with or without a second result."""
    x = w.value(FLOAT, lambda v: v.rank > 0)
    axis, keepdim = w.axis(x), flag(w)
    forms = (
        "{x}.max({a}, keepdim={k}).values",
        "{x}.min({a}, keepdim={k})[0]",
        "torch.prod({x} * 0.3 + 1.0, {a}, keepdim={k})",
        "torch.argmax({x}, {a}, keepdim={k})",
        "torch.argmin({x}, {a}, keepdim={k})",
        "torch.cumsum({x}, {a})",
        "torch.cumprod({x} * 0.2 + 1.0, {a})",
        "({x} > 0).any({a}, keepdim={k})",
        "({x} > 0).all({a}, keepdim={k})",
        "({x} > 0).sum({a}, keepdim={k})",
        "torch.sort({x}, {a}).values",
        "torch.topk({x}, 1, {a}).values",
        "{x}.median({a}).values",
        "torch.logcumsumexp({x}, {a})",
        "{x}.flip({a})",
        "torch.diff({x}, dim={a})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, a=axis, k=keepdim))


def several(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: v.rank > 0)
    axis, keepdim = w.axis(x, batch=0), flag(w)
    if x.shape[axis] < 3:
        raise Refused
    forms = (
        "torch.var_mean({x}, {a}, keepdim={k})",
        "torch.std_mean({x}, {a}, keepdim={k}, correction=0)",
        "torch.max({x}, {a}, keepdim={k})",
        "torch.min({x}, {a}, keepdim={k})",
    )
    w.emit_several(w.choices.pick(forms).format(x=x.name, a=axis, k=keepdim))


def softmax(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: v.rank > 0)
    forms = (
        "torch.softmax({x}, {a})",
        "torch.log_softmax({x}, {a})",
        "F.softmin({x}, {a})",
        "torch.softmax({x} * 2.0 - 1.0, {a})",
        "F.normalize({x}, dim={a})",
        "F.normalize({x}, p=1.0, dim={a})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, a=w.axis(x)))


def standardise(w: Writer) -> None:
    """A normalisation by hand."""
    x = w.value(FLOAT, lambda v: v.rank > 0)
    axes = w.axes(x)
    forms = (
        "{x} - {x}.mean({a}, keepdim=True)",
        "({x} - {x}.mean({a}, keepdim=True)) / ({x}.var({a}, keepdim=True, correction=0) + 0.1)",
        "{x} / ({x}.square().mean({a}, keepdim=True) + 0.05).sqrt()",
        "{x} / ({x}.abs().amax({a}, keepdim=True) + 0.1)",
        "torch.exp({x} - {x}.amax({a}, keepdim=True))",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, a=axes))


def layer_norm(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: v.rank > 1)
    first = w.choices.integer(1, x.rank - 1)
    sizes = [w.fixed(x, i) for i in range(first, x.rank)]
    kind = w.choices.pick(("nn.LayerNorm", "nn.LayerNorm", "nn.RMSNorm"))
    more = w.choices.pick(("", ", elementwise_affine=False", ", eps=1e-3"))
    if kind == "nn.RMSNorm":  # by default its eps is that of the type
        more = w.choices.pick((", eps=1e-5", ", eps=1e-2, elementwise_affine=False"))
    w.emit(f"{w.part(f'{kind}({sizes}{more})')}({x.name})")


def group_norm(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: v.rank > 1)
    channels = w.fixed(x, 1)
    groups = w.choices.pick([g for g in range(1, channels + 1) if channels % g == 0])
    more = w.choices.pick(("", ", affine=False", ", eps=0.01"))
    w.emit(f"{w.part(f'nn.GroupNorm({groups}, {channels}{more})')}({x.name})")


def channel_norm(w: Writer) -> None:
    """BatchNorm in the mode of the model, InstanceNorm."""
    x = w.value(FLOAT, lambda v: 1 < v.rank < 6 and v.follows(0))
    channels, spatial = w.fixed(x, 1), max(1, x.rank - 2)
    kind = w.choices.pick(("BatchNorm", "BatchNorm", "InstanceNorm"))
    more = {
        "BatchNorm": (
            "",
            "",
            ", affine=False",
            ", momentum=0.3",
            ", track_running_stats=False",
            ", eps=0.1",
        ),
        "InstanceNorm": ("", ", affine=True", ", eps=0.01"),
    }[kind]
    made = w.part(f"nn.{kind}{spatial}d({channels}{w.choices.pick(more)})")
    w.emit(f"{made}({x.name})")


def loss(w: Writer) -> None:
    x = w.value()
    y = broadcasting(w, x)
    how = w.choices.pick(REDUCTIONS_OF_LOSSES)
    forms = (
        "F.mse_loss({x}, {y}, {r})",
        "F.l1_loss({x}, {y}, {r})",
        "F.smooth_l1_loss({x}, {y}, {r})",
        "F.smooth_l1_loss({x}, {y}, {r}, beta=0.4)",
        "F.huber_loss({x}, {y}, {r}, delta=0.7)",
        "F.binary_cross_entropy_with_logits({x}, torch.sigmoid({y}), {r})",
        "F.binary_cross_entropy_with_logits({x}, torch.sigmoid({y}), {y}.abs(), {r})",
        "F.binary_cross_entropy(torch.sigmoid({x}), torch.sigmoid({y}), {r})",
        "F.kl_div(F.log_softmax({x}, -1), torch.softmax({y}, -1), {r})",
        "F.kl_div(F.log_softmax({x}, -1), F.log_softmax({y}, -1), {r}, log_target=True)",
        "F.soft_margin_loss({x}, torch.sign({y}), {r})",
        "F.poisson_nll_loss({x}.clamp(max=2.0), {y}, {r})",
        "F.hinge_embedding_loss({x}, torch.sign({y}), {r})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, y=y.name, r=f'reduction="{how}"'))


def similarity(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: v.rank > 0)
    y = broadcasting(w, x)
    forms = (
        "F.cosine_similarity({x}, {y}, dim={a})",
        "F.pairwise_distance({x}, {y})",
        "F.triplet_margin_loss({x}, {y}, {x} * 0.5 + 0.3)",
        "({x} * {y}).sum({a})",
        'F.triplet_margin_loss({x}, {y}, {x} + 0.2, p=1, swap=True, reduction="none")',
    )
    w.emit(w.choices.pick(forms).format(x=x.name, y=y.name, a=w.axis(x)))


def cross_entropy(w: Writer) -> None:
    """Classes along the axis behind the batch, numbers of classes as an input."""
    x = w.value(FLOAT, lambda v: 1 < v.rank < 5 and v.follows(0))
    classes = w.fixed(x, 1)
    if len(w.inputs) > 3:
        raise Refused
    sizes = [w.fixed(x, i) for i in range(2, x.rank)]
    target = w.input(sizes, f"torch.randint(0, {classes}, ({{}},))")
    more = w.choices.pick(("", ", label_smoothing=0.1", ", ignore_index=0", ", ignore_index=-100"))
    how = w.choices.pick(REDUCTIONS_OF_LOSSES)
    if how == "mean" and "ignore_index=0" in more:
        raise Refused  # nothing may be left to average
    forms = (
        "F.cross_entropy({x}, {t}, reduction={r}{m})",
        "F.nll_loss(F.log_softmax({x}, 1), {t}, reduction={r})",
        "F.cross_entropy({x}, torch.softmax({x} * 0.5, 1), reduction={r})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, t=target.name, r=f'"{how}"', m=more))


def integer_reduction(w: Writer) -> None:
    i = w.value(INT, lambda v: v.rank > 0)
    forms = ("{i}.sum({a})", "{i}.amax({a})", "{i}.to(torch.float32).mean({a})", "{i}.cumsum({a})")
    w.emit(w.choices.pick(forms[:2]).format(i=i.name, a=w.axis(i)))


REDUCTIONS = (
    reduce,
    reduce,
    reduce,
    reduce_all,
    along,
    along,
    several,
    softmax,
    softmax,
    standardise,
    layer_norm,
    layer_norm,
    group_norm,
    channel_norm,
    channel_norm,
    loss,
    loss,
    similarity,
    cross_entropy,
    integer_reduction,
)
