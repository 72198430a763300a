"""What tracing baked in is guarded: arguments, constructor values, state, sizes, hooks, changes.

Every action is done to the compiled module and to eager, which then agree at two batch sizes and in
their gradients. Where kernels cannot serve, the original forward does: counted, and said once.
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.utils import parametrizations, parametrize, prune
from zoo import acted
from zoo.acting import EITHER, RUNS, agree, both, compiled, rows, watched

from kernelwright.errors import InputError

pytestmark = pytest.mark.usefixtures("extensions")
X6 = rows(6)


def plain() -> tuple[nn.Module, nn.Module]:
    return compiled(acted.Plain(), *X6(4))


# Arguments that the example did not have.


@pytest.mark.parametrize(
    "named",
    [
        {"scale": 5.0},
        {"act": "tanh"},
        {"mask": torch.tensor([True, False, False, True])},
        {"flip": True},
        {"shift": torch.tensor([1.0, 2.0, 3.0, 4.0])},
        {"scale": 3, "act": "sigmoid", "flip": True},
    ],
    ids=lambda named: "_".join(named),
)
def test_a_default_argument_is_given(named: dict[str, Any]) -> None:
    fused, eager = compiled(acted.Defaults(), *X6(4))
    agree(fused, eager, X6)
    agree(fused, eager, X6, EITHER, **named)
    agree(fused, eager, X6)


def test_a_default_argument_is_given_by_position() -> None:
    fused, eager = compiled(acted.Defaults(), *X6(4))
    agree(fused, eager, lambda n: (*X6(n), 5.0, "tanh"), EITHER)


def test_a_default_argument_is_given_as_its_default() -> None:
    fused, eager = compiled(acted.Defaults(), *X6(4))
    agree(fused, eager, X6, RUNS, scale=2.0, mask=None, flip=False)


def test_variadic_arguments_are_given() -> None:
    fused, eager = compiled(acted.Defaults(), *X6(4))
    agree(fused, eager, lambda n: (*X6(n), 2.0, "relu", None, torch.ones(n, 4)), EITHER)


def test_the_input_is_given_by_keyword() -> None:
    fused, eager = compiled(acted.Plain(), *X6(4))
    for n in (4, 7):
        (x,) = X6(n)
        agree(fused, eager, lambda n: (), RUNS, batches=(n,), x=x)


def test_wrong_arguments_raise_as_in_eager() -> None:
    fused, eager = plain()
    for given, named in [((), {}), (X6(4) * 2, {}), (X6(4), {"nothing": 1})]:
        for module in (fused, eager):
            with pytest.raises(TypeError):
                module(*given, **named)


# Constructor values and random constants, through the emitted file.

CONSTRUCTED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, factor, act, width=6):
        super().__init__()
        self.factor, self.act = factor, act
        self.fc = nn.Linear(width, width)
        self.w = torch.randn(width)
        self.register_buffer("b", torch.randn(width), persistent=False)

    def forward(self, x):
        y = self.fc(x) * self.w + self.b
        return getattr(torch, self.act)(y) * self.factor


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return [2.0, "tanh"]
"""


@pytest.fixture
def emitted(tmp_path: Path, extensions: Path) -> checking.Subject:
    path = tmp_path / "constructed.py"
    path.write_text(textwrap.dedent(CONSTRUCTED))
    return checking.subject(path, tmp_path, "cpu")


@pytest.mark.parametrize("given", [(2.0, "tanh"), (3.0, "tanh"), (2.0, "relu"), (3.0, "relu")])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_file_with_other_constructor_values(
    emitted: checking.Subject, given: tuple[Any, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    eager = emitted.user.Model(*given)
    torch.manual_seed(seed)
    new = emitted.new_class(*given)
    agree(new, eager, X6, EITHER)


def test_the_file_with_another_width(emitted: checking.Subject) -> None:
    torch.manual_seed(4)
    eager = emitted.user.Model(2.0, "tanh", width=5)
    torch.manual_seed(4)
    agree(emitted.new_class(2.0, "tanh", width=5), eager, rows(5), EITHER)


def test_a_tensor_attribute_is_replaced_or_written() -> None:
    fused, eager = compiled(acted.PlainTensor(), *X6(4))
    agree(fused, eager, X6)
    other = torch.arange(6.0)
    both(fused, eager, lambda m: setattr(m, "w", other.clone()))
    agree(fused, eager, X6, EITHER)
    both(fused, eager, lambda m: m.w.mul_(-2.0))
    agree(fused, eager, X6, EITHER)


# Python state.


def test_python_state_goes_on() -> None:
    fused, eager = compiled(acted.Counts(), *X6(4))
    assert fused.n == eager.n, "compiling is no call"
    for _ in range(2):
        agree(fused, eager, X6, EITHER)
        assert fused.n == eager.n


def test_what_forward_keeps_is_kept() -> None:
    fused, eager = compiled(acted.Remembers(), *X6(4))
    for n in (4, 7):
        agree(fused, eager, X6, EITHER, batches=(n,))
        torch.testing.assert_close(fused.last, eager.last)


# Conditions on sizes.


@pytest.mark.parametrize("example", [3, 6])
@pytest.mark.parametrize(
    "model", [acted.MoreThanFour, acted.MoreThanOne, acted.PadsToFour, acted.FirstHalf]
)
def test_sizes_on_both_sides_of_a_condition(model: type[nn.Module], example: int) -> None:
    fused, eager = compiled(model(), *X6(example))
    agree(fused, eager, X6, RUNS, batches=(example,))
    agree(fused, eager, X6, EITHER, batches=(1, 2, 3, 4, 5, 6, 8, 9))


def test_an_assertion_on_the_size_holds() -> None:
    fused, eager = compiled(acted.EvenBatch(), *X6(4))
    agree(fused, eager, X6, EITHER, batches=(4, 6, 2))
    for module in (eager, fused):
        with pytest.raises(AssertionError, match="pairs"):
            module(*X6(3))


@pytest.mark.parametrize("example", [1, 4])
def test_a_squeezed_batch(example: int) -> None:
    fused, eager = compiled(acted.SqueezesBatch(), *X6(example))
    agree(fused, eager, X6, EITHER, batches=(1, 4, 2))


@pytest.mark.parametrize("example", [1, 4])
def test_an_example_of_one_sample_serves_all(example: int) -> None:
    fused, eager = compiled(acted.Plain(), *X6(example))
    agree(fused, eager, X6, RUNS, batches=(1, 4, 7))


def test_other_ranks_and_types() -> None:
    fused, eager = plain()
    agree(fused, eager, rows(3, 6), EITHER)
    agree(fused, eager, lambda n: (torch.arange(6.0),), EITHER, batches=(1,))
    agree(fused, eager, X6, RUNS, batches=(0, 5))
    both(fused, eager, lambda m: m.double())
    agree(fused, eager, lambda n: (X6(n)[0].double(),), EITHER)
    both(fused, eager, lambda m: m.float())
    agree(fused, eager, X6)


# Hooks.

Hooking = Callable[[nn.Module, list[str]], None]


def _root(m: nn.Module, log: list[str]) -> None:
    m.register_forward_hook(lambda module, given, out: (log.append("forward"), out * 2)[1])


def _root_pre(m: nn.Module, log: list[str]) -> None:
    m.register_forward_pre_hook(lambda module, given: (log.append("pre"), (given[0] + 1,))[1])


def _part(m: nn.Module, log: list[str]) -> None:
    m.norm.register_forward_hook(lambda module, given, out: (log.append("norm"), out * 3)[1])


def _part_reads(m: nn.Module, log: list[str]) -> None:
    m.fc.register_forward_hook(lambda module, given, out: log.append(f"fc {tuple(out.shape)}"))


def _part_pre(m: nn.Module, log: list[str]) -> None:
    m.fc.register_forward_pre_hook(lambda module, given: (log.append("fc"), (given[0] * 2,))[1])


def _part_backward(m: nn.Module, log: list[str]) -> None:
    m.fc.register_full_backward_hook(lambda module, gi, go: log.append("backward of fc"))


def _root_backward(m: nn.Module, log: list[str]) -> None:
    m.register_full_backward_hook(lambda module, gi, go: log.append("backward"))


def _part_backward_pre(m: nn.Module, log: list[str]) -> None:
    m.norm.register_full_backward_pre_hook(
        lambda module, go: (log.append("before norm"), tuple(g * 2 for g in go))[1]
    )


HOOKS: dict[str, Hooking] = {
    "root": _root,
    "root_pre": _root_pre,
    "submodule": _part,
    "submodule_reads": _part_reads,
    "submodule_pre": _part_pre,
    "root_backward": _root_backward,
    "submodule_backward": _part_backward,
    "submodule_backward_pre": _part_backward_pre,
}


def calls_agree(fused: nn.Module, eager: nn.Module, logs: tuple[list[str], list[str]]) -> None:
    """The hooks are called alike in a training step and in a call without gradients."""
    for n in (4, 7):
        for module, log in zip((fused, eager), logs, strict=True):
            log.clear()
            with torch.no_grad():
                module(*X6(n))
            module(*X6(n)).square().sum().backward()
            log.append("end")
        assert logs[0] == logs[1]
        assert len(logs[1]) > 1


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_after_compiling(hook: Hooking) -> None:
    fused, eager = plain()
    logs: tuple[list[str], list[str]] = ([], [])
    hook(fused, logs[0])
    hook(eager, logs[1])
    agree(fused, eager, X6, EITHER)
    calls_agree(fused, eager, logs)


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_before_compiling(hook: Hooking) -> None:
    module, log = acted.Plain(), []
    hook(module, log)
    fused, eager = compiled(module, *X6(4))
    agree(fused, eager, X6, EITHER)
    calls: list[list[str]] = []
    for either in (fused, eager):
        log.clear()
        either(*X6(4)).square().sum().backward()
        calls.append([*log])
    assert calls[0] == calls[1] != []


def test_a_hook_that_is_removed_leaves_the_kernels() -> None:
    fused, eager = plain()
    handle = fused.norm.register_forward_hook(lambda module, given, out: out * 3)
    other = eager.norm.register_forward_hook(lambda module, given, out: out * 3)
    agree(fused, eager, X6, EITHER)
    handle.remove()
    other.remove()
    agree(fused, eager, X6, RUNS)


@pytest.mark.parametrize("register", ["forward_hook", "forward_pre_hook"])
def test_global_hooks(register: str) -> None:
    fused, eager = plain()
    seen: list[str] = []

    def hook(module: nn.Module, *rest: Any) -> None:
        if isinstance(module, nn.LayerNorm | nn.Linear):
            seen.append(type(module).__name__)

    handle = getattr(modules, f"register_module_{register}")(hook)
    try:
        agree(fused, eager, X6, EITHER)
        found = []
        for module in (fused, eager):
            seen.clear()
            module(*X6(4))
            found.append([*seen])
        assert found[0] == found[1] == ["Linear", "LayerNorm"]
    finally:
        handle.remove()
    agree(fused, eager, X6, RUNS)


def test_an_overridden_call() -> None:
    fused, eager = compiled(acted.Called(), *X6(4))
    agree(fused, eager, X6, EITHER)


# Changes after compiling.


class TimesThree(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w * 3.0


def _shifted(m: nn.Module) -> None:
    norm = acted.ShiftedNorm(4)
    norm.load_state_dict(m.norm.state_dict())
    m.norm = norm


def _class_changed(m: nn.Module) -> None:
    m.norm.__class__ = acted.ShiftedNorm


def _forward_of_part(m: nn.Module) -> None:
    m.act.forward = lambda x: torch.sigmoid(x)


def _forward_of_root(m: nn.Module) -> None:
    m.forward = types.MethodType(lambda self, x: type(self).forward(self, x) * 2.0, m)


def _fresh_parameter(m: nn.Module) -> None:
    m.scale = nn.Parameter(torch.arange(4.0) - 1.5)


def _computed_scale(m: nn.Module) -> None:
    del m.scale
    m.scale = torch.arange(4.0)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "eps": lambda m: setattr(m.norm, "eps", 1.0),
    "a flag": lambda m: setattr(m, "use_act", False),
    "a number": lambda m: setattr(m, "factor", -3.0),
    "a slope": lambda m: setattr(m.act, "negative_slope", 0.7),
    "in place": lambda m: setattr(m.act, "inplace", True),
    "a sublayer by Identity": lambda m: setattr(m, "norm", nn.Identity()),
    "an activation by another": lambda m: setattr(m, "act", nn.Tanh()),
    "a LoRA wrapper": lambda m: setattr(m, "fc", acted.LoRA(m.fc)),
    "a subclass": _shifted,
    "the class of a part": _class_changed,
    "no bias": lambda m: setattr(m.fc, "bias", None),
    "no norm weight": lambda m: m.norm.register_parameter("weight", None),
    "pruning": lambda m: prune.l1_unstructured(m.fc, "weight", amount=0.5),
    "a parametrization": lambda m: parametrize.register_parametrization(
        m.fc, "weight", TimesThree()
    ),
    "weight_norm": lambda m: parametrizations.weight_norm(m.fc),
    "a parametrized root": lambda m: parametrize.register_parametrization(m, "scale", TimesThree()),
    "forward of a part": _forward_of_part,
    "forward of the root": _forward_of_root,
    "a fresh parameter": _fresh_parameter,
    "a tensor for a parameter": _computed_scale,
    "a wider layer": lambda m: setattr(m, "norm", nn.Sequential(m.norm, nn.Softplus())),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*map(str, CHANGES)])
def test_changes_after_compiling(change: Callable[[nn.Module], Any]) -> None:
    fused, eager = plain()
    agree(fused, eager, X6, batches=(4,))
    both(fused, eager, change)
    agree(fused, eager, X6, EITHER)


BEFORE = {name: change for name, change in CHANGES.items() if change is not _forward_of_root}


@pytest.mark.parametrize("change", BEFORE.values(), ids=[*map(str, BEFORE)])
def test_changes_before_compiling(change: Callable[[nn.Module], Any]) -> None:
    fused, eager = compiled(acted.Plain(), *X6(4), change=change)
    agree(fused, eager, X6, EITHER)


def test_a_forward_on_the_instance_is_refused() -> None:
    with pytest.raises(InputError, match="replaced on the instance"):
        compiled(acted.Plain(), *X6(4), change=_forward_of_root)


def test_a_change_that_is_taken_back() -> None:
    fused, eager = plain()
    both(fused, eager, lambda m: setattr(m.norm, "eps", 1.0))
    agree(fused, eager, X6, EITHER)
    both(fused, eager, lambda m: setattr(m.norm, "eps", 1e-5))
    agree(fused, eager, X6, RUNS)


CONTENTS: dict[str, Callable[[nn.Module], Any]] = {
    "data": lambda m: m.fc.weight.data.mul_(2.0),
    "in place": lambda m: m.scale.detach().add_(1.0),
    "load_state_dict": lambda m: m.load_state_dict(
        {k: torch.full_like(v, 0.3) + torch.arange(v.numel()).view(v.shape) / 9
         for k, v in m.state_dict().items()}
    ),
    "initialised again": lambda m: m.apply(
        lambda part: nn.init.constant_(part.bias, 0.4) if getattr(part, "bias", None) is not None
        else None
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CONTENTS.values(), ids=[*map(str, CONTENTS)])
def test_other_values_of_parameters_keep_the_kernels(change: Callable[[nn.Module], Any]) -> None:
    fused, eager = plain()
    both(fused, eager, change)
    agree(fused, eager, X6, RUNS)


# Modes.


def test_a_part_is_frozen_before_compiling() -> None:
    module = acted.TwoNorms()
    module.first.eval()
    fused, eager = compiled(module, *X6(4))
    assert [m.training for m in fused.modules()] == [m.training for m in eager.modules()]
    agree(fused, eager, X6, RUNS)
    both(fused, eager, lambda m: m.train())
    agree(fused, eager, X6, EITHER)


def test_a_part_is_frozen_after_compiling() -> None:
    fused, eager = compiled(acted.TwoNorms(), *X6(4))
    agree(fused, eager, X6, RUNS)
    both(fused, eager, lambda m: m.first.eval())
    agree(fused, eager, X6, EITHER)
    both(fused, eager, lambda m: m.second.eval())
    agree(fused, eager, X6, EITHER)


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_by_mode_and_probability(mode: bool) -> None:
    fused, eager = compiled(acted.Dropped().train(mode), *X6(4))
    x = X6(4)
    both(fused, eager, lambda m: setattr(m.drop, "p", 0.0))
    both(fused, eager, lambda m: m.train())
    agree(fused, eager, X6, EITHER)
    both(fused, eager, lambda m: m.drop.eval())
    both(fused, eager, lambda m: setattr(m.drop, "p", 0.9))
    agree(fused, eager, X6, EITHER)
    both(fused, eager, lambda m: m.drop.train())
    outputs = []
    for module in (fused, eager):
        torch.manual_seed(2)
        outputs.append(module(*x))
    torch.testing.assert_close(*outputs)


# Memory layouts.


def channels_last(n: int) -> tuple[Tensor]:
    return (rows(3, 5, 6)(n)[0].contiguous(memory_format=torch.channels_last),)


def permuted(n: int) -> tuple[Tensor]:
    return (rows(6, 5, 3)(n)[0].permute(0, 3, 2, 1),)


def sliced(n: int) -> tuple[Tensor]:
    return (rows(3, 10, 7)(n)[0][:, :, ::2, :-1],)


def expanded(n: int) -> tuple[Tensor]:
    return (rows(1, 5, 6)(n)[0].expand(-1, 3, -1, -1),)


def transposed_batch(n: int) -> tuple[Tensor]:
    return (checking.scattered(rows(3, 5, 6)(n)[0]),)


LAYOUTS = [channels_last, permuted, sliced, expanded, transposed_batch]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("example", [rows(3, 5, 6), channels_last], ids=["dense", "channels_last"])
@pytest.mark.parametrize("model", [acted.Conv, acted.Elementwise, acted.ChannelSoftmax])
def test_memory_layouts(model: type[nn.Module], example: Any, layout: Any) -> None:
    fused, eager = compiled(model(), *example(4))
    agree(fused, eager, layout, EITHER)


def test_a_model_in_channels_last() -> None:
    module = acted.Conv().to(memory_format=torch.channels_last)
    fused, eager = compiled(module, *channels_last(4))
    agree(fused, eager, channels_last, EITHER)


def test_operands_of_two_layouts() -> None:
    fused, eager = compiled(acted.Twofold(), *rows(3, 5, 6)(4), *rows(3, 5, 6)(4))
    agree(fused, eager, lambda n: (*channels_last(n), *rows(3, 5, 6)(n)), EITHER)
    agree(fused, eager, lambda n: (*rows(3, 5, 6)(n), *channels_last(n)), EITHER)
    agree(fused, eager, lambda n: (*rows(3, 5, 6)(n), *rows(1, 1, 6)(n)), EITHER)


def lines_turned(n: int) -> tuple[Tensor]:
    return (rows(6, 4)(n)[0].transpose(1, 2),)


@pytest.mark.parametrize("pool", [nn.AvgPool1d(2), nn.MaxPool1d(2), nn.LPPool1d(2, 2)])
def test_pools_of_lines(pool: nn.Module) -> None:
    fused, eager = compiled(nn.Sequential(pool, nn.ReLU()), *rows(4, 6)(4))
    agree(fused, eager, rows(4, 6), EITHER)
    agree(fused, eager, lines_turned, EITHER)


def test_a_result_that_lies_otherwise_while_gradients_are_recorded() -> None:
    """Attention in eval mode, and a pool of a line on the CPU, have kernels for when none are."""
    for module in (acted.SelfAttention().eval(), acted.PoolOfTurned()):
        fused, eager = compiled(module, *rows(5, 8)(4))
        (x,) = rows(5, 8)(4)
        for recorded in (True, False, True):
            with torch.set_grad_enabled(recorded), watched(fused, RUNS):
                ours, theirs = fused(x), eager(x)
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride() and ours.requires_grad is recorded
            assert ours._is_view() == theirs._is_view()
            if recorded:
                ours.sum().backward()


def test_an_input_that_is_written() -> None:
    """By the original, so that its version and the identity of a result are eager's."""
    fused, eager = compiled(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)), *X6(4))
    (x,) = X6(4)
    ours, theirs = x.clone(), x.clone()
    with watched(fused, EITHER):
        torch.testing.assert_close(fused(ours), eager(theirs))
    assert torch.equal(ours, theirs) and ours._version == theirs._version == 1


def test_an_effect_happens_in_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    fused, eager = compiled(acted.Says(), *X6(4))
    capsys.readouterr()
    for module in (fused, eager):
        torch.manual_seed(7)
        module(*X6(4))
        state = torch.get_rng_state()
        torch.manual_seed(3)
        assert torch.equal(state, torch.get_rng_state())
    assert capsys.readouterr().out == "(4, 6)\n(4, 6)\n"
    assert [*fused.fallbacks] == ["the forward calls torch.manual_seed (acted.py:140)"]
