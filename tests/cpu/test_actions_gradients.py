"""Gradients enabled is the normal case: autograd around the kernels behaves as around eager."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from zoo import acted
from zoo.acting import EITHER, RUNS, agree, both, compiled, rows, same, watched

pytestmark = pytest.mark.usefixtures("extensions")
X6 = rows(6)


@pytest.fixture
def pair() -> tuple[nn.Module, nn.Module]:
    return compiled(acted.Plain(), *X6(4))


def leaf(n: int) -> Tensor:
    return X6(n)[0].clone().requires_grad_()


def grads(module: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in module.parameters()]


def compare(
    pair: tuple[nn.Module, nn.Module],
    action: Callable[[nn.Module, Tensor], Any],
    expected: str = RUNS,
) -> None:
    """What an action returns, and the gradients that it leaves, are eager's at two batch sizes."""
    fused = pair[0]
    for n in (4, 7):
        found = []
        for module in pair:
            module.zero_grad(set_to_none=True)
            x = leaf(n)
            quiet = watched(fused, expected) if module is fused else contextlib.nullcontext()
            torch.manual_seed(9)
            with quiet:
                result = action(module, x)
            found.append((result, x.grad, grads(module)))
        assert [g is None for g in found[0][2]] == [g is None for g in found[1][2]]
        assert (found[0][1] is None) == (found[1][1] is None)
        same(*found)


def test_requires_grad_and_grad_fn(pair: tuple[nn.Module, nn.Module]) -> None:
    contexts = [contextlib.nullcontext, torch.no_grad, torch.inference_mode, torch.enable_grad]
    for frozen in (False, True):
        both(*pair, lambda m, frozen=frozen: m.requires_grad_(not frozen))
        for x in (X6(4)[0], leaf(4)):
            for context in contexts:
                with context(), watched(pair[0]):
                    ours = pair[0](x)
                with context():
                    theirs = pair[1](x)
                for name in ("requires_grad", "is_leaf", "is_inference"):
                    mine, other = (getattr(y, name) for y in (ours, theirs))
                    mine, other = (v() if callable(v) else v for v in (mine, other))
                    assert mine == other, (name, frozen, x.requires_grad, context)
                assert (ours.grad_fn is None) == (theirs.grad_fn is None)
                same(ours, theirs)


def test_a_plain_training_loop(pair: tuple[nn.Module, nn.Module]) -> None:
    losses = []
    for module in pair:
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
        for step in range(5):
            (x,) = X6(4 + step)
            optimizer.zero_grad()
            with watched(module) if module is pair[0] else contextlib.nullcontext():
                loss = (module(x) - 1.0).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    same(losses[:5], losses[5:])
    same(pair[0].state_dict(), pair[1].state_dict())


def test_double_backward(pair: tuple[nn.Module, nn.Module]) -> None:
    def penalty(module: nn.Module, x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        value = gradient.square().sum()
        value.backward()
        return value

    compare(pair, penalty)


def test_gradients_pass_a_numerical_check() -> None:
    """In float64 the original forward runs; its double backward is exact there."""
    fused, _ = compiled(acted.Plain().double(), X6(3)[0].double())
    x = X6(3)[0].double().requires_grad_()
    assert torch.autograd.gradcheck(fused, (x,))
    assert torch.autograd.gradgradcheck(fused, (x,))


def test_partial_gradients(pair: tuple[nn.Module, nn.Module]) -> None:
    def some(module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(module(x).sum(), [module.scale, x])

    compare(pair, some)


def test_frozen_parameters_and_an_input_that_needs_a_gradient(
    pair: tuple[nn.Module, nn.Module],
) -> None:
    both(*pair, lambda m: m.requires_grad_(False))
    compare(pair, lambda m, x: m(x).square().sum().backward())


def test_a_parameter_is_frozen_and_thawed_later(pair: tuple[nn.Module, nn.Module]) -> None:
    compare(pair, lambda m, x: m(x).square().sum().backward())
    both(*pair, lambda m: m.fc.weight.requires_grad_(False))
    compare(pair, lambda m, x: m(x).square().sum().backward())
    both(*pair, lambda m: m.fc.weight.requires_grad_(True))
    compare(pair, lambda m, x: m(x).square().sum().backward())


def test_accumulation(pair: tuple[nn.Module, nn.Module]) -> None:
    def accumulate(module: nn.Module, x: Tensor) -> None:
        for part in (x, x * 2, x + 1):
            module(part).square().sum().backward()

    compare(pair, accumulate)


def test_two_calls_in_one_graph(pair: tuple[nn.Module, nn.Module]) -> None:
    compare(pair, lambda m, x: (m(x) * m(x * 2 + 1)).sum().backward())


def test_a_second_backward(pair: tuple[nn.Module, nn.Module]) -> None:
    def twice(module: nn.Module, x: Tensor) -> None:
        loss = module(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    compare(pair, twice)


def test_backward_in_another_thread(pair: tuple[nn.Module, nn.Module]) -> None:
    def elsewhere(module: nn.Module, x: Tensor) -> None:
        loss = module(x).square().sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

    compare(pair, elsewhere)


def test_forward_in_several_threads(pair: tuple[nn.Module, nn.Module]) -> None:
    def crowd(module: nn.Module, x: Tensor) -> list[Tensor]:
        results: list[Tensor] = [x] * 4

        def work(i: int) -> None:
            for _ in range(10):
                results[i] = module(x.detach() * (i + 1)).detach()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    compare(pair, crowd)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(pair: tuple[nn.Module, nn.Module], reentrant: bool) -> None:
    def recomputed(module: nn.Module, x: Tensor) -> Tensor:
        y = checkpoint(module, x, use_reentrant=reentrant)
        y.square().sum().backward()
        return y

    compare(pair, recomputed)


def test_hooks_on_tensors(pair: tuple[nn.Module, nn.Module]) -> None:
    def hooked(module: nn.Module, x: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        y = module(x)
        y.register_hook(lambda g: (seen.append(g), g * 2)[1])
        y.retain_grad()
        handle = module.scale.register_hook(lambda g: (seen.append(g), g + 1)[1])
        y.square().sum().backward()
        handle.remove()
        return [*seen, y.grad]

    compare(pair, hooked)


def test_hooks_after_accumulation(pair: tuple[nn.Module, nn.Module]) -> None:
    """An optimizer inside backward, parameter by parameter; each hook runs exactly once."""

    def stepped(module: nn.Module, x: Tensor) -> list[Tensor]:
        seen: list[str] = []
        handles = [
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
            for name, p in module.named_parameters()
        ]
        module(x).square().sum().backward()
        for handle in handles:
            handle.remove()
        assert sorted(seen) == sorted(name for name, _ in module.named_parameters())
        return []

    compare(pair, stepped)


def test_saved_tensor_hooks(pair: tuple[nn.Module, nn.Module]) -> None:
    def packed(module: nn.Module, x: Tensor) -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            loss = module(x).square().sum()
        loss.backward()

    compare(pair, packed)


def test_anomaly_mode(pair: tuple[nn.Module, nn.Module]) -> None:
    def watchful(module: nn.Module, x: Tensor) -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            module(x).square().sum().backward()

    with pytest.warns(UserWarning, match="Anomaly"):
        compare(pair, watchful)


def test_in_place_on_the_output(pair: tuple[nn.Module, nn.Module]) -> None:
    def written(module: nn.Module, x: Tensor) -> Tensor:
        y = module(x)
        y += 1
        y.relu_()
        y.square().sum().backward()
        return y

    compare(pair, written)


def test_in_place_on_outputs_that_are_views() -> None:
    def written(module: nn.Module, x: Tensor) -> list[Tensor]:
        results = module(x)
        for i, y in enumerate(results):
            y.mul_(2 + i)
        torch.cat([y.flatten(1) for y in results], 1).square().sum().backward()
        return [y.detach() for y in results]

    for module in (acted.Parts(), acted.Last()):
        compare(compiled(module, *X6(4)), written)


WRITES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "the input": lambda m, x: x.mul_(2.0),
    "a weight": lambda m, x: m.fc.weight.detach().mul_(2.0),
    "a scale": lambda m, x: m.scale.detach().add_(1.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=[*map(str, WRITES)])
def test_what_is_written_before_backward_is_never_used_silently(
    pair: tuple[nn.Module, nn.Module], write: Callable[[nn.Module, Tensor], Any]
) -> None:
    """Eager refuses, or still has the right value; a recomputation from new values is neither."""
    found: list[Any] = []
    for module in pair:
        module.zero_grad(set_to_none=True)
        x = X6(4)[0].clone()
        loss = module(x).square().sum()
        write(module, x)
        try:
            loss.backward()
        except RuntimeError:
            found.append(None)
        else:
            found.append(grads(module))
    if found[0] is not None and found[1] is not None:
        same(*found)
    elif found[0] is not None:
        pytest.fail("eager refuses this backward, and the compiled module answers it")


def test_outputs_that_are_the_input_or_a_view() -> None:
    fused, eager = compiled(acted.Itself(), *X6(4))
    agree(fused, eager, X6)
    x = X6(4)[0]
    out, view, _ = fused(x)
    assert out is x
    assert view._base is x
    x.add_(1.0)
    assert torch.equal(view.flatten(), x.flatten())


def test_batch_norm_is_updated_once_a_step() -> None:
    """A recomputation in backward must not touch running statistics again."""
    fused, eager = compiled(acted.TwoNorms(), *X6(4))

    def step(module: nn.Module, x: Tensor) -> list[Tensor]:
        loss = module(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [b.clone() for b in module.buffers()]

    compare((fused, eager), step)
    assert fused.first.num_batches_tracked == eager.first.num_batches_tracked == 2


def test_dropout_has_one_mask_and_leaves_the_generator_as_eager() -> None:
    fused, eager = compiled(acted.Dropped(), *X6(4))

    def step(module: nn.Module, x: Tensor) -> list[Tensor]:
        torch.manual_seed(17)
        y = module(x)
        between = torch.rand(3)
        y.square().sum().backward()
        return [y, between, torch.rand(3)]

    compare((fused, eager), step)


def test_autocast(pair: tuple[nn.Module, nn.Module]) -> None:
    def mixed(module: nn.Module, x: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = module(x)
        assert y.dtype == eager_type
        y.float().square().sum().backward()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        eager_type = pair[1](X6(4)[0]).dtype
    for n in (4, 7):
        found = []
        for module in pair:
            module.zero_grad(set_to_none=True)
            with watched(pair[0], EITHER) if module is pair[0] else contextlib.nullcontext():
                mixed(module, X6(n)[0])
            found.append(grads(module))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    agree(*pair, X6)


def test_grad_scaler(pair: tuple[nn.Module, nn.Module]) -> None:
    def scaled(module: nn.Module, x: Tensor) -> list[Tensor]:
        module = copy.deepcopy(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(module(x.detach()).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return [*module.parameters()]

    compare(pair, scaled)


# torch.func.


def test_func_grad(pair: tuple[nn.Module, nn.Module]) -> None:
    def by_func(module: nn.Module, x: Tensor) -> Any:
        state = {k: v.detach() for k, v in module.named_parameters()}
        return torch.func.grad(lambda s: functional_call(module, s, (x.detach(),)).sum())(state)

    compare(pair, lambda m, x: [*by_func(m, x).values()], EITHER)


def test_functional_call_with_other_parameters(pair: tuple[nn.Module, nn.Module]) -> None:
    def other(module: nn.Module, x: Tensor) -> Tensor:
        state = {k: v.detach() * 2 + 0.1 for k, v in module.named_parameters()}
        return functional_call(module, state, (x,))

    compare(pair, other)


def test_vmap_over_inputs(pair: tuple[nn.Module, nn.Module]) -> None:
    compare(pair, lambda m, x: torch.vmap(m)(torch.stack([x, x * 2, x + 1])), EITHER)
    compare(pair, lambda m, x: torch.vmap(m)(x), EITHER)


def test_per_sample_gradients(pair: tuple[nn.Module, nn.Module]) -> None:
    def per_sample(module: nn.Module, x: Tensor) -> list[Tensor]:
        state = {k: v.detach() for k, v in module.named_parameters()}

        def loss(s: dict[str, Tensor], sample: Tensor) -> Tensor:
            return functional_call(module, s, (sample.unsqueeze(0),)).square().sum()

        made = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(state, x.detach())
        return [*made.values()]

    compare(pair, per_sample, EITHER)


def test_an_ensemble_by_stacked_state(pair: tuple[nn.Module, nn.Module]) -> None:
    def ensemble(module: nn.Module, x: Tensor) -> Tensor:
        state = {k: torch.stack([v, v * 2]).detach() for k, v in module.named_parameters()}
        return torch.vmap(lambda s: functional_call(module, s, (x.detach(),)))(state)

    compare(pair, ensemble, EITHER)


def test_jvp_and_jacobians(pair: tuple[nn.Module, nn.Module]) -> None:
    def forward_mode(module: nn.Module, x: Tensor) -> Any:
        x = x.detach()
        _, tangent = torch.func.jvp(module, (x,), (torch.ones_like(x),))
        return [tangent, torch.func.jacrev(module)(x), torch.func.jacfwd(module)(x)]

    compare(pair, forward_mode, EITHER)


def test_forward_mode_with_dual_numbers(pair: tuple[nn.Module, nn.Module]) -> None:
    import torch.autograd.forward_ad as forward_ad

    def dual(module: nn.Module, x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            y = module(forward_ad.make_dual(x.detach(), torch.ones_like(x)))
            return forward_ad.unpack_dual(y).tangent.clone()

    compare(pair, dual, EITHER)


def test_hessian(pair: tuple[nn.Module, nn.Module]) -> None:
    compare(pair, lambda m, x: torch.func.hessian(lambda v: m(v).sum())(x.detach()[:2]), EITHER)
