"""Steps that multiply matrices, convolve, attend, and pool."""

from __future__ import annotations

from fuzzing.writer import FLOAT, Value, Writer


def ranked(w: Writer, fewest: int, most: int = 9) -> Value:
    return w.value(FLOAT, lambda v: fewest <= v.rank <= most)


def width(w: Writer) -> int:
    return w.choices.pick(w.limits.features)


def linear(w: Writer) -> None:
    x = ranked(w, 1)
    made = f"nn.Linear({w.fixed(x, -1)}, {width(w)}, bias={w.choices.chance(70)})"
    w.emit(f"{w.part(made)}({x.name})")


def with_weight(w: Writer) -> None:
    """A product with a parameter, in the spellings of people."""
    x = ranked(w, 2)
    depth, out = w.fixed(x, -1), width(w)
    turned = w.part(f"nn.Parameter(torch.randn({out}, {depth}))")
    plain = w.part(f"nn.Parameter(torch.randn({depth}, {out}))")
    bias = w.part(f"nn.Parameter(torch.randn({out}))")
    forms = (
        "F.linear({x}, {t})",
        "F.linear({x}, {t}, {b})",
        "{x} @ {p}",
        "torch.matmul({x}, {t}.t())",
        "{x} @ {p} + {b}",
        "torch.addmm({b}, {x}, {p})",
        "F.linear({x}, {t} * 0.5)",
        "torch.addmm({b}, {x}, {t}.t(), beta=0.5, alpha=2.0)",
        "torch.einsum('...i,ij->...j', {x}, {p})",
        "torch.tensordot({x}, {p}, dims=1)",
        "{x} @ {t}[0]",
        "torch.mv({x}, {t}[0])",
        "F.linear({x}, torch.tanh({t}), {b})",
        "torch.mm({x}, {p})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, t=turned, p=plain, b=bias))


def product(w: Writer) -> None:
    """Two values multiplied as matrices, or one with itself."""
    x = ranked(w, 2)
    y = w.value(FLOAT, lambda v: v.rank >= 2 and v.shape[-1] == x.shape[-1])
    forms = (
        "{x} @ {y}.mT",
        "torch.matmul({x}, {y}.transpose(-1, -2)) * 0.3",
        "torch.bmm({x}, {y}.mT)",
        "torch.einsum('bid,bjd->bij', {x}, {y})",
        "torch.einsum('bid,bjd->bji', {x}, {y})",
        "torch.einsum('id,jd->ij', {x}, {y})",
        "torch.einsum('bhid,bhjd->bhij', {x}, {y})",
        "torch.einsum('bd,bd->b', {x}, {y})",
        "torch.einsum('bi,bj->bij', {x}, {y})",
        "torch.softmax({x} @ {y}.mT * 0.5, -1) @ {y}",
        "torch.baddbmm({x} @ {x}.mT, {x}, {x}.mT, alpha=0.5)",
        "{x}.mT @ {y}",
        "torch.cdist({x}, {y} + 0.1)",
        "torch.einsum('bij,bik->bjk', {x}, {y})",
        "torch.einsum('bij->bji', {x})",
        "torch.einsum('bij->b', {x})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, y=y.name))


def attention(w: Writer) -> None:
    x = ranked(w, 3, 4)
    more = w.choices.pick(("", ", is_causal=True", ", scale=0.3"))
    w.emit(f"F.scaled_dot_product_attention({x.name}, {x.name} * 0.5, torch.tanh({x.name}){more})")


def convolution(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: 3 <= v.rank <= 5 and v.follows(0))
    spatial, channels = x.rank - 2, w.fixed(x, 1)
    groups = w.choices.pick([g for g in (1, 1, 1, 2, 3, channels) if channels % g == 0])
    out = groups * w.choices.pick((1, 2, 3, 4))
    window = w.choices.pick((1, 2, 3, 3))
    stride, dilation = w.choices.pick((1, 1, 2)), w.choices.pick((1, 1, 1, 2))
    padding = w.choices.pick(("0", "1", "2", '"same"', '"valid"'))
    more = f"groups={groups}, bias={w.choices.chance(70)}, dilation={dilation}"
    if w.choices.chance(65):
        kind = f"nn.Conv{spatial}d({channels}, {out}, {window}, stride={stride}, "
        kind += f"padding={padding}, {more})"
    else:
        padding, extra = w.choices.pick((0, 1)), w.choices.pick((0, stride - 1))
        kind = f"nn.ConvTranspose{spatial}d({channels}, {out}, {window}, stride={stride}, "
        kind += f"padding={padding}, output_padding={extra}, {more})"
    w.emit(f"{w.part(kind)}({x.name})")


def pool(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: 3 <= v.rank <= 5)
    n = x.rank - 2
    window, stride = w.choices.pick((2, 3)), w.choices.pick((1, 2, 3))
    padding = w.choices.pick((0, 0, 1))
    size = w.choices.pick((1, 1, 2, 3))
    forms = (
        "F.max_pool{n}d({x}, {w}, {s}, {p})",
        "F.avg_pool{n}d({x}, {w}, {s}, {p})",
        "F.max_pool{n}d({x}, {w}, ceil_mode=True)",
        "F.adaptive_avg_pool{n}d({x}, {z})",
        "F.avg_pool{n}d({x}, {w}, {s}, {p}, count_include_pad=False)",
        "F.adaptive_max_pool{n}d({x}, {z})",
        "F.max_pool{n}d(F.max_pool{n}d({x}, 2), 2)",
        "F.avg_pool{n}d(F.relu({x}), {w})",
        "F.lp_pool{n}d({x}, 2.0, {w})",
        "F.relu(F.max_pool{n}d({x}, {w}, {s}))",
        "F.max_pool1d({x}, {w})",
    )
    made = w.choices.pick(forms).format(x=x.name, n=n, w=window, s=stride, p=padding, z=size)
    w.emit(made)


def tail(w: Writer) -> None:
    """A Linear or a convolution with what often follows it: what laws and epilogues look for."""
    x = ranked(w, 2)
    depth, out = w.fixed(x, -1), width(w)
    made = w.emit(f"{w.part(f'nn.Linear({depth}, {out}, bias={w.choices.chance(70)})')}({x.name})")
    scale = w.part(f"nn.Parameter(torch.randn({out}))")
    forms = (
        "({x} * {s}).sum(-1, keepdim=True)",
        "F.relu({x} - 0.3) * 2.0",
        "{x}.mean(-1)",
        "torch.logsumexp({x}, -1, keepdim=True)",
        "{x} * {s} + {x}",
        "{x} + {x}.detach()",
        "torch.sum({x} / 2.0, -1, keepdim=True) * 1.5",
        "{x}.amax(-1)",
        "F.avg_pool1d({x}, 2)",
        "F.max_pool1d({x}, 2).sum(-1)",
        "torch.clamp({x} * 2.0, -1.0, 1.0).mean(0)",
        "F.gelu({x} + {s}) * {x}",
        "torch.softmax({x}, -1) * {s}",
        "{x}.sum(-1) + {x}.amin(-1)",
        "({x} + {s}).mean(0, keepdim=True)",
    )
    w.emit(w.choices.pick(forms).format(x=made.name, s=scale))


def convolved_tail(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: 3 <= v.rank <= 5 and v.follows(0))
    spatial, channels = x.rank - 2, w.fixed(x, 1)
    kind = w.choices.pick(("Conv", "Conv", "ConvTranspose"))
    stride = w.choices.pick((1, 2))
    out = w.choices.pick((2, 4, 6))
    made = f"nn.{kind}{spatial}d({channels}, {out}, 3, stride={stride}, "
    made += f"padding={w.choices.pick((0, 1))})"
    y = w.emit(f"{w.part(made)}({x.name})")
    axes = list(range(2, y.rank))
    bias = w.part(f"nn.Parameter(torch.randn({out}, {', '.join('1' * spatial)}))")
    forms = (
        "{x}.mean({a})",
        "{x}.mean({a}, keepdim=True) * 2.0",
        "F.relu({x}) + {b}",
        "{x}.sum({a})",
        "F.avg_pool{n}d({x}, 2)",
        "torch.tanh({x}.amin(1, keepdim=True))",
        "{x}.sum(1, keepdim=True)",
        "F.adaptive_avg_pool{n}d({x} * 0.5, 1)",
        "({x} + {b}).mean({a})",
        "{x}.mean([0])",
        "F.hardtanh(F.max_pool{n}d({x}, 2)).mean({a}, keepdim=True)",
        "torch.softmax({x}, 1)",
        "{x} - {x}.mean({a}, keepdim=True)",
        "F.avg_pool{n}d({x} * 3.0, 2, 1)",
    )
    w.emit(w.choices.pick(forms).format(x=y.name, a=axes, n=spatial, b=bias))


CONTRACTIONS = (
    linear,
    linear,
    linear,
    with_weight,
    with_weight,
    product,
    product,
    attention,
    convolution,
    convolution,
    convolution,
    pool,
    pool,
    pool,
    tail,
    tail,
    convolved_tail,
    convolved_tail,
)
