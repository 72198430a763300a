"""Control flow, closures and Python around graphs."""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from situations.parts import WIDE, Block, Compile, block, grads, rows, situation, tail, weights

COUNT = {"calls": 0}
SCALE = 2.0
TABLE = torch.arange(float(WIDE))


@situation()
def a_plain_function(compile_: Compile) -> Any:
    w, b = weights(grad=True)
    x = rows(grad=True)
    y = compile_(block)(x, w, b)
    y.sum().backward()
    return y, grads(x, w, b)


@situation()
def a_closure_over_a_tensor(compile_: Compile) -> Any:
    w, b = weights()

    def f(x: Tensor) -> Tensor:
        return block(x, w, b)

    g = compile_(f)
    first = g(rows())
    w.mul_(0.5)  # seen by the next call
    return first, g(rows())


@situation()
def a_closure_over_a_module(compile_: Compile) -> Any:
    m = Block()
    g = compile_(lambda x: m(x) + x)
    y = g(rows())
    with torch.no_grad():
        m.lin.weight.add_(1.0)
    return y, g(rows())


@situation()
def nested_functions(compile_: Compile) -> Any:
    w, b = weights()

    def f(x: Tensor) -> Tensor:
        def inner(y: Tensor, scale: float) -> Tensor:
            return tail(block(y, w, b)) * scale

        return inner(inner(x, 2.0), 3.0)

    return compile_(f)(rows())


@situation()
def a_break_in_the_middle(compile_: Compile) -> Any:
    m, n = Block(), Block()

    def f(x: Tensor) -> Tensor:
        h = m(x)
        torch._dynamo.graph_break()
        return n(h) + h

    x = rows(grad=True)
    y = compile_(f)(x)
    y.sum().backward()
    return y, grads(x, m, n)


@situation()
def a_break_in_a_loop(compile_: Compile) -> Any:
    layers = [Block() for _ in range(3)]
    seen: list[tuple[int, ...]] = []

    def f(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
            torch._dynamo.graph_break()
            seen.append(tuple(x.shape))
        return x

    x = rows(grad=True)
    y = compile_(f)(x)
    y.sum().backward()
    return y, seen, grads(x, *layers)


@situation()
def a_branch_on_values(compile_: Compile) -> Any:
    w, b = weights()

    def f(x: Tensor) -> Tensor:
        y = block(x, w, b)
        if x.sum() > 0:
            return tail(y)
        return y * 3.0

    g = compile_(f)
    return [g(torch.full((4, WIDE), s)) for s in (1.0, -1.0, 0.5)]


@situation()
def a_number_read_from_a_tensor(compile_: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, float]:
        s = x.abs().max().item()
        return tail(x / s), s

    return compile_(f)(rows())


@situation()
def a_global_number_changes(compile_: Compile) -> Any:
    global SCALE

    def f(x: Tensor) -> Tensor:
        return tail(x * SCALE)

    g, found = compile_(f), []
    for scale in (2.0, 3.0, 2.0):
        SCALE = scale
        found.append(g(torch.ones(4, WIDE).cumsum(1)))
    SCALE = 2.0
    return found


@situation()
def globals_are_counted_and_changed(compile_: Compile) -> Any:
    COUNT["calls"] = 0
    TABLE.copy_(torch.arange(float(WIDE)))

    def f(x: Tensor) -> Tensor:
        COUNT["calls"] += 1
        TABLE.add_(1.0)
        return tail(x + TABLE)

    g = compile_(f)
    return [g(rows()) for _ in range(3)], dict(COUNT), TABLE.clone()


@situation()
def a_list_is_appended_to(compile_: Compile) -> Any:
    kept: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        y = tail(x)
        kept.append(y)
        return y + 1

    g = compile_(f)
    return g(rows()), g(rows()), kept


@situation()
def numbers_strings_and_enums_decide(compile_: Compile) -> Any:
    class Way(enum.Enum):
        UP = 1
        DOWN = 2

    def f(x: Tensor, n: int, way: Way, name: str = "plain", *, flag: bool = False) -> Tensor:
        x = x * n if way is Way.UP else x / n
        x = tail(x) if name == "plain" else x.relu() + 1
        return -x if flag else x

    g = compile_(f)
    x = rows()
    return [
        g(x, 2, Way.UP),
        g(x, 3, Way.DOWN, "other"),
        g(x, 2, Way.UP, flag=True),
        g(x, n=2, way=Way.UP, name="plain"),
    ]


@situation()
def any_number_of_arguments(compile_: Compile) -> Any:
    def f(*xs: Tensor, **named: Tensor) -> Tensor:
        total = sum(xs[1:], xs[0])
        for name in sorted(named):
            total = total * named[name]
        return tail(total)

    g = compile_(f)
    a, b, c = rows(), rows(), rows()
    return g(a, b), g(a, b, c), g(a, scale=b), g(a, b, first=c, second=a)


@situation()
def containers_in_and_out(compile_: Compile) -> Any:
    def f(given: dict[str, Any]) -> dict[str, Any]:
        a, (b, rest) = given["a"], given["pair"]
        y = tail(a + b)
        return {"y": y, "none": None, "list": [y * 2, rest, {"deep": y.sum()}], "n": 3}

    return compile_(f)({"a": rows(), "pair": (rows(), "text")})


@situation()
def a_partial_a_lambda_and_a_method(compile_: Compile) -> Any:
    class Owner:
        def __init__(self) -> None:
            self.w, self.b = weights()

        def method(self, x: Tensor) -> Tensor:
            return block(x, self.w, self.b)

    owner = Owner()
    x = rows()
    part = functools.partial(block, w=owner.w, b=owner.b)
    return compile_(owner.method)(x), compile_(lambda v: tail(v))(x), compile_(part)(x)


@situation()
def a_generator_function(compile_: Compile) -> Any:
    def parts(x: Tensor) -> Iterator[Tensor]:
        for piece in x.chunk(2, 0):
            yield tail(piece)

    def f(x: Tensor) -> Tensor:
        return torch.cat([p * i for i, p in enumerate(parts(x), 1)])

    return compile_(f)(rows())


@situation()
def exceptions_are_caught(compile_: Compile) -> Any:
    def f(x: Tensor, wide: bool) -> Tensor:
        try:
            if wide:
                raise ValueError("wide")
            return tail(x)
        except ValueError:
            return tail(x * 2)
        finally:
            x = x + 1

    g = compile_(f)
    return g(rows(), True), g(rows(), False)


@situation()
def an_error_comes_out(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = tail(x)
        if x.shape[0] == 3:
            raise KeyError("three")
        return y

    g = compile_(f)
    told = ""
    try:
        g(rows(3))
    except KeyError as error:
        told = str(error)
    return told, g(rows(4))


@situation()
def recursion(compile_: Compile) -> Any:
    def f(x: Tensor, depth: int) -> Tensor:
        return tail(x) if depth == 0 else f(x * 0.5, depth - 1) + x

    return compile_(f)(rows(), 3)


@situation()
def compiled_inside_of_compiled(compile_: Compile) -> Any:
    m = Block()
    inner = compile_(m)

    def f(x: Tensor) -> Tensor:
        return tail(inner(x)) + inner(x)

    x = rows(grad=True)
    y = compile_(f)(x)
    y.sum().backward()
    return y, grads(x, m), inner(rows())


@situation()
def a_part_is_left_out(compile_: Compile) -> Any:
    m, n = Block(), Block()

    @torch.compiler.disable
    def left(x: Tensor) -> Tensor:
        return n(x) * 2

    def f(x: Tensor) -> Tensor:
        return tail(left(m(x)))

    x = rows(grad=True)
    y = compile_(f)(x)
    y.sum().backward()
    return y, grads(x, m, n)


@situation()
def one_graph_is_asked_for(compile_: Compile) -> Any:
    m = Block()
    x = rows(grad=True)
    y = compile_(m, fullgraph=True)(x)
    y.sum().backward()
    return y, grads(x, m)


@situation()
def breaks_are_an_error_where_one_graph_is_asked_for(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = tail(x)
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break()
        return y

    with contextlib.suppress(torch._dynamo.exc.Unsupported):
        compile_(f, fullgraph=True)(rows())
    return compile_(f)(rows())


@situation()
def a_decorated_method(compile_: Compile) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDE, WIDE)

        @compile_
        def forward(self, x: Tensor) -> Tensor:
            return tail(self.lin(x))

    a, b = Net(), Net()
    x = rows()
    return a(x), b(x), a(x)


@situation()
def threads(compile_: Compile) -> Any:
    w, b = weights()
    g = compile_(block)
    x = [rows() for _ in range(4)]
    found: dict[int, Tensor] = {}

    def work(i: int) -> None:
        found[i] = g(x[i], w, b)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [found[i] for i in range(4)]


@situation()
def too_many_versions(compile_: Compile) -> Any:
    """Behind torch's limit of recompilations a function runs without us."""

    def f(x: Tensor, n: int) -> Tensor:
        return tail(x) * (n if n % 2 else -n)

    g = compile_(f, dynamic=False)
    return [g(torch.ones(4, WIDE), n) for n in range(11)]


@situation()
def python_of_all_kinds(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        pairs = {i: x[i] * i for i in range(x.shape[0]) if i != 1}
        first, *others = pairs.values()
        with contextlib.nullcontext():
            for y in reversed(others):
                first = first + y
        values = [v.sum() for v in (first, *others)]
        return tail(torch.stack(values))

    return compile_(f)(rows())


@situation(because="calls other graphs")
def an_operator_of_control_flow(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda v: v * 2.0, lambda v: v - 1.0, (x,))
        return y + 1

    g = compile_(f)
    w = compile_(tail)
    return g(torch.ones(4, WIDE)), g(-torch.ones(4, WIDE)), w(rows())
