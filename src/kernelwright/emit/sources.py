"""The C++ or CUDA source of an emitted file: templates, programs, configurations, launchers."""

from __future__ import annotations

from kernelwright.emit.cpp import ProgramPrinter, camel, dim, fit
from kernelwright.emit.epilogue import EpiloguePrinter, product_launchers
from kernelwright.emit.few import FEW_HEADER, few_launcher
from kernelwright.emit.headers import flatten
from kernelwright.emit.launchers import arguments, c_function, on_device
from kernelwright.graph import Graph
from kernelwright.lower import GemmKernel, Kernel
from kernelwright.plan import Region

LAUNCH_HEADERS = {"cuda": ["launch.cuh"], "cpu": []}


def source(graph: Graph, kernels: tuple[Kernel, ...], few: list[Region], device: str) -> str:
    """Headers first, then for each kernel its program, its configuration and its launcher."""
    parts: list[str] = []
    for kernel in kernels:
        if isinstance(kernel, GemmKernel):
            epilogue = EpiloguePrinter(graph, kernel)
            parts += [epilogue.print(), *_configs(kernel), *product_launchers(epilogue)]
        else:
            printer = ProgramPrinter(graph, kernel)
            parts += [printer.print(), *_configs(kernel), _launcher(printer, device)]
    parts += [few_launcher(graph, region) for region in few]
    programs = "\n\n".join(parts) + "\n"
    headers = [*dict.fromkeys(k.template.header(device) for k in kernels), *LAUNCH_HEADERS[device]]
    if few:
        headers.append(FEW_HEADER)
    if any(narrow in programs for narrow in ("kw::half_t", "kw::bfloat16_t")):
        headers.append("half.cuh")
    return f"{flatten(headers, programs)}\n\n{programs}"


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


def _launcher(printer: ProgramPrinter, device: str) -> str:
    """A C function: addresses and sizes in, an error code out."""
    kernel = printer.kernel
    struct, call = camel(kernel.name), kernel.template.symbol
    lines, sizes = arguments(printer), len(printer.symbols())
    run = kernel.config.dynamic_run
    if device == "cuda":
        lines += on_device(sizes)
        if run is not None:
            lanes = dict(kernel.config.constants)["kVec"]
            lines.append(f"  if ({dim(run)} % {lanes} != 0) {{")
            lines.append(f"    return kw::{call}<{struct}, {struct}OneLane>(a, on);")
            lines.append("  }")
        lines.append(f"  return kw::{call}<{struct}, {struct}Config>(a, on);")
    else:
        lines.append(
            f"  kw::{call}<{struct}, {struct}Config>(a, static_cast<int>(numbers[{sizes}]));"
        )
        lines.append("  return 0;")
    return c_function(f"launch_{kernel.name}", lines)
