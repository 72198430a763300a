"""What people do with an optimized live module: pickle, spawn, copy, save, certify and time it."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright import cache, live
from kernelwright.errors import BuildError, InputError, InternalError, VerificationError
from kernelwright.verify.certificate import Certificate, Check

CLASSES = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2 + 1

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x, *, scale=None):
        y = self.norm(self.block(x))
        return y if scale is None else y * scale

class Unbuilt(Block):
    def forward(self, x):
        return torch.tanh(self.linear(x)) * 3 - 1

class WithSave(Block):
    def save(self, where):
        return f"the user's own: {where}"

class WithSavedPart(Block):
    def __init__(self):
        super().__init__()
        self.save = nn.Identity()

class Frozen(Block):
    def __reduce__(self):
        return Frozen, ()
"""


@pytest.fixture(scope="module")
def classes(
    tmp_path_factory: pytest.TempPathFactory, extensions: Path
) -> Iterator[types.ModuleType]:
    """The classes in a module that other processes can import as well."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "live_classes.py").write_text(CLASSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}:{Path(live.__file__).parents[1]}")
        yield importlib.import_module("live_classes")
        del sys.modules["live_classes"]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 16)


def same(a: nn.Module, b: nn.Module, x: torch.Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(a(x), b(x))


def test_the_text_lies_in_the_cache(
    classes: types.ModuleType, x: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fused = kernelwright.optimize(classes.Block(), (x,))
    file = Path(inspect.getfile(type(fused)))
    assert file.parent == cache.root() / "kw_live" and file in {e.path for e in cache.entries()}
    assert "class ModelNew" in inspect.getsource(type(fused))
    assert "def forward" in inspect.getsource(type(fused).forward)
    assert not list(tmp_path.glob("kernelwright*"))


def test_saved_and_loaded_in_another_process(
    classes: types.ModuleType, x: torch.Tensor, tmp_path: Path
) -> None:
    fused = kernelwright.optimize(classes.Net().eval(), (x,))
    torch.save((fused, x), tmp_path / "fused.pt")
    code = (
        "import sys, torch\n"
        "f, x = torch.load(sys.argv[1], weights_only=False)\n"
        "assert type(f).__name__ == 'ModelNew'\n"
        "with torch.no_grad(): torch.save(f(x), sys.argv[2])\n"
    )
    files = [str(tmp_path / "fused.pt"), str(tmp_path / "out.pt")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "out.pt"), fused(x))


def worker(module: nn.Module, x: torch.Tensor, out: multiprocessing.Queue[list[float]]) -> None:
    with torch.no_grad():
        out.put(module(x).flatten().tolist())


def test_in_a_spawned_worker(classes: types.ModuleType, x: torch.Tensor, tmp_path: Path) -> None:
    """The worker's function must be importable, so it is written beside the classes."""
    source = inspect.getsource(worker)
    head = (
        "from __future__ import annotations\nimport multiprocessing, torch\nfrom torch import nn\n"
    )
    path = Path(classes.__file__ or "").with_name("live_worker.py")
    path.write_text(f"{head}\n\n{source}")
    from live_worker import worker as spawned

    fused = kernelwright.optimize(classes.Block(), (x,))
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=spawned, args=(fused, x, out))
    process.start()
    try:
        got = out.get(timeout=120)
    finally:
        process.join(timeout=20)
    with torch.no_grad():
        assert got == fused(x).flatten().tolist()


def test_a_copy_has_weights_of_its_own(classes: types.ModuleType, x: torch.Tensor) -> None:
    original = classes.Block()
    fused = kernelwright.optimize(original, (x,))
    twin = copy.deepcopy(fused)
    assert type(twin) is type(fused) and same(twin, fused, x)
    with torch.no_grad():
        twin.linear.weight.zero_()
    assert not same(twin, fused, x) and same(fused, original, x)
    assert same(pickle.loads(pickle.dumps(fused)), fused, x)


def change(module: nn.Module) -> None:
    """What people do to a model after it was optimized."""
    module.block.linear.register_forward_hook(lambda m, args, y: y + 1)  # type: ignore[union-attr]
    module.norm = nn.Sequential(nn.Identity(), nn.Dropout())
    module.block.register_buffer("more", torch.ones(16))  # type: ignore[union-attr]
    module.train()


def test_a_change_of_the_result_is_none_of_the_model(
    classes: types.ModuleType, x: torch.Tensor
) -> None:
    """Nor the other way round; what is shared are the values of parameters and buffers."""
    original = classes.Net()
    fused = kernelwright.optimize(original, (x,))
    assert all(a is b for a, b in zip(original.parameters(), fused.parameters(), strict=True))
    original(x), fused(x)
    assert original.norm.num_batches_tracked == fused.norm.num_batches_tracked == 2
    for changed, other in ((fused, original), (original, kernelwright.optimize(original, (x,)))):
        other.eval()
        expected, keys = copy.deepcopy(other), set(other.state_dict())
        change(changed)
        assert not any(m.training for m in other.modules()) and set(other.state_dict()) == keys
        assert same(other, expected, x)
    with pytest.warns(UserWarning, match="original forward"):
        assert not same(fused.eval(), expected, x)  # it heeds what was done to it
    with torch.no_grad():
        fused.block.linear.weight.zero_()
    assert not original.block.linear.weight.any()


def test_several_modules_from_one_source(classes: types.ModuleType, x: torch.Tensor) -> None:
    one, two = classes.Block(), classes.Block()
    fused = [kernelwright.optimize(m, (x,)) for m in (one, two)]
    assert type(fused[0]) is type(fused[1])
    again = pickle.loads(pickle.dumps(fused))
    assert same(again[0], one, x) and same(again[1], two, x) and not same(*again, x)


def test_a_subclass_and_a_class_with_its_own_reduce_pickle_their_own_way(
    classes: types.ModuleType, x: torch.Tensor
) -> None:
    fused = kernelwright.optimize(classes.Frozen(), (x,))
    assert type(fused).__reduce_ex__ is object.__reduce_ex__
    base = type(kernelwright.optimize(classes.Block(), (x,)))
    derived = type("Derived", (base,), {})
    assert derived().__reduce_ex__(2)[1][0] is derived


def test_saving_the_file(classes: types.ModuleType, x: torch.Tensor, tmp_path: Path) -> None:
    original = classes.Block()
    fused = kernelwright.optimize(original, (x,))
    path = tmp_path / "block_new.py"
    assert fused.save(path) == path == kernelwright.save(fused, str(path))
    spec = importlib.util.spec_from_file_location("block_new", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    new = module.ModelNew()
    new.load_state_dict(original.state_dict())
    assert same(new, original, x)
    with pytest.raises(InputError, match=r"not made by kernelwright\.optimize"):
        kernelwright.save(original, path)
    with pytest.raises(InputError, match="does not exist"):
        fused.save(tmp_path / "absent" / "file.py")


def test_a_save_of_the_users_own_stays(
    classes: types.ModuleType, x: torch.Tensor, tmp_path: Path
) -> None:
    fused = kernelwright.optimize(classes.WithSave(), (x,))
    assert fused.save("here") == "the user's own: here"
    part = kernelwright.optimize(classes.WithSavedPart(), (x,))
    assert isinstance(part.save, nn.Identity)
    for module in (fused, part):
        assert "class ModelNew" in kernelwright.save(module, tmp_path / "new.py").read_text()


def test_a_text_that_does_not_run_is_our_failure(extensions: Path) -> None:
    with pytest.raises(InternalError, match=r"ZeroDivisionError at \S+Broken_\w+\.py:2:") as caught:
        live.load_class("x = 1\nx / 0\n", "Broken")
    assert "bug in kernelwright" in str(caught.value)
    with pytest.raises(InputError, match="no_such_module"):
        live.load_class("import no_such_module\n", "Lonely")


def test_a_compiler_that_fails_is_a_build_error(
    classes: types.ModuleType, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="could not be built"):
        kernelwright.optimize(classes.Unbuilt(), (x,))


def passed(certificate: Certificate) -> dict[str, bool | None]:
    return {check.name: check.passed for check in certificate.checks}


def test_live_modules_are_certified(
    classes: types.ModuleType, x: torch.Tensor, tmp_path: Path
) -> None:
    original = classes.Net()
    fused = kernelwright.optimize(original, (x,))
    before = copy.deepcopy(original.state_dict())
    certificate = kernelwright.verify(original, fused, (x,), quick=True)
    told = passed(certificate)
    assert certificate.model == "Net" and certificate.candidate == "ModelNew"
    for check in ("runs", "state_dict", "structure", "oracle", "random parameters", "batch 7"):
        assert told[check] is True, certificate
    assert all(torch.equal(v, before[k]) for k, v in original.state_dict().items())
    fused.save(tmp_path / "new.py")
    certificate = kernelwright.verify(original, tmp_path / "new.py", (x,), quick=True)
    assert passed(certificate)["oracle"] is True


def test_any_module_is_certified_on_inputs_by_name(
    classes: types.ModuleType, x: torch.Tensor
) -> None:
    original = classes.Net()
    named = {"scale": torch.rand(16)}
    told = passed(kernelwright.verify(original, copy.deepcopy(original), (x,), named, quick=True))
    assert told["oracle"] is True and told["gradients"] is True
    wrong = copy.deepcopy(original)
    wrong.norm.eps = 1.0
    told = passed(kernelwright.verify(original, wrong, (x,), named, quick=True))
    assert told["oracle"] is False


def test_classes_of_a_script_are_certified(extensions: Path, tmp_path: Path) -> None:
    script = CLASSES + (
        "\nimport kernelwright\n"
        "x = torch.randn(8, 16)\n"
        "net = Net()\n"
        "fused = kernelwright.optimize(net, (x,))\n"
        "certificate = kernelwright.verify(net, fused, (x,), quick=True)\n"
        "print({c.name: c.passed for c in certificate.checks}['oracle'])\n"
    )
    (tmp_path / "script.py").write_text(script)
    path = {"PYTHONPATH": str(Path(live.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    path["TORCH_EXTENSIONS_DIR"] = str(extensions)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        check=False,
        env=path,
    )
    assert done.stdout == "True\n", done.stderr


def test_what_cannot_be_pickled_is_one_sentence(x: torch.Tensor) -> None:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    with pytest.raises(InputError, match="This Local cannot be pickled"):
        kernelwright.verify(Local(), Local(), (x,))


def test_optimize_with_verify(
    classes: types.ModuleType, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelwright.verify import live as verifying

    def told(verdict: bool) -> Certificate:
        return Certificate("Net", "ModelNew", "cpu", "highest", (Check("oracle", verdict, ""),))

    monkeypatch.setattr(verifying, "verify_compiled", lambda *args: told(True))
    assert type(kernelwright.optimize(classes.Block(), (x,), verify=True)).__name__ == "ModelNew"
    monkeypatch.setattr(verifying, "verify_compiled", lambda *args: told(False))
    with pytest.raises(VerificationError) as caught:
        kernelwright.optimize(classes.Block(), (x,), verify=True)
    assert caught.value.certificate == told(False)


def test_live_modules_are_timed_and_left_as_they_were(
    classes: types.ModuleType, x: torch.Tensor
) -> None:
    original = classes.Net()
    fused = kernelwright.optimize(original, (x,))
    before, generator = copy.deepcopy(original.state_dict()), torch.get_rng_state()
    options = {"baselines": ("eager",), "seconds": 0.05}
    timings = kernelwright.bench(original, fused, (x,), **options)
    assert timings.model == "Net" and timings.over_eager is not None
    assert timings.problems == () and timings.verified
    assert all(torch.equal(v, before[k]) for k, v in original.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    named = {"scale": torch.rand(16)}
    timings = kernelwright.bench(original, copy.deepcopy(original), (x,), named, **options)
    assert timings.problems == ()
    with pytest.raises(InputError, match="different modes"):
        kernelwright.bench(original, copy.deepcopy(fused).eval(), (x,), **options)


def test_files_and_live_modules_are_not_mixed_up(x: torch.Tensor) -> None:
    with pytest.raises(InputError, match="get_inputs"):
        kernelwright.optimize("model.py", (x,))
    with pytest.raises(InputError, match="candidate's file"):
        kernelwright.verify("model.py", nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"move it with \.to"):
        kernelwright.optimize(nn.Linear(16, 16), (x,), device="cpu")
