"""The emitted text of generated products: both ways to a product, and weights that are frozen."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from written import Written, planned

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem, load_source, problem_from_module

PATH = next(p for p in checking.MODELS if p.stem == "linear_group_norm_min_add")
HALF_PATH = next(p for p in checking.MODELS if p.stem == "half_linear_gelu_layer_norm")
FREEZE = "def freeze(self):"


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_problem(
        load_problem(PATH, "cpu", precision="highest"), target="cuda", policy=ALWAYS
    )


def fused(compiled: Compiled) -> str:
    return checking.fused(compiled)


def test_both_ways_are_there(compiled: Compiled) -> None:
    text = fused(compiled)
    test = "if _KW_GENERATED_GEMM and batch >= 1 and _kw_capability(device) == (9, 0):"
    assert text.count(test) == 1 and compiled.source.count("_KW_GENERATED_GEMM = True") == 1
    ours, _, library = text.partition("    else:\n")
    for kernel in ("linear_group_norm_min", "linear_group_norm_min_finish"):
        assert f'"{kernel}"' in ours
    assert "torch.nn.functional.linear" not in ours and "halves_of(" in ours
    library, _, whole = library.partition("def _kw_fused(")
    assert "torch.nn.functional.linear(" in library and '"bias_group_norm_min"' in library
    # All of a call in one run, where the same holds; the library's product is for the other way.
    run = whole[: whole.index("return")]
    for condition in ("_KW_GENERATED_GEMM", "batch >= 1", "_kw_capability(device) == (9, 0)"):
        assert condition in run[: run.index("_kw_empty(")]
    assert run.count("_kw_run(") == 1 and "*_kw_halves_of(" in run
    programs = checking.programs(compiled)
    started = programs[programs.index("static void start_linear_group_norm_min(") :]
    for kernel in ("linear_group_norm_min", "linear_group_norm_min_finish"):
        assert f'run.launch("launch_{kernel}"' in started
    assert "launch_bias_group_norm_min" not in started


def test_the_product_has_no_address(compiled: Compiled) -> None:
    text = checking.programs(compiled)
    epilogue = text[: text.index("\n};")]
    assert "kw::Vec<V> linear_product;" in epilogue
    assert "const float* linear_product" not in epilogue
    assert "store_partial(kw::Stage<2>, float total" in epilogue
    # What the kernel after the library's product has besides.
    assert "finish(kw::Stage<2>" in epilogue and "store_row(" in epilogue
    assert "using BiasGroupNormMin = kw::InMemory<LinearGroupNormMin, float>;" in text


def test_operands_are_named_in_order(compiled: Compiled) -> None:
    text = checking.programs(compiled)
    operands = text[text.index("kw::GemmOperands g{") :].split("};")[0]
    names = [line.rpartition("// ")[2] for line in operands.splitlines()[1:-1]]
    assert names == [
        "left", "right", "left_halves", "left_scales", "right_halves", "right_scales",
        "progress", "batch", "rows", "columns", "depth",
    ]  # fmt: skip
    decided = text[text.index("kw::GemmDecision how{") :].split("};")[0]
    names = [line.rpartition("// ")[2] for line in decided.splitlines()[1:-1]]
    assert names == ["tiles", "clusters", "early", "frozen"]


def test_native_types_need_no_halves() -> None:
    compiled = compile_problem(load_problem(HALF_PATH, "cpu"), target="cuda", policy=ALWAYS)
    assert "halves_of(" not in fused(compiled) and "nullptr" in checking.programs(compiled)
    assert FREEZE not in compiled.source and "batch >= 1 " in fused(compiled)


def test_a_fixed_number_of_rows_is_compared_here() -> None:
    weight = nn.Parameter(torch.randn(40, 32))
    compiled = planned(lambda self, x: F.linear(self.rows, self.weight) + x.sum(), 3, 4,
                       rows=nn.Parameter(torch.randn(100, 32)), weight=weight)  # fmt: skip
    assert "if _KW_GENERATED_GEMM and _kw_capability(device) == (9, 0):" in fused(compiled)


def test_models_without_products_have_none_of_it() -> None:
    compiled = planned(lambda self, x: torch.softmax(x, 1), 3, 4)
    for word in ("_KW_GENERATED_GEMM", "_kw_capability", FREEZE):
        assert word not in compiled.source


def test_a_weight_that_is_computed_cannot_be_frozen() -> None:
    compiled = planned(lambda self, x: F.linear(x, torch.relu(self.weight)), 3, 4,
                       weight=nn.Parameter(torch.randn(16, 4)))  # fmt: skip
    assert "halves_of(" not in fused(compiled) and FREEZE not in compiled.source


def test_a_method_of_the_user_is_not_replaced() -> None:
    class Own(Written):
        def freeze(self) -> str:
            return "the user's"

    module = Own(lambda self, x: torch.relu(self.linear(x)), linear=nn.Linear(4, 16))
    compiled = compile_problem(
        problem_from_module(module, (torch.randn(3, 4),)), target="cuda", policy=ALWAYS
    )
    assert "halves_of(" not in fused(compiled)
    assert FREEZE not in checking.model_functions(compiled)


# ---- freezing, with a launch that only takes notes ---------------------------------------------


@pytest.fixture
def emitted(compiled: Compiled, tmp_path: Path) -> ModuleType:
    """The file with a library that starts nothing; `launched`: functions, tensors and sizes."""
    path = tmp_path / "model_new.py"
    path.write_text(compiled.source)
    module: Any = load_source(path)
    module.launched = []

    def start(function: str, device: Any, tensors: Any, sizes: Any, *others: Any) -> None:
        module.launched.append((function, [*tensors], sizes))

    module._kw_capability = lambda device: (9, 0)
    module._kw_processors = lambda device: 132
    module._KW_KERNEL_LIBRARY.start = start
    module._KW_KERNEL_LIBRARY.room = lambda name, sizes: 0  # which the run itself would count
    return module


@pytest.fixture
def model(emitted: ModuleType) -> Any:
    return emitted.ModelNew(*emitted.get_init_inputs())


def halves(model: Any) -> tuple[Any, Any, bool]:
    """What a call works with: halves and scales of the weight, and whether they are frozen."""
    emitted: Any = sys.modules[type(model).__module__]
    fusion, before = emitted._KW_FUSION, len(emitted.launched)
    with torch.no_grad():
        fusion.run(fusion.memo(model), (torch.randn(5, 64),))
    ((function, tensors, sizes),) = emitted.launched[before:]
    *_, high, scales, memory = tensors
    batch, *how, frozen = sizes
    assert function == "run_forward" and batch == 5 and memory.dtype == torch.uint8
    # Without them the kernels split all of it; with them nothing is left to split.
    assert (high is None) == (scales is None) == (not frozen) == (how[2] > 0)
    return high, scales, frozen


def test_weights_are_split_at_every_call(model: Any) -> None:
    assert not halves(model)[2]
    high, scales, _ = halves(model.freeze())
    # two panels of 64 rows, one step of 64 of depth, hi and lo
    assert high.shape == (1, 2, 1, 2, 64, 64) and scales.shape == (128, 2)


def test_freeze_splits_once(model: Any, emitted: ModuleType) -> None:
    names = list(model.state_dict())
    assert model.freeze() is model
    ((function, tensors, sizes),) = emitted.launched
    assert function == "freeze_linear_group_norm_min" and len(tensors) == 3 and sizes == ()
    kept = halves(model)
    assert kept[2] and halves(model)[0] is kept[0]
    assert tensors[0] is model.linear.weight
    assert tensors[1] is kept[0] and tensors[2] is kept[1]
    assert [name for name, *_ in emitted.launched[1:]] == ["run_forward"] * 2
    assert list(model.state_dict()) == names
    assert model.unfreeze() is model and not halves(model)[2]


def change_in_place(model: Any) -> None:
    with torch.no_grad():
        model.linear.weight.mul_(2)


def exchange(model: Any) -> None:
    model.linear.weight = nn.Parameter(torch.randn(128, 64))


def exchange_data(model: Any) -> None:
    model.linear.weight.data = torch.randn(128, 64)


@pytest.mark.parametrize("change", [change_in_place, exchange, exchange_data])
def test_a_changed_weight_is_an_error(model: Any, change: Any) -> None:
    model.freeze()
    change(model)
    with pytest.raises(RuntimeError, match=r"linear\.weight changed after freeze\(\); call"):
        halves(model)
    assert halves(model.freeze())[2]


def test_what_replaces_weights_unfreezes(model: Any) -> None:
    for act in (
        lambda: model.to(torch.float32),
        lambda: model.double().float(),
        lambda: model.load_state_dict(model.state_dict()),
        lambda: nn.Sequential(model).load_state_dict(nn.Sequential(model).state_dict()),
    ):
        model.freeze()
        act()
        assert not halves(model)[2]


def test_copies_start_unfrozen(model: Any) -> None:
    model.freeze()
    assert not halves(copy.deepcopy(model))[2] and halves(model)[2]
