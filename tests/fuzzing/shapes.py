"""Steps that move elements: views, slices, joins, repeats, gathers."""

from __future__ import annotations

from fuzzing.pointwise import UNARY
from fuzzing.writer import FLOAT, Refused, Value, Writer


def ranked(w: Writer, fewest: int = 1) -> Value:
    return w.value(FLOAT, lambda v: v.rank >= fewest)


def merge(w: Writer) -> None:
    """Two neighbouring axes as one, the batch among them at times."""
    x = ranked(w, 2)
    at = w.choices.integer(0, x.rank - 2)
    forms = ["{x}.flatten({a}, {b})", "torch.flatten({x}, {a}, {b})"]
    if not (x.follows(at) or x.follows(at + 1)):
        sizes = [*x.sizes[:at], str(x.shape[at] * x.shape[at + 1]), *x.sizes[at + 2 :]]
        forms += [f"{x.name}.reshape({', '.join(sizes)})"]
    w.emit(w.choices.pick(forms).format(x=x.name, a=at, b=at + 1))


def cut(w: Writer) -> None:
    """An axis as two."""
    x = ranked(w)
    axis = w.axis(x, batch=0) % x.rank
    size = w.fixed(x, axis)
    factor = w.choices.pick([d for d in range(1, size + 1) if size % d == 0])
    sizes = [*x.sizes[:axis], str(size // factor), str(factor), *x.sizes[axis + 1 :]]
    forms = ("{x}.reshape({s})", "{x}.unflatten({a}, ({p}, {f}))")
    text = w.choices.pick(forms)
    w.emit(text.format(x=x.name, s=", ".join(sizes), a=axis, p=size // factor, f=factor))


def reshape(w: Writer) -> None:
    """Everything behind the batch cut anew, or everything."""
    x = ranked(w)
    rest = [w.fixed(x, i) for i in range(1, x.rank)]
    count = 1
    for size in rest:
        count *= size
    sizes = []
    for _ in range(w.choices.integer(0, 3)):
        factor = w.choices.pick([d for d in range(1, count + 1) if count % d == 0])
        sizes.append(factor)
        count //= factor
    sizes.append(count)
    lead = "-1" if w.choices.chance(60) else x.sizes[0]
    w.emit(f"{x.name}.reshape({', '.join([lead, *map(str, sizes)])})")


def permute(w: Writer) -> None:
    x = ranked(w, 2)
    order = list(range(x.rank))
    first = 0 if w.choices.chance(20) else 1
    for i in range(first, x.rank):
        j = w.choices.integer(i, x.rank - 1)
        order[i], order[j] = order[j], order[i]
    forms = ["{x}.permute({o})", "{x}.permute({o}).contiguous()", "torch.permute({x}, ({o}))"]
    a, b = w.choices.integer(0, x.rank - 1), w.choices.integer(0, x.rank - 1)
    forms += [f"{{x}}.transpose({a}, {b})", f"{{x}}.movedim({a}, {b})", "{x}.mT"]
    w.emit(w.choices.pick(forms).format(x=x.name, o=", ".join(map(str, order))))


def squeeze(w: Writer) -> None:
    x = w.value()
    ones = [i for i in range(x.rank) if x.shape[i] == 1 and not x.follows(i)]
    forms = [f"{{x}}.unsqueeze({w.choices.integer(-x.rank - 1, x.rank)})", "{x}[None]"]
    forms += [f"{{x}}.squeeze({i})" for i in ones] + ["{x}.squeeze()"] * bool(ones)
    forms += ["{x}[:, None]", "{x}[..., None]"] * bool(x.rank)
    w.emit(w.choices.pick(forms).format(x=x.name))


def expand(w: Writer) -> None:
    x = w.value()
    sizes = [
        str(w.choices.pick((2, 3))) if size == "1" and w.choices.chance(70) else size
        for size in x.sizes
    ]
    front = ["2"] if w.choices.chance(30) else []
    forms = ("{x}.expand({s})", "torch.broadcast_to({x}, ({t}))", "{x}.expand({s}).contiguous()")
    shape = [*front, *sizes]
    one_by_one = "".join(f"{size}, " for size in shape).rstrip()
    w.emit(w.choices.pick(forms).format(x=x.name, s=", ".join(shape), t=one_by_one))


def repeat(w: Writer) -> None:
    x = ranked(w)
    times = [str(w.choices.pick((1, 1, 2, 3))) for _ in range(x.rank)]
    forms = (
        f"{{x}}.repeat({', '.join(times)})",
        f"{{x}}.repeat(2, {', '.join(times)})",
        f"torch.tile({{x}}, ({', '.join(times)},))",
        f"{{x}}.repeat_interleave(2, {w.axis(x)})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name))


def slice_(w: Writer) -> None:
    x = ranked(w)
    axis = w.axis(x) % x.rank
    size, lead = x.shape[axis], ":, " * axis
    start = w.choices.integer(0, size - 1)
    stop = w.choices.integer(start + 1, size)
    step = w.choices.pick((1, 1, 1, 2, 3))
    forms = [
        f"{{x}}[{lead}{start}:{stop}:{step}]",
        f"{{x}}[{lead}{start}:]",
        f"{{x}}[{lead}::{step}]",
        f"{{x}}[{lead}-1:]",
        f"{{x}}[{lead}:-1]",
        f"{{x}}[{lead}{start}]",
        f"{{x}}[{lead}-1]",
        f"{{x}}.narrow({axis}, {start}, {stop - start})",
        f"{{x}}.select({axis}, {start})",
        "{x}[..., 0]",
        f"{{x}}[..., {-w.choices.integer(1, 3)}:]",
    ]
    w.emit(w.choices.pick(forms).format(x=x.name))


def parts(w: Writer) -> None:
    """Several parts of an axis, which then meet again."""
    x = ranked(w)
    axis = w.axis(x, batch=3)
    size = x.shape[axis]
    forms = [
        f"{{x}}.chunk(2, {axis})",
        f"{{x}}.split({max(1, (size + 1) // 2)}, {axis})",
        f"{{x}}.unbind({axis})",
        f"torch.tensor_split({{x}}, 2, {axis})",
    ]
    if size > 2:
        forms.append(f"torch.split({{x}}, [1, {size - 2}, 1], {axis})")
    made = w.emit_several(w.choices.pick(forms).format(x=x.name))
    a, b = made[0].name, made[-1].name
    combined = (
        "{a} * torch.sigmoid({b})",
        "{a} + {b}",
        "torch.cat([{b}, {a}], {x})",
        "torch.stack([{b}, {a}], {x})",
        "torch.maximum({a}, {b})",
    )
    w.emit(w.choices.pick(combined).format(a=a, b=b, x=axis))


def cat(w: Writer) -> None:
    x = ranked(w)
    axis = w.axis(x)
    at = axis % x.rank

    def fits(y: Value) -> bool:
        pairs = ((x.first, y.first), (x.second, y.second))
        return y.rank == x.rank and all(
            [*a.shape[:at], *a.shape[at + 1 :]] == [*b.shape[:at], *b.shape[at + 1 :]]
            for a, b in pairs
        )

    others = [w.value(FLOAT, fits).name for _ in range(w.choices.integer(1, 2))]
    names = [x.name, *others]
    if w.choices.chance(30):
        names.append(w.choices.pick(UNARY).format(x=x.name))
    if w.choices.chance(40):
        names.reverse()
    w.emit(f"torch.{w.choices.pick(('cat', 'cat', 'concat'))}([{', '.join(names)}], {axis})")


def stack(w: Writer) -> None:
    x = w.value()
    y = w.value(
        FLOAT, lambda v: v.first.shape == x.first.shape and v.second.shape == x.second.shape
    )
    names = [x.name, y.name, w.choices.pick(UNARY).format(x=x.name)][: w.choices.integer(2, 3)]
    forms = (
        f"torch.stack([{', '.join(names)}], {w.choices.integer(-x.rank - 1, x.rank)})",
        f"torch.hstack([{', '.join(names)}])",
        f"torch.vstack([{', '.join(names)}])",
    )
    w.emit(w.choices.pick((forms[0], *forms)))


def pad(w: Writer) -> None:
    x = ranked(w)
    count = w.choices.integer(1, min(x.rank, 3))
    widths = [w.choices.pick((0, 1, 2, 3, -1)) for _ in range(2 * count)]
    forms = (
        "F.pad({x}, {w})",
        "F.pad({x}, {w}, value=0.7)",
        'F.pad({x}, {a}, mode="replicate")',
        "F.pad({x}, {w}, value=-1.5)",
    )
    text = w.choices.pick(forms)
    w.emit(text.format(x=x.name, w=widths, a=[abs(i) for i in widths]))


def roll(w: Writer) -> None:
    x = ranked(w)
    axes = w.axes(x)
    shifts = [w.choices.integer(-3, 5) for _ in axes]
    w.emit(f"torch.roll({x.name}, {shifts}, {axes})")


def shuffle(w: Writer) -> None:
    x = ranked(w, 3)
    factor = w.choices.pick((2, 2, 3))
    forms = (
        "F.pixel_shuffle({x}, {f})",
        "F.pixel_unshuffle({x}, {f})",
        "F.channel_shuffle({x}, {f})",
        "{x}.unfold(-1, {f}, 1)",
        "F.interpolate({x}, scale_factor={f})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name, f=factor))


def triangle(w: Writer) -> None:
    x = ranked(w, 2)
    forms = (
        "torch.tril({x})",
        "torch.triu({x}, 1)",
        "{x}.diagonal(0, -2, -1)",
        "{x}.flip(-1)",
        "{x}.rot90(1, (-2, -1))",
        "{x}.tril(-1) + {x}",
    )
    w.emit(w.choices.pick(forms).format(x=x.name))


def made(w: Writer) -> None:
    """Tensors that the forward makes by itself."""
    x = ranked(w)
    size = x.sizes[-1]
    forms = (
        "{x} + torch.arange({n}, dtype={x}.dtype, {d})",
        "{x} * torch.linspace(0.0, 1.0, {m}, {d})",
        "{x} + torch.ones({n}, dtype={x}.dtype, {d})",
        "{x} - {x}.new_full(({n},), 0.5)",
        "{x} * torch.eye({n}, dtype={x}.dtype, {d})[0]",
        "{x} + {x}.new_zeros({n})",
        "torch.arange({n}, {d})",
        "{x} + torch.arange({n}, {d})",
        "torch.where(torch.arange({n}, {d}) > 1, {x}, 0.0)",
        "{x} * torch.tensor([0.5, -2.0, 1e-3], {d})[0]",
    )
    device = f"device={x.name}.device"
    text = w.choices.pick(forms).format(x=x.name, n=size, m=x.shape[-1], d=device)
    if "linspace" in text:
        w.fixed(x, -1)
    w.emit(text)


def gather(w: Writer) -> None:
    x = ranked(w)
    axis = w.axis(x, batch=0)
    size = w.fixed(x, axis)
    rows = [w.choices.integer(0, size - 1) for _ in range(w.choices.integer(1, 4))]
    lead = ":, " * (axis % x.rank)
    forms = (
        f"{{x}}[{lead}{rows}]",
        f"{{x}}.index_select({axis}, torch.tensor({rows}, device={{x}}.device))",
        f"torch.take_along_dim({{x}}, torch.argsort({{x}}, {axis}), {axis})",
    )
    w.emit(w.choices.pick(forms).format(x=x.name))


def embed(w: Writer) -> None:
    """A table of rows, looked up by an input of numbers."""
    if len(w.inputs) > 3:
        raise Refused
    numbers = w.choices.integer(2, 9)
    width = w.choices.pick(w.limits.features)
    sizes = [w.choices.pick(w.limits.sizes)] * w.choices.integer(0, 1)
    index = w.input(sizes, f"torch.randint(0, {numbers}, ({{}},))")
    w.emit(f"{w.part(f'nn.Embedding({numbers}, {width})')}({index.name})")


def write(w: Writer) -> None:
    """Elements written in place, into a copy."""
    x = ranked(w)
    axis = w.axis(x, batch=0)
    size = w.fixed(x, axis)
    at = w.choices.integer(0, size - 1)
    forms = (
        f"{{x}}.clone().index_fill_({axis}, torch.tensor([{at}], device={{x}}.device), 0.5)",
        f"torch.select_scatter({{x}}, {{x}}.select({axis}, 0) * 2.0, {axis}, {at})",
        "{x}.clone().fill_(0.25) + {x}",
    )
    w.emit(w.choices.pick(forms).format(x=x.name))


SHAPES = (
    merge,
    cut,
    reshape,
    reshape,
    permute,
    permute,
    squeeze,
    expand,
    repeat,
    slice_,
    slice_,
    slice_,
    parts,
    parts,
    cat,
    cat,
    stack,
    pad,
    roll,
    shuffle,
    triangle,
    made,
    gather,
    embed,
    write,
)
