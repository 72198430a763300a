"""The C++ or CUDA of an emitted file: programs, configurations, launchers, and their headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright import dropout
from kernelwright.emit.attention import ResultPrinter, ScorePrinter, attention_launcher
from kernelwright.emit.convolution import ConvPrinter, conv_launcher
from kernelwright.emit.cpp import camel, comment, dim, fit
from kernelwright.emit.dropout import MASK_HEADER, MASK_LAUNCHER
from kernelwright.emit.epilogue import EpiloguePrinter, product_launchers
from kernelwright.emit.few import few_launcher
from kernelwright.emit.headers import flatten
from kernelwright.emit.launchers import ERROR_TEXT, arguments, c_function, on_device
from kernelwright.emit.programs import ProgramPrinter
from kernelwright.emit.tail import TailPrinter, tail_arguments
from kernelwright.emit.windows import WindowsPrinter
from kernelwright.graph import Graph
from kernelwright.lower.attention import AttentionKernel
from kernelwright.lower.convolution import ConvKernel
from kernelwright.lower.few import BesideKernel, DirectKernel, FewKernel, HostKernel, ThinKernel
from kernelwright.lower.kernel import GemmKernel, Kernel
from kernelwright.lower.lowered import Lowered
from kernelwright.lower.tail import TailKernel
from kernelwright.plan.model import Region

UNIT = "// ---- A unit of its own, if need be. Cost: "
SHARED = "// ---- Programs that several kernels run."
TAIL_HEADER = "in_memory.cuh"
LAUNCH_HEADERS = {"cuda": ["launch.cuh", "run.hpp"], "cpu": []}
# The seconds that a compiler takes for them, as those of a Template.
FEW_COSTS: dict[type[BesideKernel], int] = {
    FewKernel: 3,
    ThinKernel: 4,
    HostKernel: 3,
    DirectKernel: 1,
}
MOST_PLACES = 4


@dataclass(frozen=True)
class Sources:
    """The generated text, and what it needs of the library: every unit begins with `headers`."""

    programs: str
    headers: str


def source(
    graph: Graph,
    lowered: Lowered,
    device: str,
    host: str = "",
    further: Sequence[tuple[Graph, Lowered]] = (),
) -> Sources:
    """For each kernel its program, its configuration and its launcher; then its `host` program.

    Lines that begin with UNIT say where the text may be cut, and what its parts cost to compile.
    Programs that several kernels run stand before all of them, and are in every unit. `further`
    graphs have kernels in the same file, under names of their own (lower/together.py).
    """
    every = [(graph, lowered), *further]
    kernels = [(g, low, kernel) for g, low in every for kernel in low.kernels]
    beside = [kernel for _, low in every for kernel in low.few]
    ahead, parts = [], [(0, ERROR_TEXT)] if device == "cuda" else []
    runs = Counter(low.programs[k.name] for _, low, k in kernels)
    for own, low, kernel in kernels:
        owner = low.programs[kernel.name]
        cost = kernel.template.seconds
        also = _elsewhere(own, low.users[kernel.name])
        program, launchers = _printed(own, kernel, owner, device)
        if owner == kernel.name and runs[owner] > 1:
            ahead.append(program)
        elif owner == kernel.name or isinstance(kernel, TailKernel):
            launchers = [program, *launchers]
        parts.append((cost, "\n".join([*also, "\n\n".join(launchers)])))
    parts += [(FEW_COSTS[type(kernel)], few_launcher(kernel)) for kernel in beside]
    masks = any(dropout.has_masks(own) for own, _ in every)
    parts += [(1, MASK_LAUNCHER)] if masks else []
    parts += [(1, host)] if host else []
    texts = [SHARED, *ahead] if ahead else []
    programs = "\n\n".join([*texts, *(f"{UNIT}{cost}\n{text}" for cost, text in parts)]) + "\n"
    headers = _headers([kernel for _, _, kernel in kernels], beside, device)
    headers += [MASK_HEADER] if masks else []
    if any(narrow in programs for narrow in ("kw::half_t", "kw::bfloat16_t")):
        headers.append("half.cuh")
    return Sources(programs, flatten(headers, programs, device))


def _headers(kernels: Sequence[Kernel], few: Sequence[BesideKernel], device: str) -> list[str]:
    """What kernels are templates of."""
    templates = dict.fromkeys(k.template.header(device) for k in kernels)
    beside = dict.fromkeys(kernel.header for kernel in few)
    tails = [TAIL_HEADER] if any(isinstance(k, TailKernel) for k in kernels) else []
    headers = [*templates, *tails, *LAUNCH_HEADERS[device], *beside]
    convolutions = [kernel for kernel in kernels if isinstance(kernel, ConvKernel)]
    if convolutions:
        early = any(kernel.laid.early for kernel in convolutions)
        headers.append("conv_rows.cuh" if early else "conv_epilogue.cuh")
        if any(kernel.laid.across for kernel in convolutions):
            headers.append("conv_across.cuh")
    return headers


def _printed(graph: Graph, kernel: Kernel, owner: str, device: str) -> tuple[str, list[str]]:
    """A kernel's program, and what launches it, for which the program may be an `owner`'s."""
    if isinstance(kernel, GemmKernel):
        epilogue = EpiloguePrinter(graph, kernel, owner)
        return epilogue.print(), [*_configs(kernel), *product_launchers(epilogue)]
    if isinstance(kernel, TailKernel):
        tail = TailPrinter(graph, kernel, owner)
        return tail.print(), [*_configs(kernel), _launcher(tail, tail_arguments(tail), device)]
    if isinstance(kernel, AttentionKernel):
        scores, results = ScorePrinter(graph, kernel.scores), ResultPrinter(graph, kernel)
        text = "\n\n".join([scores.print(), results.print()])
        return text, [*_configs(kernel), attention_launcher(scores, results, device)]
    if isinstance(kernel, ConvKernel):
        convolution = ConvPrinter(graph, kernel)
        return convolution.print(), [*_configs(kernel), conv_launcher(convolution)]
    shaped = WindowsPrinter if kernel.config.windows else ProgramPrinter
    printer = shaped(graph, kernel)
    given = arguments(printer, len(kernel.room))
    return printer.print(), [*_configs(kernel), _launcher(printer, given, device)]


def _elsewhere(graph: Graph, users: tuple[Region, ...]) -> list[str]:
    """A comment that names the other places at which a kernel is launched."""
    places = [_place(graph, region) for region in users[1:]]
    if not places:
        return []
    rest = f", and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
    text = f"// Launched {len(users)} times; also for {', '.join(places[:MOST_PLACES])}{rest}."
    return fit(text)


def _place(graph: Graph, region: Region) -> str:
    origins = [graph[n].origin for n in region.nodes]
    where = next((o.module or o.place for o in origins if o.op != "getitem"), "")
    return comment(f"{region.name} ({where})")


def _configs(kernel: Kernel) -> list[str]:
    config = kernel.config
    found = [_config(f"{camel(kernel.name)}Config", dict(config.constants), config.why)]
    if config.dynamic_run is not None:
        single = dict(config.constants) | {"kVec": 1}
        if "kChunks" in single:
            single["kChunks"] *= dict(config.constants)["kVec"]
        why = "for sizes that the lanes do not divide"
        found.append(_config(f"{camel(kernel.name)}OneLane", single, why))
    return found


def _config(name: str, constants: dict[str, int], why: str) -> str:
    lines = [*fit(f"// {why}"), f"struct {name} {{"]
    lines += [f"  static constexpr int {key} = {value};" for key, value in constants.items()]
    return "\n".join([*lines, "};"])


def _launcher(printer: ProgramPrinter, given: list[str], device: str) -> str:
    """A C function: addresses and sizes in, an error code out. `given` are the lines of Args."""
    kernel = printer.kernel
    struct, call = camel(kernel.name), kernel.template.symbol
    lines, sizes = [*given], len(printer.symbols())
    run = kernel.config.dynamic_run
    room = [f"static_cast<float*>(tensors[{i}])" for i in range(len(kernel.room))]
    inside = ", ".join(["a", *room, "on"])
    if device == "cuda":
        lines += on_device(sizes)
        if run is not None:
            lanes = dict(kernel.config.constants)["kVec"]
            lines.append(f"  if ({dim(run)} % {lanes} != 0) {{")
            lines.append(f"    return kw::{call}<{struct}, {struct}OneLane>({inside});")
            lines.append("  }")
        lines += fit(f"  return kw::{call}<{struct}, {struct}Config>({inside});")
    else:
        lines.append(
            f"  kw::{call}<{struct}, {struct}Config>(a, static_cast<int>(numbers[{sizes}]));"
        )
        lines.append("  return 0;")
    return c_function(f"launch_{kernel.name}", lines)
