"""Prints figures.md and the README's table of speed from the files of benchmarks/results.

In: the JSON files that the benchmarks wrote. Out: with `--write`, figures.md and the README's part
between the markers `speed`; without it, figures.md on standard output. No figure of either is typed
by hand: tests/null/test_docs.py checks that the committed texts are what this script gives.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = DOCS / "figures.md"
README = ROOT / "README.md"

Record = dict[str, Any]
FOUNDING, NETWORKS = "nvidia-h200-founding", "nvidia-h200-networks"
TRAINING = "nvidia-h200-training"
CORPUS, SWEEP, LARGE = "nvidia-h200-corpus", "nvidia-h200-sweep", "nvidia-h200-large"
ON_CPUS = ("xeon-2-threads-corpus-batch-4", "neoverse-n1-2-threads-corpus-batch-4")


def generated() -> dict[Path, str]:
    """Every file with figures, as it should read."""
    text = README.read_text()
    start, end = "<!-- speed:start -->", "<!-- speed:end -->"
    assert text.count(start) == text.count(end) == 1, f"{start} ... {end} must occur once"
    head, tail = text.split(start)[0], text.split(end)[1]
    return {PAGE: page(), README: f"{head}{start}\n{readme_table()}\n{end}{tail}"}


# ---- the README's table --------------------------------------------------------------------------


def readme_table() -> str:
    rows = [*_founding_rows(), *_training_rows(), *_network_rows(), *_chain_rows()]
    return _table(("what ran", "where", "over eager", "over torch.compile"), rows, left=2)


def _founding_rows() -> Iterable[Sequence[str]]:
    records = part(FOUNDING, "Time on the device")
    for precision, ours in (("highest", "kernelwright"), ("highest", "frozen"), ("high", "frozen")):
        chosen = [r["ms"] for r in records if r["precision"] == precision]
        frozen = ", weights frozen" if ours == "frozen" else ""
        yield (
            f"[the three founding models](docs/figures.md), float32 `{precision}`{frozen}",
            device(FOUNDING),
            span(ms["eager"] / ms[ours] for ms in chosen),
            span(ms["torch.compile"] / ms[ours] for ms in chosen),
        )


def _training_rows() -> Iterable[Sequence[str]]:
    records = [r for r in part(TRAINING, "A training step") if "eager" in r]
    yield (
        f"[a training step of {len(records)} models](benchmarks/results/{TRAINING}.md), float32",
        device(TRAINING),
        f"{mean(r['eager'] / r['ours'] for r in records)} in the mean",
        f"{mean(r['compile'] / r['ours'] for r in records)} in the mean",
    )


def _network_rows() -> Iterable[Sequence[str]]:
    records = [r for r in part(NETWORKS, "Networks") if r["mode"] == "eval"]
    ours = [r["gpu_ms"] for r in records]
    compiled = [ms for ms in ours if "compile" in ms]
    told = f"[{len(records)} whole networks](benchmarks/results/{NETWORKS}.md), eval mode"
    yield (
        told,
        device(NETWORKS),
        f"{mean(ms['eager'] / ms['ours'] for ms in ours)} in the mean",
        f"{mean(ms['compile'] / ms['ours'] for ms in compiled)} ({len(compiled)} timed)",
    )


def _chain_rows() -> Iterable[Sequence[str]]:
    for stem in (CORPUS, *ON_CPUS):
        for record in part(stem, "Geometric means"):
            if not record["chains"].startswith("led by") or not record["count"]:
                continue
            means = record["means"]
            yield (
                f"[{record['count']} chains {record['chains']}](benchmarks/results/{stem}.md)",
                device(stem),
                f"{means['eager']:.2f}x in the mean",
                f"{means['compile']:.2f}x in the mean" if means["compile"] else "",
            )


# ---- the page ------------------------------------------------------------------------------------


def page() -> str:
    return (
        "\n\n".join(
            [
                INTRODUCTION,
                "## The founding models",
                FOUNDING_TEXT.format(**facts(FOUNDING)),
                founding("Time on the device", ("error", "eager_error")),
                CALLS_TEXT,
                founding("One synchronous call"),
                "## Whole networks",
                NETWORKS_TEXT.format(**facts(NETWORKS)),
                networks(),
                "## Sizes of one chain",
                SWEEP_TEXT.format(**facts(SWEEP)),
                sizes(),
                "## Chains",
                CHAINS_TEXT,
                chains(),
                "## Large tensors",
                large(),
            ]
        )
        + "\n"
    )


def founding(title: str, more: Sequence[str] = ()) -> str:
    """The tables that benchmarks/founding.py prints."""
    ways = ("eager", "torch.compile", "kernelwright", "frozen")
    rows = []
    for record in part(FOUNDING, title):
        ms = [f"{record['ms'][way]:.3f}" if way in record["ms"] else "" for way in ways]
        bold = [*ms[:2], *(f"**{cell}**" if cell else "" for cell in ms[2:])]
        errors = [f"{record[name]:.1e}" for name in more]
        rows.append((record["model"], record["precision"], *bold, *errors))
    heads = ("model", "precision", *ways, *("error", "eager's error")[: len(more)])
    return _table(heads, rows, left=2)


def networks() -> str:
    rows = []
    for r in part(NETWORKS, "Networks"):
        gpu, call = r["gpu_ms"], r["sync_ms"]
        over = [f"{gpu[way] / gpu['ours']:.2f}x" if way in gpu else "" for way in BASELINES]
        times = [f"{ms[way]:.3f}" if way in ms else "" for ms in (gpu, call) for way in WAYS]
        rows.append((r["network"], r["mode"], *times[:3], *over, *times[3:]))
    heads = ("network", "mode", *(f"GPU {w}" for w in WAYS), *(f"over {w}" for w in BASELINES))
    return _table((*heads, *(f"a call {w}" for w in WAYS)), rows, left=2)


BASELINES = ("eager", "compile")
WAYS = ("eager", "compile", "ours")


def sizes() -> str:
    rows = []
    records = part(SWEEP, "Linear")
    for precision in dict.fromkeys(r["precision"] for r in records):
        chosen = [r for r in records if r["precision"] == precision]
        paths = [r["path"] for r in chosen]
        over = [r["over_compile"] for r in chosen]
        counts = [str(paths.count(path)) for path in ("generated", "few rows", "library")]
        figures = [f"{f(over):.2f}x" for f in (statistics.median, min, max)]
        rows.append((precision, *counts, *figures))
    heads = ("precision", "generated", "few rows", "library", "median", "smallest", "largest")
    return _table(heads, rows, left=1)


def chains() -> str:
    rows = []
    for stem in (CORPUS, *ON_CPUS):
        for r in part(stem, "Geometric means"):
            if r["count"]:
                keys = ("eager", "compile", "max-autotune")
                means = [f"{r['means'][k]:.2f}x" if r["means"][k] else "" for k in keys]
                fast = f"{r['as_fast']} of {r['measured']}"
                rows.append((f"[{device(stem)}]({link(stem)})", r["chains"], fast, *means))
    heads = ("where", "chains", "as fast as the best", "over eager", "compile", "max-autotune")
    return _table(heads, rows, left=2)


def large() -> str:
    records = part(LARGE, "Large")
    over = [r["ms"]["eager"] / r["ms"]["ours"] for r in records if "eager" in r["ms"]]
    rates = [r["gb_per_s"] / 1000 for r in records if r.get("gb_per_s")]
    sizes = [r["gb"] for r in records]
    return LARGE_TEXT.format(
        **facts(LARGE),
        count=len(records),
        least=min(sizes),
        most=max(sizes),
        slow=f"{min(rates):.1f}",
        fast=f"{max(rates):.1f}",
        worst=f"{min(over):.2f}",
        best=f"{max(over):.1f}",
    )


# ---- records, numbers and tables -----------------------------------------------------------------


def part(stem: str, begins: str) -> list[Record]:
    parts = _read(stem)["parts"]
    found = next(name for name in parts if name.startswith(begins))
    records: list[Record] = parts[found]
    return records


def facts(stem: str) -> Record:
    """Where and when a file was made, for a sentence."""
    read = _read(stem)
    known = {k: read[k] for k in ("torch", "date")}
    return known | {"device": device(stem), "link": link(stem)}


def device(stem: str) -> str:
    return str(_read(stem)["device"]).replace("(R)", "").replace(" Processor @", " at")


def link(stem: str) -> str:
    return f"../benchmarks/results/{stem}.md"


def _read(stem: str) -> Record:
    read: Record = json.loads((RESULTS / f"{stem}.json").read_text())
    return read


def mean(ratios: Iterable[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.2f}x"


def span(ratios: Iterable[float]) -> str:
    found = sorted(ratios)
    return f"{found[0]:.2f} to {found[-1]:.2f}x"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    line = "|" + "|".join(["---"] * left + ["---:"] * (len(heads) - left)) + "|"
    cells = [re.sub(r" +$", " ", f"| {' | '.join(row)} |") for row in (heads, *rows)]
    return "\n".join([cells[0], line, *cells[1:]])


INTRODUCTION = """\
# Figures

This page is generated: `PYTHONPATH=src python docs/make_figures.py --write` writes it from the
files of [benchmarks/results](../benchmarks/results/README.md), which name the command and the
conditions of each run. How times are taken: [benchmarking.md](benchmarking.md). Times are in ms and
medians; means of ratios are geometric."""

FOUNDING_TEXT = """\
One {device}, torch {torch}, batch 1024, 8192 features, {date} ([all of it]({link})); GPU time with
a flushed cache, all variants of a row in turns. *Frozen* is `ModelNew.freeze()`: the weight is
split once instead of at every call. The error is that of the output against float64, beside
eager's."""

CALLS_TEXT = """\
A script sees more than the GPU's time. One synchronous call, with gradients enabled as they are by
default, which is how KernelBench's evaluator times a model:"""

NETWORKS_TEXT = """\
At ordinary sizes, float32 `highest`, on one {device}, torch {torch}, {date} ([all of it]({link}));
torch.compile was timed for those led by products. *A call* is a synchronous one with gradients
enabled."""

SWEEP_TEXT = """\
Linear, GroupNorm and LeakyReLU, 1 to 16384 rows by 1000 to 16384 columns, on one {device}, {date}
([all of it]({link})): how many sizes run by which kind of product, and the speed over
torch.compile, which compiled for each of them.

![Speed over torch.compile by the number of rows](../benchmarks/results/nvidia-h200-sweep.svg)"""

CHAINS_TEXT = """\
A chain is a convolution or a Linear and what follows it, at its full size on a GPU and with four
samples on a CPU. In *collapses* algebra leaves no product, or a much smaller one."""

LARGE_TEXT = """\
{count} cases of pointwise chains, softmax, sums and elementwise losses on tensors of {least} to
{most} GB run at {slow} to {fast} TB/s on one {device}, {worst} to {best} times as fast as eager
([all of them]({link}))."""


def main() -> None:
    if "--write" not in sys.argv[1:]:
        print(page(), end="")
        return
    for path, text in generated().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
