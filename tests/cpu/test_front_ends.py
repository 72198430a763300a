"""Three ways in (a module, its file, torch.compile), and what else may be brought."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from situations.watching import Compiling
from torch import Tensor, nn

import kernelwright
from kernelwright.backends import torch_compile
from kernelwright.backends.torch_compile import Served
from kernelwright.errors import InputError, UnsupportedError

ROOT = Path(__file__).parents[2]

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(24, 24)
        self.norm = nn.GroupNorm(4, 24)

    def forward(self, x):
        return F.gelu(self.norm(self.lin(x))).amin(1, keepdim=True) * 2


def get_inputs():
    return [torch.randn(12, 24)]
"""

FUNCTION = """
import torch
import torch.nn.functional as F

EPS = 1e-3


def model(x, w, eps=EPS, *, scale=2.0):
    return F.gelu(F.layer_norm(x @ w, (w.shape[1],), eps=eps)) * scale


def get_inputs():
    return [torch.randn(12, 24), torch.randn(24, 24)]
"""


@pytest.fixture(autouse=True)
def afresh(extensions: Path) -> Iterator[None]:
    torch._dynamo.reset()
    torch_compile._told.clear()
    yield
    torch._dynamo.reset()


def loaded(path: Path, text: str) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def kinds(compiling: Compiling) -> list[torch_compile.Kind]:
    return [kind for served in compiling.served for kind in served.kinds]


def programs(module: nn.Module) -> str:
    """The C++ of a ModelNew, without its comments."""
    space = vars(sys.modules[type(module).__module__])
    text = next(value for name, value in space.items() if name.lower().endswith("_programs"))
    return "\n".join(line.partition("//")[0].rstrip() for line in text.splitlines())


def test_three_ways_give_the_same_kernels_and_bits(tmp_path: Path) -> None:
    path = tmp_path / "three_ways.py"
    user = loaded(path, MODEL)
    torch.manual_seed(0)
    model, (x,) = user.Model(), user.get_inputs()
    compiling = Compiling()
    live, compiled = kernelwright.optimize(model, (x,), train=False), compiling(model)
    file = kernelwright.optimize(path, device="cpu")
    file.load_state_dict(model.state_dict())
    results = [module(x) for module in (live, file, compiled)]
    assert all(torch.equal(results[0], other) for other in results[1:])
    y = torch.randn(5, 24)
    assert torch.equal(live(y), compiled(y)) and torch.equal(live(y), file(y))
    (kind, *_) = kinds(compiling)
    texts = {programs(module) for module in (live, file, kind.model)}
    assert len(texts) == 1
    assert not live.fallbacks and not file.fallbacks and not compiling.reasons


def test_a_function_is_optimized() -> None:
    def model(x: Tensor, w: Tensor, /, eps: float = 1e-5, *, scale: float = 2.0) -> Tensor:
        return F.gelu(F.layer_norm(x @ w, (w.shape[1],), eps=eps)) * scale

    x, w = (torch.randn(12, 24, requires_grad=True), torch.randn(24, 24, requires_grad=True))
    fused = kernelwright.optimize(model, (x, w), {"scale": 3.0})
    y = fused(x, w, scale=3.0)
    torch.testing.assert_close(y, model(x, w, scale=3.0))
    ours = torch.autograd.grad(y.sum(), (x, w))
    theirs = torch.autograd.grad(model(x, w, scale=3.0).sum(), (x, w))
    torch.testing.assert_close(ours, theirs)
    assert not fused.fallbacks
    assert "layer_norm" in str(kernelwright.explain(model, (x, w)))
    certificate = kernelwright.verify(model, fused, (x, w), {"scale": 3.0}, only=["oracle"])
    assert certificate.checks and not certificate.failures


def test_a_function_of_a_file_is_optimized(tmp_path: Path) -> None:
    path = tmp_path / "a_function.py"
    user = loaded(path, FUNCTION)
    x, w = user.get_inputs()
    fused = kernelwright.optimize(path, device="cpu")
    torch.testing.assert_close(fused(x, w), user.model(x, w))
    assert not fused.fallbacks
    target = fused.save(tmp_path / "a_function_new.py")
    certificate = kernelwright.verify(path, target, device="cpu", only=["oracle"])
    assert certificate.checks and not certificate.failures


@pytest.mark.parametrize("what", ["a tensor", "a module", "a helper's tensor", "partial", "number"])
def test_what_a_function_has_around_it_is_refused(what: str) -> None:
    weight, inner = torch.ones(24), nn.Linear(24, 24)

    def helper(x: Tensor) -> Tensor:
        return x + weight

    given: dict[str, tuple[Any, str]] = {
        "a tensor": (lambda x: x * weight, "the tensor weight"),
        "a module": (lambda x: inner(x), "the module inner"),
        "a helper's tensor": (lambda x: helper(x), "the tensor weight"),
        "partial": (functools.partial(torch.add, other=weight), "functools.partial"),
        "number": (3, "not a int"),
    }
    function, told = given[what]
    with pytest.raises(InputError, match=told):
        kernelwright.optimize(function, (torch.randn(4, 24),))


def test_a_method_brings_its_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(24, 24)

        def encode(self, x: Tensor) -> Tensor:
            return F.gelu(self.lin(x))

    model, x = Model(), torch.randn(4, 24)
    fused = kernelwright.optimize(model.encode, (x,))
    torch.testing.assert_close(fused(x), model.encode(x))
    assert fused.module.lin.weight is model.lin.weight and not fused.fallbacks


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(24, 24)
        self.norm = nn.BatchNorm1d(24)

    def forward(self, pair: Any, named: dict[str, Tensor], *, mask: Tensor) -> Any:
        y = F.gelu(self.norm(self.lin(pair[0] + named["k"])))
        return {"y": y * mask, "rest": [y.sum(1), None, pair[1]]}


def nested_call() -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    a, b, c, mask = (torch.randn(12, 24) for _ in range(4))
    return ((a, b), {"k": c}), {"mask": mask}


def test_an_exported_program_is_optimized(tmp_path: Path) -> None:
    model = Nested()
    args, kwargs = nested_call()
    program = torch.export.export(model, args, kwargs)
    before = {name: x.clone() for name, x in program.state_dict.items()}
    fused = kernelwright.optimize(program)
    ours, theirs = fused(*args, **kwargs), model(*args, **kwargs)
    torch.testing.assert_close(ours["y"], theirs["y"])
    torch.testing.assert_close(ours["rest"][0], theirs["rest"][0])
    assert ours["rest"][1] is None and ours["rest"][2] is args[0][1]
    assert fused.state_dict().keys() == model.state_dict().keys() == before.keys()
    torch.testing.assert_close(fused.norm.running_mean, model.norm.running_mean)
    # The program's buffers are the model's own, and were changed by both.
    assert fused.norm.num_batches_tracked == 2 and not fused.fallbacks


def test_a_saved_program_is_optimized_and_judged(tmp_path: Path) -> None:
    model = Nested().eval()
    args, kwargs = nested_call()
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(model, args, kwargs), path)
    fused = kernelwright.optimize(path)
    torch.testing.assert_close(fused(*args, **kwargs)["y"], model(*args, **kwargs)["y"])
    certificate = kernelwright.verify(path, fused, only=["oracle"])
    assert certificate.checks and not certificate.failures and not fused.fallbacks
    with pytest.raises(InputError, match=r"torch\.export\.save"):
        path.write_bytes(b"no program")
        kernelwright.optimize(path)


@pytest.mark.parametrize("way", ["script", "trace"])
def test_torchscript_becomes_its_graph(way: str) -> None:
    model, x = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.LayerNorm(24)), torch.randn(12, 24)
    script = torch.jit.script(model) if way == "script" else torch.jit.trace(model, (x,))
    fused = kernelwright.optimize(script, (x,))
    torch.testing.assert_close(fused(x), model(x))
    torch.testing.assert_close(fused(x[:5]), model(x[:5]))
    assert not fused.fallbacks
    assert fused.get_parameter("0.weight").data_ptr() == model[0].weight.data_ptr()


def test_torchscript_that_has_no_graph_is_refused() -> None:
    @torch.jit.script
    def branching(x: Tensor) -> Tensor:
        count = 0
        while bool(x.sum() > 0):
            x = x - 1.0
            count += 1
        return x * count

    with pytest.raises(InputError, match="TorchScript"):
        kernelwright.optimize(branching, (torch.randn(4, 24),))


# ---- the backend --------------------------------------------------------------------------------


def block(x: Tensor) -> Tensor:
    return F.softmax(x * 2.0 + 1.0, -1)


def test_it_is_found_by_its_name(tmp_path: Path, extensions: Path) -> None:
    """As torch finds it: by the metadata that an installation writes."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["torch_dynamo_backends"]
    info = tmp_path / "kernelwright_by_name-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: by-name\nVersion: 1.0\n")
    lines = [f"{name} = {target}\n" for name, target in points.items()]
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + "".join(lines))
    program = """
        import torch
        assert "kernelwright" in torch._dynamo.list_backends()
        f = lambda x: torch.softmax(x * 2.0 + 1.0, -1)
        x = torch.randn(4, 8)
        torch.testing.assert_close(torch.compile(f, backend="kernelwright")(x), f(x))
    """
    path = f"{tmp_path}:{ROOT / 'src'}"
    environment = {**__import__("os").environ, "PYTHONPATH": path}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, check=True, timeout=500
    )


def test_a_second_process_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept on disk is all that it needs."""
    x = torch.randn(6, 40)
    first = Compiling()
    y = first(block)(x)
    torch._dynamo.reset()

    def never(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(torch_compile, "compile_problem", never)
    second = Compiling()
    assert torch.equal(second(block)(x), y) and kinds(second)
    third = Compiling()
    with pytest.warns(UserWarning, match="compiled again"):  # another graph is not that one
        third(lambda v: block(v) + 1)(x)


def test_an_unsupported_graph_runs_as_eager_with_one_warning() -> None:
    def doubled(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v + 1, (x,))

    compiling, x = Compiling(), torch.randn(4, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        g = compiling(doubled)
        assert torch.equal(g(x), doubled(x)) and torch.equal(g(x + 1), doubled(x + 1))
    told = [str(w.message) for w in caught if "as in eager" in str(w.message)]
    assert len(told) == 1 and "calls other graphs" in told[0]
    with pytest.raises(UnsupportedError, match="calls other graphs"):
        Compiling(options={"fallback": False})(lambda v: doubled(v) * 3)(x)


def test_a_fault_of_ours_is_a_warning_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: Any, **named: Any) -> Any:
        raise ZeroDivisionError("in a pass")

    monkeypatch.setattr(torch_compile, "compile_problem", broken)
    x = torch.randn(3, 56)
    with pytest.warns(UserWarning, match="bug in kernelwright"):
        assert torch.equal(Compiling()(block)(x), block(x))
    with pytest.raises(ZeroDivisionError):
        Compiling(options={"fallback": False})(lambda v: block(v) * 3)(x)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"speed": 11}, "no option 'speed'"),
    ({"target": "abacus"}, "no target 'abacus'"),
    ({"precision": "some"}, "Unknown precision"),
]


@pytest.mark.parametrize(("options", "told"), OPTIONS)
def test_options_are_checked(options: dict[str, Any], told: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=told):
        torch.compile(block, backend=kernelwright.backend, options=options)(torch.randn(2, 8))


def test_options_are_used() -> None:
    x = torch.randn(4, 8)
    compiling = Compiling(options={"target": "cpu", "precision": "high"})
    torch.testing.assert_close(compiling(block)(x), block(x))
    assert kinds(compiling) and not compiling.reasons
    other = Compiling(options={"target": "sm_90"})
    with pytest.warns(UserWarning, match="sm_90 is no cpu"):
        other(block)(x)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="mode"):
        torch.compile(block, backend=kernelwright.backend, mode="max-autotune")(x)


def test_a_mode_sees_every_operator() -> None:
    """What stands between a call and the memory is not gone around."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(4, 8)
    compiling = Compiling()
    g = compiling(block)
    g(x)
    (served,) = compiling.served
    with Seeing():
        torch.testing.assert_close(served(x)[0], block(x))
    assert any("softmax" in name for name in seen)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(F.gelu(self.one(x))))


def test_inside_of_distributed_data_parallel(tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        torch.manual_seed(0)
        model, x = Two(), torch.randn(4, 8)
        model(x).square().sum().backward()
        wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        compiling = Compiling()
        parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        y = compiling(parallel)(x)
        y.square().sum().backward()
        found = [p.grad for p in model.parameters()]
        torch.testing.assert_close(found, wanted)
        assert kinds(compiling) and not compiling.reasons
    finally:
        torch.distributed.destroy_process_group()


def test_sizes_beyond_the_limit_run_as_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compile, "MOST_KINDS", 2)

    def f(x: Tensor) -> Tensor:
        return F.softmax(x * 2, 1)

    compiling = Compiling()
    g = compiling(f, dynamic=True)
    with pytest.warns(UserWarning, match="more than 2 kinds of sizes"):
        for count in (3, 4, 5, 6, 3):
            x = torch.randn(2, count)
            torch.testing.assert_close(g(x), f(x))
    assert [len(served.kinds) for served in compiling.served] == [2]


def test_a_served_graph_says_what_it_is() -> None:
    served: list[Served] = []

    def backend(*args: Any) -> Callable[..., Any]:
        made = kernelwright.backend(*args)
        assert isinstance(made, Served)
        served.append(made)
        return made

    torch.compile(block, backend=backend)(torch.randn(4, 8))
    assert repr(served[0]) == "Served(3 operators: 1 kinds by kernels)"
