"""A call is a node of autograd's graph like any of torch's: what it keeps, checks, frees."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import kernelwright
from kernelwright.plan import ALWAYS


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 24), nn.GroupNorm(4, 24)
        self.scale = nn.Parameter(torch.rand(24))
        self.frozen = nn.Parameter(torch.rand(24), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        shifted = torch.sigmoid(self.norm(self.linear(x))) + self.frozen
        return shifted**2 * self.scale + self.scale


Pair = tuple[Any, nn.Module]


def _pair(module: nn.Module, *inputs: Any) -> Pair:
    """Ours, which was called before, and eager with parameters of its own."""
    fused = kernelwright.optimize(copy.deepcopy(module), inputs, policy=ALWAYS)
    fused(*inputs)
    return fused, copy.deepcopy(module)


@pytest.fixture(scope="module")
def example() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def pair(example: Model) -> Pair:
    return _pair(example, torch.randn(5, 24))


def _leaf() -> Tensor:
    return torch.randn(5, 24).requires_grad_()


def _same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_gradients_are_eagers(pair: Pair) -> None:
    fused, eager = pair
    x = _leaf()
    cotangent = torch.randn(5, 24)
    y = fused(x)
    ours = torch.autograd.grad(y, [x, fused.scale, fused.linear.weight], cotangent)
    parameters = [x, eager.scale, eager.linear.weight]
    _same(ours, torch.autograd.grad(eager(x), parameters, cotangent))
    fused(x).backward(cotangent)
    eager(x.detach()).backward(cotangent)
    _same([p.grad for p in fused.parameters()], [p.grad for p in eager.parameters()])


def test_gradients_that_are_not_asked_for_are_not_computed(pair: Pair) -> None:
    fused, _ = pair
    fusion = type(fused).forward.__globals__["_KW_FUSION"]
    x = torch.randn(5, 24)
    found: list[bool] = []
    kept = fusion.original

    def original(module: Any, given: Tensor) -> Any:
        found.append(given is x)
        return kept(module, given)

    fusion.original = original
    try:
        fused(x).sum().backward()
        fused(x.requires_grad_()).sum().backward()
    finally:
        fusion.original = kept
    assert found == [True, False] and fused.frozen.grad is None


def test_double_backward_is_eagers(pair: Pair) -> None:
    fused, eager = pair
    x = _leaf()

    def twice(module: Any) -> Any:
        first = torch.autograd.grad(module(x).sin().sum(), [x, module.scale], create_graph=True)
        penalty = sum(g.square().sum() for g in first)
        return torch.autograd.grad(penalty, [x, module.scale, module.linear.weight])

    torch.testing.assert_close(twice(fused), twice(eager), rtol=1e-3, atol=1e-3)


def test_a_history_before_the_call(pair: Pair) -> None:
    fused, eager = pair
    x = _leaf()

    def chained(module: Any) -> Any:
        y = module(module(module(x.cos())))
        return torch.autograd.grad(y.sum(), [x, module.scale])

    _same(chained(fused), chained(eager))


@pytest.mark.parametrize("which", ["input", "weight"])
def test_what_is_written_meanwhile_is_seen(pair: Pair, which: str) -> None:
    said = []
    for module in pair:
        x = torch.randn(5, 24)
        y = module((x.requires_grad_() * 1) if which == "weight" else x)
        with torch.no_grad():
            (x if which == "input" else module.norm.weight).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            y.sum().backward()
        said.append(str(error.value).partition(" is at version")[0])
    assert which == "input" or said[0] == said[1]


def test_a_graph_is_gone_after_backward(pair: Pair) -> None:
    fused, _ = pair
    y = fused(_leaf())
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_a_retained_graph_gives_the_same_again(pair: Pair) -> None:
    fused, _ = pair
    x = _leaf()
    y = fused(x).sum()
    y.backward(retain_graph=True)
    assert x.grad is not None
    first = x.grad.clone()
    y.backward()
    _same(x.grad, 2 * first)


def test_what_is_kept_is_freed_after_backward(pair: Pair) -> None:
    fused, _ = pair
    inside = _leaf() * 1
    seen = weakref.ref(inside)
    y = fused(inside)
    del inside
    gc.collect()
    assert seen() is not None
    y.sum().backward()
    assert y.grad_fn is not None and seen() is None


def test_what_is_kept_is_freed_with_the_result(pair: Pair) -> None:
    fused, _ = pair
    inside = _leaf() * 1
    seen = weakref.ref(inside)
    y = fused(inside)
    del inside
    del y
    assert seen() is None


def test_hooks_of_saved_tensors(pair: Pair) -> None:
    fused, eager = pair
    x = _leaf()
    packed: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor.double()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.float()):
        y = fused(x)
    assert len(packed) == 1 + len(list(fused.parameters())) and packed[0] is x
    ours = torch.autograd.grad(y.sum(), [x, fused.scale])
    _same(ours, torch.autograd.grad(eager(x).sum(), [x, eager.scale]))


class Odd(Exception):
    """Nobody else's error."""


def _raise(*_: Any) -> Any:
    raise Odd("on purpose")


def test_errors_of_hooks_keep_their_types(pair: Pair) -> None:
    fused, _ = pair
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(_raise, lambda tensor: tensor), pytest.raises(Odd, match="on purpose"):
        fused(_leaf())
    with hooks(lambda tensor: tensor, _raise):
        y = fused(_leaf())
    with pytest.raises(Odd, match="on purpose"):
        y.sum().backward()


def test_errors_in_backward_keep_their_types(pair: Pair) -> None:
    fused, _ = pair
    fusion = type(fused).forward.__globals__["_KW_FUSION"]
    y = fused(_leaf()).sum()
    kept, fusion.original = fusion.original, _raise
    try:
        with pytest.raises(Odd, match="on purpose"):
            y.backward(retain_graph=True)
        with ThreadPoolExecutor(1) as pool, pytest.raises(Odd, match="on purpose"):
            pool.submit(y.backward, retain_graph=True).result()
    finally:
        fusion.original = kept
    y.backward()


def test_hooks_of_the_node(pair: Pair) -> None:
    fused, _ = pair
    x = _leaf()
    y = fused(x)
    before: list[Any] = []
    after: list[Any] = []
    y.grad_fn.register_prehook(lambda given: before.append(given))
    y.grad_fn.register_hook(lambda found, given: after.append((found, given)))
    cotangent = torch.randn(5, 24)
    y.backward(cotangent)
    ((given,),) = before
    _same(given, cotangent)
    ((found, _),) = after
    _same(found[0], x.grad)
    assert "RecordedBackward" in repr(y)
    assert len(y.grad_fn.next_functions) == 1 + len(list(fused.parameters()))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(pair: Pair, reentrant: bool) -> None:
    fused, eager = pair
    x = _leaf()
    found = []
    for module in (fused, eager):
        y: Any = checkpoint(lambda t, of=module: of(of(t)), x, use_reentrant=reentrant)
        y.sum().backward()
        found.append((x.grad, module.scale.grad))
        x.grad = None
    _same(*found)


def test_anomalies_are_named(pair: Pair) -> None:
    fused, _ = pair
    cotangent = torch.full((5, 24), float("nan"))
    with torch.autograd.detect_anomaly(check_nan=True):
        y = fused(_leaf())
        told = pytest.warns(UserWarning, match="Error detected in .*RecordedBackward")
        with told, pytest.raises(RuntimeError, match="returned nan"):
            y.backward(cotangent)


class Several(nn.Module):
    """What gradients flow from, what they do not flow from, whole numbers, and the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(24))

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        scaled = torch.tanh(x * self.weight)
        return scaled, torch.exp(z) * 2, scaled.argmax(dim=-1), x, scaled.sum(dim=-1)


def _told(results: tuple[Tensor, ...]) -> list[Any]:
    return [(y.requires_grad, y.is_leaf, y.grad_fn is None, y.dtype, y._is_view()) for y in results]


@pytest.mark.parametrize("x_grad", [True, False])
@pytest.mark.parametrize("z_grad", [True, False])
def test_results_that_no_gradient_flows_from(x_grad: bool, z_grad: bool) -> None:
    x, z = torch.randn(5, 24, requires_grad=x_grad), torch.randn(5, 24, requires_grad=z_grad)
    fused, eager = _pair(Several(), x, z)
    ours, theirs = fused(x, z), eager(x, z)
    assert [y.requires_grad for y in ours] == [y.requires_grad for y in theirs]
    _same(ours, theirs)
    for results in (ours, theirs):
        (results[0].sum() + results[4].sin().sum()).backward(retain_graph=True)
    _same(fused.weight.grad, eager.weight.grad)
    if z_grad:
        _same(torch.autograd.grad(ours[1].sum(), z), torch.autograd.grad(theirs[1].sum(), z))


def _refused(call: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        call()
    return str(error.value)


def test_tensors_of_inference_mode_cannot_be_saved(pair: Pair) -> None:
    fused, _ = pair
    with torch.inference_mode():
        x = torch.randn(5, 24)
    said = [_refused(lambda: fused(x)) for _ in range(2)]
    assert said[0] == said[1] and "Inference tensors cannot be saved" in said[0]


def test_threads(pair: Pair) -> None:
    """Each runs forwards and backwards on the same parameters, and gets its own gradients."""
    fused, eager = pair
    inputs = [_leaf() for _ in range(40)]

    def gradient(module: Any, x: Tensor) -> Any:
        return torch.autograd.grad(module(x).sin().sum(), [x, module.scale])

    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(lambda x: gradient(fused, x), inputs))
    _same(ours, [gradient(eager, x) for x in inputs])


def test_threads_that_share_a_graph(pair: Pair) -> None:
    fused, eager = pair
    x = _leaf()
    y = fused(x).sum()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(torch.autograd.grad, y, x, retain_graph=True) for _ in range(40)]
        found = [job.result() for job in jobs]
    _same(found, [torch.autograd.grad(eager(x).sum(), x)] * 40)


def test_a_long_chain_is_taken_apart_without_a_call_for_each(pair: Pair) -> None:
    fused, _ = pair
    y = _leaf()
    for _ in range(20000):
        y = fused(y)
    del y


ENDS = """
import torch, kernelwright
from torch import nn
from kernelwright.plan import ALWAYS
module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sigmoid())
x = torch.randn(4, 8, requires_grad=True)
fused = kernelwright.optimize(module, (x,), policy=ALWAYS)
fused(x)
fused.kept = y = fused(x)
torch.kept = fused(x)
y.sum().backward()
print(type(y.grad_fn).__name__)
"""


def test_an_interpreter_ends_with_nodes_in_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "") and "RecordedBackward" in done.stdout
