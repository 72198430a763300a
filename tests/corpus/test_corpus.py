"""The corpus, small: every chain is certified on the CPU, and plans for a GPU.

The chains are those of benchmarks/corpus, which are certified and timed on a GPU at full size.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import checking
import pytest
import torch
import verifying

from kernelwright import pipeline
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.graph import Contraction
from kernelwright.pipeline import compile_problem
from kernelwright.problem import in_mode, load_problem, load_source
from kernelwright.verify.session import Session, certify, chosen, job_for

BENCHMARKS = checking.TESTS.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import children  # noqa: E402
import corpus  # noqa: E402
import corpus_chart  # noqa: E402
import corpus_files  # noqa: E402
import model_files  # noqa: E402

CHAINS = corpus_files.CHAINS
MODES = [(chain, mode) for chain in CHAINS for mode in corpus_files.modes(chain)]


def test_the_corpus_covers_the_regime() -> None:
    led = [chain for chain in CHAINS if corpus_files.convolves(chain)]
    assert len(led) >= 44
    kinds = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
    assert all(sum(chain.startswith(kind) for chain in led) >= 8 for kind in kinds)
    words = "grouped depthwise stride dilated residual dropout batch_norm group_norm instance_norm"
    words += " layer_norm max_pool average_pool softmax log_sum_exp mean sum min max"
    assert not [word for word in words.split() if not any(word in chain for chain in led)]
    assert sum(len(corpus_files.modes(chain)) == 2 for chain in led) >= 5


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_runs_small_and_is_never_constant(chain: str, tmp_path: Path) -> None:
    assert model_files.variants(corpus_files.FOLDER / f"{chain}.py") == ["full", "small"]
    user = load_source(corpus_files.write(chain, True, tmp_path))
    torch.manual_seed(0)
    model = user.Model(*user.get_init_inputs())
    assert not [name for name, value in model.named_parameters() if not value.count_nonzero()]
    with torch.no_grad():
        results = [model(*user.get_inputs()) for _ in range(2)]
    assert all(y.isfinite().all() for y in results)
    assert not torch.equal(*results)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_captures_and_plans_for_a_gpu(
    chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = corpus_files.write(chain, True, tmp_path)
    modes = corpus_files.modes(chain)
    for mode in modes:
        problem = in_mode(load_problem(path, "cpu"), mode == "train")
        graph = capture(problem)
        assert graph.mode == (mode if len(modes) == 2 else "any")
        assert any(isinstance(node.payload, Contraction) for node in expand(graph))
        monkeypatch.setattr(pipeline, "capture", lambda _, graph=graph: graph)
        made = compile_problem(problem, target="cuda")
        compile(made.source, path.name, "exec")
        assert not made.captured.contract.fixed, "the batch is free"
        assert made.planned.regions


@pytest.mark.parametrize(("chain", "mode"), MODES)
def test_a_chain_is_certified(chain: str, mode: str, tmp_path: Path, extensions: Path) -> None:
    """On the CPU, by a quick run of verify; that of the GPU is part of the benchmark."""
    path = corpus_files.write(chain, True, tmp_path)
    compiled = compile_problem(in_mode(load_problem(path, "cpu"), mode == "train"))
    assert any(row.fate == "fused" for row in compiled.ledger)
    emitted = tmp_path / f"{chain}_new.py"
    emitted.write_text(compiled.source)
    job = job_for(path, emitted, "cpu", "highest", mode == "train", verifying.SEED)
    session = Session(job, verifying.SECONDS, None, asked="drop-in")
    certificate = certify(session, verifying.server(), chosen((), quick=True))
    assert certificate.passed, [str(check) for check in certificate.failures]


# ---- the runner ----------------------------------------------------------------------------------


def run(folder: Path, *more: str) -> tuple[str, list[dict[str, object]]]:
    command = [sys.executable, str(BENCHMARKS / "corpus.py"), "--device", "cpu", "--small"]
    command += ["--rounds", "2", "--verify", "0", "--no-compile", "--results", str(folder), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = folder.glob("*-corpus-small.json")
    return done.stderr, json.loads(found.read_text())["parts"]["Chains at highest, ms"]


def test_the_runner_measures_and_goes_on_where_it_was(tmp_path: Path, extensions: Path) -> None:
    said, rows = run(tmp_path, "--only", "linear_mean_tanh")
    assert "[1/1]" in said
    (row,) = rows
    assert {"eager", "ours"} == set(row["ms"]) and "problem" not in row
    assert row["flops"] == row["flops_of_model"] == 2 * 5 * 24 * 17
    said, again = run(tmp_path, "--resume", "--only", "linear_mean_tanh")
    assert said == "" and again == rows
    assert "| led by a Linear | 1 |" in next(tmp_path.glob("*.md")).read_text()


def record(chain: str, ours: float, **more: object) -> dict[str, object]:
    ms = {"eager": 8.0, "compile": 4.0, "max-autotune": 5.0, "ours": ours}
    flops = {"flops_of_plan": 100, "flops_of_model": 100}
    floor = {"floor_ms": 1.0, "memory_floor_ms": 0.5}
    label = {"chain": chain, "mode": "train", "certified": True, "fallbacks": {}}
    return label | {"ms": ms} | flops | floor | more


def test_means_are_of_certified_chains_and_collapses_stand_apart() -> None:
    rows = [
        record("conv2d_relu_bias", 2.0),
        record("conv2d_average_pool_elu", 0.5, flops_of_plan=10),
        record("conv2d_softmax_scale", 0.01, certified=False),
        record("conv2d_instance_norm_mish", 0.01, fallbacks={"a shape": 1}),
        {"chain": "conv3d_gelu_scale_bias", "mode": "train", "problem": "stopped after 9 s"},
    ]
    sheet = corpus.summary(rows)
    led, collapses, others, linear = sheet.record
    assert (led["count"], led["certified"], led["measured"], led["as_fast"]) == (5, 3, 2, 2)
    assert led["means"]["compile"] == pytest.approx((2 * 8) ** 0.5)
    assert collapses["means"]["floor"] == pytest.approx(1.0), "a tenth of the flops: memory binds"
    assert others["means"]["floor"] == pytest.approx(2.0)
    assert linear["means"]["eager"] is None
    assert corpus.cells(rows[1])[0] == "conv2d_average_pool_elu (collapse)"
    assert corpus.cells(rows[4])[0] == "conv3d_gelu_scale_bias (FAILED)"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_sum_over_windows_is_no_collapse_and_a_pool_in_the_weights_is(
    target: str, tmp_path: Path
) -> None:
    """On a CPU the average over sixteen places stays behind its convolution."""
    flops = {}
    for chain in ("conv2d_depthwise_hardswish", "conv2d_average_pool_elu"):
        problem = load_problem(corpus_files.write(chain, True, tmp_path), "cpu")
        made = compile_problem(problem, target=target)
        written = children.contraction_flops(expand(made.captured), problem.batch)
        flops[chain] = (children.planned_flops(made), written)
    depthwise, pooled = flops.values()
    assert depthwise == (2 * 3 * 5 * 9 * 9 * 9, 2 * 3 * 5 * 9 * 9 * 9)
    assert pooled[1] == 2 * 3 * 8 * 3 * 9 * 9 * 9
    assert pooled[0] == pooled[1] if target == "cpu" else pooled[0] < pooled[1]


def test_the_chart_has_a_bar_for_each_chain_and_its_floor(tmp_path: Path) -> None:
    rows = corpus.chart_rows([record("conv2d_relu_bias", 2.0), record("conv3d_gelu_scale_bias", 8)])
    assert rows == [("conv2d_relu_bias", 2.0, 4.0), ("conv3d_gelu_scale_bias", 0.5, 4.0)]
    path = tmp_path / "chart.svg"
    corpus_chart.write_chart(path, [], "a machine")
    assert not path.exists()
    corpus_chart.write_chart(path, rows, "a <machine>")
    text = path.read_text()
    assert text.count(corpus_chart.OURS) == text.count(corpus_chart.SLOWER) == 1
    assert text.count(corpus_chart.FLOOR) == 2 and "a &lt;machine&gt;" in text
