"""Which tiles are tried, which one is taken, and what is kept of it; times come from a table."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import checking
import pytest
import torch
from torch import nn
from written import Written

from kernelwright import tile_cache
from kernelwright.bench import tiles as timed
from kernelwright.cli import main
from kernelwright.errors import InputError
from kernelwright.lower import GemmKernel, Tile
from kernelwright.lower.gemm import Candidate, candidates, fitting, tile_for
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, WHERE_IT_PAYS, Policy
from kernelwright.problem import Problem, load_problem, problem_from_module
from kernelwright.targets import SM_90, Loop
from kernelwright.tile_cache import Measured
from kernelwright.tune import MOST, tune

H200 = "NVIDIA H200"
PAIRS = "128 columns in pairs in bands of 8"
EXAMPLE = checking.EXAMPLES[0]
DEPTH = 512
NAMES = ("kBlockN", "kCluster", "kBand")


def linear(columns: int, rows: int = 1024, dtype: torch.dtype = torch.float32) -> Problem:
    module = Written(lambda self, x: torch.relu(self.linear(x)), linear=nn.Linear(DEPTH, columns))
    return problem_from_module(
        module.to(dtype), (torch.randn(rows, DEPTH, dtype=dtype),), "highest"
    )


def generated(compiled: Compiled) -> list[GemmKernel]:
    return [k for k in compiled.kernels if isinstance(k, GemmKernel)]


def the_product(problem: Problem, tiles: dict[str, Tile] | None = None) -> GemmKernel:
    (kernel,) = generated(compile_problem(problem, target="cuda", tiles=tiles, policy=ALWAYS))
    return kernel


def ranked(columns: int, rows: int = 1024, dtype: torch.dtype = torch.float32) -> list[Candidate]:
    kernel = the_product(linear(columns, dtype=dtype))
    assert kernel.region.program is not None
    return candidates(kernel.gemm, kernel.region.program, rows)


def constants(kernel: GemmKernel) -> tuple[int, ...]:
    return tuple(dict(kernel.config.constants)[name] for name in NAMES)


# ---- the candidates ----------------------------------------------------------------------------


def test_candidates_are_ranked_and_reasoned() -> None:
    found = ranked(8192)
    usual = [c for c in found if c.tile.at_once == 0]
    assert len({c.tile.shape for c in found}) == len(found) == len(usual) + 1
    assert len(usual) == 4 * 2 * 3
    fit = [c for c in found if not c.refused]
    assert found[: len(fit)] == fit, "the refused ones come last"
    assert [c.cost for c in fit] == sorted(c.cost for c in fit)
    assert {c.refused for c in found if c.tile.columns > 128} == {"too many accumulators"}
    assert {c.tile.band for c in fit} == {8, 4}
    same = {c.refused for c in found if c.tile.band == 16 and c.tile.columns <= 128}
    assert same == {"as in bands of 8: 8 tile(s) down"}
    assert all("for each multiprocessor" in c.tile.why for c in found)


@pytest.mark.parametrize(
    ("dtype", "shape"), [(torch.float32, (128, 2, 8)), (torch.bfloat16, (256, 2, 8))]
)
def test_the_default_at_the_founding_sizes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first = ranked(8192, dtype=dtype)[0]
    assert first.tile.shape == (*shape, 0)
    kernel = the_product(linear(8192, dtype=dtype))
    assert constants(kernel) == shape
    assert kernel.region.program is not None
    assert tile_for(kernel.gemm, kernel.region.program) == first.tile


def test_pairs_that_waste_much_are_not_made() -> None:
    """Of five columns of tiles a pair would run six; of 101, one more hardly counts."""
    few = ranked(320)[0].tile
    assert few.cluster == 1 and "no pairs: 5 across is odd" in few.why
    many = ranked(101 * 128, rows=2048)[0].tile
    assert many.cluster == 2 and many.columns == 128
    assert "one column of tiles in 102 for nothing" in many.why


def test_two_tiles_at_once_are_a_choice_where_both_can_be() -> None:
    first, second = (c.tile for c in ranked(8192)[:2])
    assert first.shape == (128, 2, 8, 0) and "two tiles at once take 2 wave(s)" in first.why
    assert second.shape == (128, 2, 8, 1) and "two tiles" not in second.why
    assert str(second) == f"{PAIRS}, one at once"
    assert all(c.tile.at_once == 0 for c in ranked(8192, dtype=torch.bfloat16))


def test_few_rows_have_one_band() -> None:
    assert {c.tile.band for c in ranked(8192, rows=300) if not c.refused} == {8}
    assert {c.tile.band for c in ranked(8192, rows=4096) if not c.refused} == {8, 4, 16}


# ---- overriding --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 1, 16), (128, 2, 4)])
def test_overrides_land_in_the_text(shape: tuple[int, int, int], tmp_path: Path) -> None:
    problem = load_problem(checking.reduced_example(EXAMPLE, tmp_path), "cpu", "highest")
    name = the_product(problem).name
    compiled = compile_problem(
        problem, target="cuda", tiles={name: Tile(*shape, "as was asked")}, policy=ALWAYS
    )
    text = checking.programs(compiled)
    config = text[text.index("// as was asked\n") :].split("};")[0]
    found = dict(re.findall(r"constexpr int (\w+) = (\d+);", config))
    assert tuple(int(found[n]) for n in NAMES) == shape
    assert any("as was asked" in k for k in compiled.to_json()["kernels"])


@pytest.mark.parametrize(("cluster", "words"), [(1, 1 + 5), (2, 1 + 6)])
def test_a_pair_that_hangs_over_has_its_place_in_the_progress(cluster: int, words: int) -> None:
    problem = linear(320)
    tiles = {the_product(problem).name: Tile(64, cluster, 8, "as was asked")}
    source = compile_problem(problem, target="cuda", tiles=tiles, policy=ALWAYS).source
    assert f"progress = _kw_empty(({words},), torch.int32, device)" in source


def test_overrides_that_cannot_be_are_refused() -> None:
    problem = linear(256)
    name = the_product(problem).name
    for tile, why in (
        (Tile(256, 2, 8, ""), "too many accumulators"),
        (Tile(128, 3, 8, ""), "not among the tiles"),
        (Tile(96, 2, 8, ""), "not among the tiles"),
    ):
        with pytest.raises(InputError, match=why):
            the_product(problem, {name: tile})
    with pytest.raises(InputError, match=f"'other' is no generated product; choose from: {name}"):
        the_product(problem, {"other": Tile(64, 2, 8, "")})


# ---- the cache ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    assert tile_cache.cache_file() == folder / "tiles.json"
    return folder / "tiles.json"


def test_without_a_folder_of_its_own_it_is_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tile_cache.cache_file() == tmp_path / ".cache" / "kernelwright" / "tiles.json"


def test_the_cache_round_trips(cache: Path) -> None:
    one, two = (
        Measured((128, 2, 4, 0), (128, 2, 8, 0), 0.031),
        Measured((64, 1, 8, 0), (64, 2, 8, 0), -0.002),
    )
    assert tile_cache.recall("one") is None
    tile_cache.keep("one", one)
    tile_cache.keep("two", two)
    assert tile_cache.recall("one") == one and tile_cache.recall("two") == two
    assert {p.name for p in cache.parent.iterdir()} == {"tiles.json", "tiles.lock"}


GOOD = {"chosen": [128, 2, 4, 0], "other": [128, 2, 8, 2], "gain": 0.03}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "\udcff",
        "[" * 100_000,
        json.dumps({"one": GOOD}),
        json.dumps({"format": 0, "tiles": {"one": GOOD}}),
        json.dumps({"format": 2, "tiles": [GOOD]}),
        *(
            json.dumps({"format": 2, "tiles": {"one": bad}})
            for bad in (
                None,
                {},
                GOOD | {"chosen": [128, 2]},
                GOOD | {"chosen": "128"},
                GOOD | {"chosen": [128, 2, 4, True]},
                GOOD | {"other": [128, 2, 8, "8\n#error"]},
                GOOD | {"gain": float("nan")},
                GOOD | {"gain": "3%"},
            )
        ),
    ],
)
def test_a_damaged_cache_is_as_if_it_were_not_there(cache: Path, content: str) -> None:
    cache.parent.mkdir()
    cache.write_text(content, errors="surrogateescape")
    assert tile_cache.recall("one") is None
    kept = Measured((64, 1, 8, 0), (64, 2, 8, 0), 0.5)
    tile_cache.keep("one", kept)
    assert tile_cache.recall("one") == kept


# ---- the choice --------------------------------------------------------------------------------


class Table:
    """A stand-in for the machine: times by the constants in the text, and a note of what it ran."""

    def __init__(self, times: dict[tuple[int, ...], float | str], usual: float = 1.0) -> None:
        self.times = times
        self.usual = usual
        self.asked: list[tuple[int, ...]] = []
        self.told: list[str] = []

    def __call__(self, problem: Problem, sources: Sequence[str]) -> list[float | str]:
        shapes = []
        for source in sources:
            config = source[source.rindex("// tiles of 128 x ") :]
            found = [re.search(rf"{name} = (\d+);", config) for name in NAMES]
            at_once = re.findall(r"product_launch\([^)]*\(\d+, \d+, \d+\), \d, \w+, (\d)\)", source)
            shapes.append((*(int(m.group(1)) for m in found if m), int(at_once[-1])))
        self.asked += shapes
        return [self.times.get(shape, self.usual) for shape in shapes]

    def tell(self, name: str, summary: str) -> None:
        assert name == "tune"
        self.told.append(summary)

    def tune(self, problem: Problem, most: int = MOST, policy: Policy = ALWAYS) -> dict[str, Tile]:
        return tune(
            problem, self.tell, most=most, machine=H200, measure=self, policy=policy, target=SM_90
        )


def test_the_fastest_is_taken_and_said() -> None:
    problem = linear(8192)
    table = Table({(128, 2, 4, 0): 0.97, (128, 1, 8, 0): 0.98})
    tiles = table.tune(problem)
    others = [(128, 2, 8, 1), (128, 2, 4, 0), (128, 1, 8, 0), (128, 1, 4, 0)]
    assert table.asked == [(128, 2, 8, 0), *others]
    ((name, tile),) = tiles.items()
    measured = f"measured on {H200}: 3.1% faster than {PAIRS}"
    assert tile.shape == (128, 2, 4, 0) and tile.why.endswith(measured)
    assert [f"{name}: {tile}, {measured}"] == table.told
    compiled = compile_problem(problem, target="cuda", tiles=tiles, policy=ALWAYS)
    assert constants(generated(compiled)[0]) == (128, 2, 4)
    assert "3.1% faster than 128 columns in pairs" in compiled.source.replace("\n// ", " ")


def test_a_small_win_keeps_the_default() -> None:
    ((_, tile),) = Table({(128, 1, 8, 0): 0.992}).tune(linear(8192)).items()
    assert tile.shape == (128, 2, 8, 0)
    assert tile.why.endswith("128 columns alone in bands of 8 is only 0.8% faster")


def test_a_default_that_wins_says_by_how_much() -> None:
    ((_, tile),) = Table({(128, 2, 8, 0): 0.95, (128, 1, 4, 0): 0.97}).tune(linear(8192)).items()
    assert tile.shape == (128, 2, 8, 0)
    assert tile.why.endswith("2.1% faster than 128 columns alone in bands of 4")


def test_the_number_of_candidates_can_be_chosen() -> None:
    table = Table({})
    table.tune(linear(8192), most=2)
    assert table.asked == [(128, 2, 8, 0), (128, 2, 8, 1)]


def test_a_second_run_measures_nothing(cache: Path) -> None:
    problem = linear(8192)
    first, second = Table({(128, 1, 4, 0): 0.5}), Table({})
    tiles = first.tune(problem)
    assert second.tune(problem) == tiles and not second.asked
    assert "without measuring; delete it to measure again" in second.told[0]
    assert str(cache) in second.told[0]
    for other in (linear(8192, rows=2048), linear(4096), linear(8192, dtype=torch.bfloat16)):
        third = Table({})
        third.tune(other)
        assert third.asked, "another size or type is another measurement"
    fourth = Table({})
    tune(problem, machine="NVIDIA H100", measure=fourth, policy=ALWAYS, target=SM_90)
    assert fourth.asked


def test_a_kept_tile_that_does_not_fit_is_measured_again(cache: Path) -> None:
    problem = linear(8192)
    Table({}).tune(problem)
    content = json.loads(cache.read_text())
    for entry in content["tiles"].values():
        entry["chosen"] = [256, 2, 8, 0]
    cache.write_text(json.dumps(content))
    table = Table({})
    ((_, tile),) = table.tune(problem).items()
    assert table.asked and tile.shape == (128, 2, 8, 0)


def test_what_cannot_be_measured_is_left_out() -> None:
    table = Table({(128, 2, 4, 0): "it does not build", (128, 1, 8, 0): 0.9})
    ((_, tile),) = table.tune(linear(8192)).items()
    assert tile.shape == (128, 1, 8, 0)
    assert "128 columns in pairs in bands of 4 has no time, it does not build" in table.told[0]
    without = Table({(128, 2, 8, 0): "no GPU memory"})
    assert without.tune(linear(8192, rows=1023)) == {}
    assert without.told[-1].endswith("stays, nothing could be compared with it")


def test_products_are_tuned_one_at_a_time() -> None:
    module = Written(
        lambda self, x: torch.sigmoid(self.two(torch.relu(self.one(x)))),
        one=nn.Linear(8, 1024),
        two=nn.Linear(1024, 512),
    )
    problem = problem_from_module(module, (torch.randn(200, 8),), "highest")
    table = Table({})
    tiles = table.tune(problem, most=2)
    assert list(tiles) == [
        k.name for k in generated(compile_problem(problem, target="cuda", policy=ALWAYS))
    ]
    assert len(tiles) == 2 and len(table.asked) == 4


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.write_text("a file where the folder should be")
    table = Table({(128, 2, 4, 0): 0.5})
    ((_, tile),) = table.tune(linear(8192)).items()
    assert tile.shape == (128, 2, 4, 0) and "could not be kept" in table.told[-1]


# ---- the times ---------------------------------------------------------------------------------

NEW = """
import collections, torch
class ModelNew(torch.nn.Module):
    fallbacks = collections.Counter()
    def forward(self, x):
        {act}
"""


def test_models_that_are_wrong_or_fail_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "check_toolchain", lambda device: None)
    problem = problem_from_module(nn.BatchNorm1d(8), (torch.randn(64, 8),))
    before, seed = problem.module.state_dict()["running_mean"].clone(), torch.get_rng_state()
    norm = "return torch.nn.BatchNorm1d.forward(self, x)"
    acts = (
        norm,
        f"'the same'; {norm}",
        "return x",
        "raise ValueError('no memory')",
        f"self.fallbacks['it may not'] += 1; {norm}",
    )
    texts = [NEW.format(act=a).replace("nn.Module)", "nn.BatchNorm1d)") for a in acts]
    first, second, *rest = timed.measure(problem, [*texts, "1 / 0"])
    assert isinstance(first, float) and isinstance(second, float)
    for why, said in zip(rest, ("float64 says", "no memory", "it may not", "ZeroDiv"), strict=True):
        assert isinstance(why, str) and said in why
    assert torch.equal(problem.module.state_dict()["running_mean"], before)
    assert torch.equal(torch.get_rng_state(), seed)


# ---- nothing to tune ---------------------------------------------------------------------------


def test_few_rows_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "fewest", lambda *sizes: 65)
    table = Table({})
    assert table.tune(linear(8192, rows=64), policy=WHERE_IT_PAYS) == {} and not table.asked
    assert "left to the library below 65 rows and has 64" in table.told[0]


def test_a_model_without_products() -> None:
    problem = problem_from_module(Written(lambda self, x: torch.relu(x)), (torch.randn(80, 8),))
    table = Table({})
    assert table.tune(problem) == {} and "no product of this model" in table.told[0]


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(16, 8)]
"""


def test_the_command_line_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    arguments = ["optimize", str(path), "--device", "cpu", "--tune", "--no-verify", "--no-bench"]
    assert main(arguments) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if " tune " in line]
    assert len(said) == 1 and "There is nothing to tune on cpu: products are generated" in said[0]
    assert (tmp_path / "model_new.py").is_file()


def test_the_api_without_a_gpu() -> None:
    import kernelwright

    told: list[str] = []
    compiled = kernelwright.explain(
        Written(lambda self, x: torch.relu(x)), (torch.randn(4, 8),), tune=True,
        progress=lambda name, summary: told.append(f"{name}: {summary}"),
    )  # fmt: skip
    assert told[0].startswith("tune: There is nothing to tune on cpu")
    assert "class ModelNew" in compiled.source


def test_ranked_tiles_are_those_that_fit() -> None:
    kernel = the_product(linear(960))
    assert kernel.region.program is not None
    tiles = fitting(kernel.gemm, kernel.region.program)
    assert tiles and all(t.columns in kernel.gemm.loop.widths for t in tiles)
