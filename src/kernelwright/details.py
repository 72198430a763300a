"""A Compiled as plain data for a report: the model's lines, both graphs, steps, kernels, memory.

In: a Compiled. Out: a dictionary that turns into JSON and back. The one idea: `optimize --json`
records it, so that a report needs neither the compiler nor the machine again, and what a report
shows of a plan stands here and nowhere else.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernelwright import memory
from kernelwright.graph import SOURCES, Graph, Node, hint, product, refs
from kernelwright.ledger import homes
from kernelwright.lower.kernel import GemmKernel
from kernelwright.problem import describe
from kernelwright.targets.target import CoreAttending
from kernelwright.version import __version__

if TYPE_CHECKING:
    from kernelwright.compiled import Compiled
    from kernelwright.lower.few import BesideKernel
    from kernelwright.lower.kernel import Kernel
    from kernelwright.plan.model import Region
    from kernelwright.problem import Problem

GENERATED = "The backward is generated too: "
BACKWARD = (
    "The kernels compute the forward. Gradients are torch's own: when they are asked for, the "
    "original forward runs again and autograd differentiates it."
)


def plan_record(compiled: Compiled) -> dict[str, Any]:
    """What `--json` writes of a plan: its own words, and all that a page needs."""
    return {**compiled.to_json(), "details": details(compiled)}


def details(compiled: Compiled) -> dict[str, Any]:
    """All of it; sizes are those of the example inputs."""
    problem = compiled.problem
    named = {f"{name}={describe(x)}" for name, x in problem.kwargs.items()}
    return {
        "name": problem.name,
        "device": str(problem.device),
        "target": str(compiled.target),
        "mode": "train" if problem.training else "eval",
        "precision": problem.precision,
        "inputs": [*map(describe, problem.inputs), *sorted(named)],
        "batch": problem.batch,
        "kernelwright": __version__,
        "torch": torch.__version__,
        "source": _source(problem, {row.origin for row in compiled.ledger}),
        "before": _before(compiled),
        "steps": _steps(compiled),
        "kernels": [_kernel(compiled, k) for k in _kernels(compiled)],
        "memory": {"before": _eager_memory(compiled), "after": _own_memory(compiled)},
        "backward": f"{GENERATED}{compiled.trained}." if compiled.trained else BACKWARD,
    }


# ---- the user's source ----------------------------------------------------------------------


def _source(problem: Problem, places: set[str]) -> dict[str, Any] | None:
    """The classes and functions that operators come from, with the lines they have in their file.

    An emitted file holds the original among thousands of lines; these alone are the model.
    """
    path = problem.path or _file_of(type(problem.module))
    if path is None:
        return None
    text = problem.source if problem.source is not None else path.read_text(encoding="utf-8")
    lines = {int(n) for name, _, n in (p.rpartition(":") for p in places) if name == path.name}
    spans = [_span(part) for part in ast.parse(text).body]
    named = [(first, last) for first, last in spans if any(first <= n <= last for n in lines)]
    whole = text.splitlines()
    parts = [{"first": a, "text": "\n".join(whole[a - 1 : b])} for a, b in named]
    return {"file": path.name, "lines": len(whole), "parts": parts}


def _file_of(kind: type) -> Path | None:
    try:
        return Path(inspect.getsourcefile(kind) or "")
    except TypeError:
        return None


def _span(part: ast.stmt) -> tuple[int, int]:
    decorators = getattr(part, "decorator_list", [])
    first = min([part.lineno, *(d.lineno for d in decorators)])
    return first, part.end_lineno or part.lineno


# ---- graphs and steps -----------------------------------------------------------------------


def _before(compiled: Compiled) -> list[dict[str, Any]]:
    """The captured operators and the inputs, in running order, each with its steps."""
    graph, found = compiled.captured, homes(compiled.planned)
    folded = _folded(compiled)
    return [
        {
            "name": node.name,
            "op": node.origin.op if node.op not in SOURCES else node.op,
            "type": str(node.type),
            "place": node.origin.place,
            "module": node.origin.module,
            "inputs": _operands(graph, node),
            "steps": [region.name for region in found.get(node.name, ())],
            "fate": _fate(node, found, folded),
            "bytes": _size(node, compiled.problem.batch),
            "result": node.name in refs(graph.outputs),
        }
        for node in graph
        if node.op == "input" or (node.op not in SOURCES and node.op != "getitem")
    ]


def _operands(graph: Graph, node: Node) -> list[str]:
    """Inputs and operators that it reads; weights and buffers are told by their names elsewhere."""
    found: dict[str, None] = {}
    for name in node.inputs:
        while graph[name].op == "getitem":
            name = graph[name].inputs[0]
        if graph[name].op == "input" or graph[name].op not in SOURCES:
            found[name] = None
    return list(found)


def _fate(node: Node, found: dict[str, list[Region]], folded: set[str]) -> str:
    if node.op == "input":
        return "input"
    if node.name in found:
        fused = any(region.program is not None for region in found[node.name])
        return "fused" if fused else "aten"
    return "folded" if node.name in folded else "view"


def _folded(compiled: Compiled) -> set[str]:
    """Operators that a law left nothing of: they have no step, and were no index maps."""
    rows = [row for row in compiled.ledger if row.fate == "folded" and row.where != "a view"]
    ops = {(row.op, row.origin) for row in rows}
    return {n.name for n in compiled.captured if (n.origin.op, n.origin.place) in ops}


def _steps(compiled: Compiled) -> list[dict[str, Any]]:
    """The regions in running order: what they read and write, cost, and come from."""
    plan, batch = compiled.planned, compiled.problem.batch
    makers = {b.name: r.name for r in plan.regions for b in r.outputs}
    own = defaultdict(list)
    for kernel in _kernels(compiled):
        for name in _users(compiled, kernel):
            own[name].append(kernel.name)
    results = {memory.chain(plan.graph, name)[-1] for name in refs(plan.graph.outputs)}
    origins = homes(plan)
    found = []
    for region, row in zip(plan.regions, compiled.regions, strict=True):
        reads = dict.fromkeys(_made_by(plan.graph, name, makers) for name in region.reads)
        sources = [n for n, where in origins.items() if region.name in [r.name for r in where]]
        places = [compiled.captured[n].origin.place for n in sources]
        found.append(
            {
                "name": region.name,
                "kind": region.kind,
                "ops": row.ops,
                "call": region.call.target.removeprefix("torch.ops.") if region.call else "",
                "reads": [name for name in reads if name],
                "kernels": own[region.name],
                "bytes": hint(region.bytes, batch),
                "flops": hint(region.flops, batch),
                "model_us": _own_time(compiled, region),
                "launches": region.launches,
                "places": list(dict.fromkeys(places)),
                "modules": sorted(
                    {m for n in sources if (m := compiled.captured[n].origin.module)}
                ),
                "why": row.why,
                "outputs": [
                    f"{b.name} [{', '.join(str(hint(d, batch)) for d in b.shape)}]"
                    for b in region.outputs
                ],
                "result": any(b.name in results for b in region.outputs),
            }
        )
    return found


def _made_by(graph: Graph, name: str, makers: dict[str, str]) -> str:
    """The step whose memory a value lies in, the input that it is, or nothing for a weight."""
    base = next((n for n in memory.chain(graph, name) if n in makers), None)
    if base is not None:
        return makers[base]
    source = memory.chain(graph, name)[-1] if name in graph.by_name else name
    return source if source in graph.by_name and graph[source].op == "input" else ""


def _own_time(compiled: Compiled, region: Region) -> float | None:
    """What the target's own model of a generated product says, in us; None where it has none."""
    batch = compiled.problem.batch
    if region.gemm is not None:
        gemm = region.gemm
        kernels = [k for k in compiled.kernels if isinstance(k, GemmKernel)]
        shared = compiled.lowered.shared.get(region.name)
        tile = next((k.tile for k in kernels if k.name == shared), None)
        count = hint(gemm.batch[0], batch) * hint(gemm.batch[1], batch)
        sizes = (hint(gemm.rows, batch), gemm.columns, hint(gemm.depth, batch), count)
        return gemm.loop.generated_time(tile.columns, *sizes) if tile is not None else None
    moved, flops = hint(region.bytes, batch), hint(region.flops, batch)
    attention = region.attention
    if attention is not None and isinstance(attention.loop, CoreAttending):
        scores = hint(product(attention.batch), batch) * attention.rows * attention.keys
        return attention.loop.time(flops, scores)
    if attention is not None:
        return attention.loop.time(flops, moved)
    return region.conv.loop.time(flops, moved) if region.conv is not None else None


# ---- kernels --------------------------------------------------------------------------------


def _kernels(compiled: Compiled) -> list[Kernel | BesideKernel]:
    return [*compiled.lowered.kernels, *compiled.lowered.few]


def _users(compiled: Compiled, kernel: Kernel | BesideKernel) -> list[str]:
    """The steps that launch it: a product's second kernel belongs to the product's step."""
    launching = {node for region in compiled.lowered.users[kernel.name] for node in region.nodes}
    return [
        region.name
        for region in compiled.planned.regions
        if launching & {n for part in (region, *region.library) for n in part.nodes}
    ]


def _kernel(compiled: Compiled, kernel: Kernel | BesideKernel) -> dict[str, Any]:
    from kernelwright.lower.kernel import Kernel

    steps = _users(compiled, kernel)
    if not isinstance(kernel, Kernel):
        sizes, why = kernel.told
        return {
            "name": kernel.name,
            "template": kernel.header.partition(".")[0],
            "config": {name: str(size) for name, size in sizes.items()},
            "why": why,
            "steps": steps,
            "program": "",
        }
    return {
        "name": kernel.name,
        "template": kernel.template.symbol,
        "config": dict(kernel.config.constants),
        "why": kernel.config.why,
        "steps": steps,
        "program": str(kernel.program),
    }


# ---- memory ---------------------------------------------------------------------------------


def _size(node: Node, batch: int) -> int:
    return hint(node.type.numel, batch) * node.type.dtype.itemsize


def _eager_memory(compiled: Compiled) -> list[dict[str, Any]]:
    """Live bytes of results while the original's operators run one by one."""
    graph = compiled.captured
    rows = _before(compiled)
    roots: dict[str, str] = {}
    for row in rows:
        through = row["fate"] == "view" and row["inputs"]
        roots[row["name"]] = roots[row["inputs"][0]] if through else row["name"]
    sizes = {r["name"]: r["bytes"] for r in rows if roots[r["name"]] == r["name"]}
    uses = [[roots[name] for name in row["inputs"]] for row in rows]
    made = [[row["name"]] if roots[row["name"]] == row["name"] else [] for row in rows]
    kept = {roots[n] for n in map(_through(graph), refs(graph.outputs)) if n in roots}
    return _live([row["name"] for row in rows], made, uses, sizes, kept)


def _through(graph: Graph) -> Any:
    def whole(name: str) -> str:
        while graph[name].op == "getitem":
            name = graph[name].inputs[0]
        return name

    return whole


def _own_memory(compiled: Compiled) -> list[dict[str, Any]]:
    """The same of the steps; of a product that is made panel by panel one panel is there."""
    plan, batch = compiled.planned, compiled.problem.batch
    panels = {p.product: p.rows for p in compiled.panels}
    inputs = [n for n in plan.graph if n.op == "input"]
    sizes = {n.name: _size(n, batch) for n in inputs}
    for region in plan.regions:
        for b in region.outputs:
            numel = 1
            for d in b.shape:
                numel *= hint(d, batch)
            share = min(1.0, panels[region.name] / max(batch, 1)) if region.name in panels else 1.0
            sizes[b.name] = round(numel * b.dtype.itemsize * share)
    names = [*(n.name for n in inputs), *(r.name for r in plan.regions)]
    made = [*([n.name] for n in inputs), *([b.name for b in r.outputs] for r in plan.regions)]
    base = {
        name: memory.chain(plan.graph, name)
        for r in plan.regions
        for name in r.reads
        if name in plan.graph.by_name
    }
    uses: list[list[str]] = [[] for _ in inputs]
    uses += [[*r.reads, *(b for n in r.reads for b in base.get(n, ()))] for r in plan.regions]
    kept = {b for n in refs(plan.graph.outputs) for b in memory.chain(plan.graph, n)}
    return _live(names, made, uses, sizes, kept)


def _live(
    names: list[str],
    made: list[list[str]],
    uses: list[list[str]],
    sizes: dict[str, int],
    kept: Iterable[str],
) -> list[dict[str, Any]]:
    """Bytes that are live while each step runs: made by now, and used from here on or returned."""
    last = {name: at for at, used in enumerate(uses) for name in used}
    last |= {name: len(names) for name in kept}
    born = {name: at for at, results in enumerate(made) for name in results}
    found = []
    for at, name in enumerate(names):
        alive = [v for v, since in born.items() if since <= at <= max(last.get(v, since), since)]
        found.append({"name": name, "bytes": sum(sizes.get(v, 0) for v in alive)})
    return found
