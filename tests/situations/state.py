"""What calls change: inputs, buffers, generators, gradients, modes."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from situations.parts import WIDE, Block, Compile, block, grads, rows, situation, tail, weights


@situation()
def an_input_is_written(compile_: Compile) -> Any:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2.0).add_(y)
        return tail(x)

    x, y = rows(), rows()
    return compile_(f)(x, y), x, y, x._version > 0


@situation()
def a_row_of_an_input_is_written(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        x[1] = x[0] * 3
        x[:, 2:4] += 1.0
        return tail(x)

    x = rows()
    return compile_(f)(x), x


@situation()
def the_input_itself_comes_back(compile_: Compile) -> Any:
    def f(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1.0)
        return x, tail(z)

    x = rows()
    y, z = compile_(f)(x, rows())
    return y is x, x, z


@situation()
def written_through_a_view(compile_: Compile) -> Any:
    def f(base: Tensor) -> Tensor:
        view = base.view(2, -1)
        view[0].zero_()
        return tail(base + 1)

    x = rows()
    return compile_(f)(x), x


@situation(compiles=False, because="returns a view")
def a_view_of_a_written_input_comes_back(compile_: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2.0)
        return x[1:], tail(x)

    x = rows()
    view, y = compile_(f)(x)
    view.add_(1.0)
    return view, x, y


@situation()
def two_inputs_share_memory(compile_: Compile) -> Any:
    def f(x: Tensor, part: Tensor) -> Tensor:
        x.add_(1.0)
        return tail(x[1:] + part)

    g = compile_(f)
    x, z = rows(), rows()
    return g(x, x[1:]), x, g(z, rows(3)), z


@situation()
def the_same_tensor_twice(compile_: Compile) -> Any:
    def f(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1.0)
        return tail(x + y)

    g = compile_(f)
    x, z = rows(), rows()
    return g(x, x), x, g(x, z), x, z


@situation()
def views_of_inputs_come_back(compile_: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.t(), x[:2], x.view(-1), tail(x), x

    x = rows()
    found = compile_(f)(x)
    x.add_(1.0)  # seen through the views
    found[1].mul_(2.0)
    return found, x, found[4] is x


@situation()
def views_of_results_come_back(compile_: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = tail(x)
        return y, y.t(), y[1], y.reshape(2, -1)

    found = compile_(f)(rows())
    found[0].mul_(2.0)  # which the others see
    return found


@situation()
def views_of_results_are_written(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = x * 2.0 + 1.0
        y[0] += 1
        y.view(-1)[3:5].zero_()
        return y

    x = rows(grad=True)
    y = compile_(f)(x)
    y.sum().backward()
    return y, x.grad


@situation()
def a_batch_norm_learns(compile_: Compile) -> Any:
    m = Block(norm=True)
    g = compile_(m)
    found = [g(rows()), g(rows())]
    m.eval()
    found.append(g(rows()))
    m.train()
    found.append(g(rows()))
    return found, m.state_dict()


@situation()
def a_batch_norm_learns_with_gradients(compile_: Compile) -> Any:
    m = Block(norm=True)
    g = compile_(m)
    x = rows(grad=True)
    (g(x).sum() + (g(x) * 2).sum()).backward()
    return grads(x, m), m.state_dict()


@situation()
def a_buffer_counts(compile_: Compile) -> Any:
    class Counting(nn.Module):
        count: Tensor
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(WIDE))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return tail(x - self.mean)

    m = Counting()
    g = compile_(m)
    return g(rows()), g(rows()), m.state_dict()


@situation()
def a_tensor_on_self_is_replaced(compile_: Compile) -> Any:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.zeros(4, WIDE)
            self.steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.h = torch.tanh(self.h * 0.5 + x)
            self.steps += 1
            return tail(self.h)

    m = Remembering()
    g = compile_(m)
    before = m.h
    return [g(rows()) for _ in range(3)], m.h, m.steps, before


@situation()
def a_dropout_draws(compile_: Compile) -> Any:
    m = Block(drop=0.5)
    g = compile_(m)
    x = rows(grad=True)
    y = g(x)
    y.sum().backward()
    found = y, grads(x, m), g(x), torch.rand(2)
    m.eval()
    return found, g(x)


@situation()
def numbers_are_drawn(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        return tail(x + noise) * torch.rand(x.shape[0], 1)

    g = compile_(f)
    found = [g(rows()), g(rows())]
    torch.manual_seed(3)
    return found, g(rows()), torch.get_rng_state()


@situation()
def a_seed_is_set_inside(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        torch.manual_seed(11)
        return tail(x + torch.rand(WIDE))

    g = compile_(f)
    return g(rows()), g(rows()), torch.rand(2)


@situation()
def hooks_of_modules(compile_: Compile) -> Any:
    m = nn.Sequential(Block(), Block())
    seen: list[Tensor] = []
    m[0].register_forward_hook(lambda mod, args, out: out * 2)
    m[1].register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    m[1].register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].clone()))
    x = rows(grad=True)
    y = compile_(m)(x)
    y.sum().backward()
    return y, grads(x, m), seen


@situation()
def hooks_of_tensors(compile_: Compile) -> Any:
    m = Block()
    seen: list[Tensor] = []
    m.lin.weight.register_hook(lambda g: seen.append(g.clone()) or g * 2)
    x = rows(grad=True)
    x.register_hook(lambda g: g + 1)

    def f(x: Tensor) -> Tensor:
        return tail(m(x))

    y = compile_(f)(x)
    y.register_hook(lambda g: g * 3)
    y.sum().backward()
    return y, grads(x, m), seen


@situation()
def gradients_accumulate(compile_: Compile) -> Any:
    m = Block()
    g = compile_(m)
    x, y = rows(grad=True), rows(grad=True)
    a, b = g(x), g(y)
    (a * b).sum().backward(retain_graph=True)
    a.sum().backward()
    return a, b, grads(x, y, m)


@situation()
def gradients_of_gradients(compile_: Compile) -> Any:
    w, b = weights(grad=True)
    x = rows(grad=True)
    y = compile_(block)(x, w, b)
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    first.square().sum().backward()
    return y, first, grads(x, w, b)


@situation()
def steps_of_an_optimizer(compile_: Compile) -> Any:
    m = Block()
    g = compile_(m)
    optimizer = torch.optim.AdamW(m.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = g(rows()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, m.state_dict()


@situation()
def a_whole_step_is_compiled(compile_: Compile) -> Any:
    m = Block()
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    g = compile_(step)
    return [g(rows()) for _ in range(3)], m.state_dict()


@situation()
def an_optimizer_is_compiled(compile_: Compile) -> Any:
    m = nn.Linear(WIDE, WIDE)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    step = compile_(optimizer.step)
    for _ in range(3):
        m(rows()).square().mean().backward()
        step()
        optimizer.zero_grad()
    return m.state_dict()


@situation()
def two_models_of_one_class(compile_: Compile) -> Any:
    a, b = Block(), Block()
    f, g = compile_(a), compile_(b)
    x = rows(grad=True)
    first, second, third = f(x), g(x), f(x)
    (first + 2 * second + 3 * third).sum().backward()
    return first, second, third, grads(x, a, b)


@situation()
def weights_are_replaced(compile_: Compile) -> Any:
    m, other = Block(), Block()
    g = compile_(m)
    found = [g(rows())]
    m.load_state_dict(other.state_dict())
    found.append(g(rows()))
    m.lin.weight = nn.Parameter(torch.ones(WIDE, WIDE))
    found.append(g(rows()))
    m.lin.weight.data = torch.eye(WIDE)
    found.append(g(rows()))
    m.double()
    return found, g(rows(dtype=torch.float64))


@situation()
def weights_are_tied(compile_: Compile) -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return tail(self.two(F.gelu(self.one(x))))

    m = Tied()
    x = rows(grad=True)
    y = compile_(m)(x)
    y.square().sum().backward()
    return y, grads(x, m)


@situation()
def a_weight_is_parametrised(compile_: Compile) -> Any:
    m = nn.utils.parametrizations.weight_norm(nn.Linear(WIDE, WIDE))
    x = rows(grad=True)

    def f(x: Tensor) -> Tensor:
        return tail(m(x))

    y = compile_(f)(x)
    y.square().sum().backward()
    return y, grads(x, m)


@situation()
def a_copy_of_a_compiled_model(compile_: Compile) -> Any:
    m = Block()
    g = compile_(m)
    x = rows()
    first = g(x)
    other = copy.deepcopy(g)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2.0)
    return first, other(x), g(x)


@situation()
def compiled_in_place(compile_: Compile) -> Any:
    m = nn.Sequential(Block(), Block())
    m[0] = compile_(m[0])
    x = rows(grad=True)
    y = m(x)
    y.sum().backward()
    return y, grads(x, m)


@situation()
def a_checkpoint(compile_: Compile) -> Any:
    m = Block(drop=0.2)

    def f(x: Tensor) -> Tensor:
        return tail(checkpoint(m, x, use_reentrant=False))

    x = rows(grad=True)
    y = compile_(f)(x)
    y.square().sum().backward()
    return y, grads(x, m)


@situation(because="calls other graphs")
def a_function_with_its_own_backward(compile_: Compile) -> Any:
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * 100 + x

    def f(x: Tensor) -> Tensor:
        return Doubling.apply(x * 2) + 1

    x = rows(grad=True)
    y = compile_(f)(x)
    y.sum().backward()
    z = compile_(tail)(y.detach())
    return y, z, x.grad


@situation()
def gradients_are_switched_inside(compile_: Compile) -> Any:
    w, b = weights(grad=True)

    def f(x: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            y = block(x, w, b)
        z = tail(x + y)
        with torch.set_grad_enabled(False):
            v = tail(z)
        return y, z, v, z.detach()

    x = rows(grad=True)
    found = compile_(f)(x)
    found[1].square().sum().backward()
    return found, x.grad, w.grad


@situation()
def no_gradients_around(compile_: Compile) -> Any:
    m = Block()
    g = compile_(m)
    x = rows(grad=True)
    with torch.no_grad():
        a = g(x)
    with torch.inference_mode():
        b = g(x)
        c = g(rows())
    return a, b.is_inference(), b.clone(), c.clone(), g(x)


@situation()
def gradients_inside(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return tail(x) * 2

    x = rows(grad=True)
    with torch.no_grad():
        y = compile_(f)(x)
    y.square().sum().backward()
    return y, x.grad


@situation()
def what_asks_for_gradients_changes(compile_: Compile) -> Any:
    w, b = weights()
    g = compile_(block)
    found = []
    for asks in ((True, False), (False, True), (True, True), (False, False)):
        x = rows(grad=asks[0])
        v = w.clone().requires_grad_(asks[1])
        y = g(x, v, b)
        if y.requires_grad:
            y.square().sum().backward()
        found.append((y, x.grad, v.grad))
    return found


@situation()
def an_inplace_operator_on_a_result(compile_: Compile) -> Any:
    m = Block()
    x = rows(grad=True)
    y = compile_(m)(x)
    y.mul_(2.0)
    y[0].zero_()
    y.sum().backward()
    return y, grads(x, m)


@situation(because="could not trace")
def a_graph_by_a_transform(compile_: Compile) -> Any:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return tail(x @ w).square().sum()

    def f(w: Tensor, x: Tensor) -> Tensor:
        return torch.func.grad(loss)(w, x)

    w, _ = weights()
    return compile_(f)(w, rows()), compile_(tail)(rows())


@situation()
def mapped_over_a_batch(compile_: Compile) -> Any:
    w, b = weights()
    g = compile_(block)
    f = compile_(lambda x: torch.vmap(lambda row: tail(row * 2))(x))
    return f(rows()), g(rows(), w, b)
