"""The founding models on a GPU at every precision: ours, frozen, eager, torch.compile, the product.

`with the library` is ours with the library's product and a row kernel after it; `linear` is the
bare product by the library at the same setting: what a model would take whose other operators cost
nothing. Times are of the GPU alone, in turns, with a flushed cache and rotated inputs; errors are
against float64, on the rows that the first inputs have.
"""

from __future__ import annotations

import argparse
import copy
import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import (
    SETTINGS,
    arguments,
    build,
    by_library,
    complain_of_fallbacks,
    in_turns,
    kernel_clock,
    path_taken,
    published,
)
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.bench.context import matmul_precision
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.variants import Variant, direct
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import load_problem, resolve_device

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MODELS = sorted(p.parent.name for p in EXAMPLES.glob("*/model.py"))
COLUMNS = (
    "model", "precision", "path", "ours", "frozen", "with the library", "eager", "compile",
    "linear", "best / ours", "best / frozen", "ours / linear", "error", "eager's error",
)  # fmt: skip
CHECKED_ROWS = 64


# Appended to the user's file: the type, and norms that do not start as ones and zeros.
ENDING = """

def get_inputs(original=get_inputs):
    return [x.to({dtype}) for x in original()]


class Model(Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        self.to({dtype})
"""


def compiled_model(name: str, precision: str, device: torch.device, folder: Path) -> Compiled:
    setting = SETTINGS[precision]
    path = folder / f"{name}_{precision}.py"
    original = (EXAMPLES / name / "model.py").read_text()
    path.write_text(original + ENDING.format(dtype=setting.dtype))
    return compile_problem(load_problem(path, str(device), setting.matmul))


def measure(
    name: str, precision: str, compiled: Compiled, modes: list[str], rounds: int
) -> tuple[list[str], dict[str, Any]]:
    problem = compiled.problem
    module, (x,) = problem.module, problem.inputs
    clock = kernel_clock(x.device)
    sets = make_sets((x,), None, clock.flush_bytes)
    ours: Any = compiled.instantiate()
    path = path_taken(ours, x)
    linear = next(m for m in module.modules() if isinstance(m, nn.Linear))
    product = functools.partial(F.linear, weight=linear.weight)
    variants = [direct("ours", ours, sets), direct("eager", module, sets)]
    variants.append(direct("library", by_library(ours), sets))
    variants.append(direct("linear", product, sets))
    for mode in modes:
        variants.append(_compiled(module, mode, sets))
    if hasattr(ours, "freeze"):
        frozen: Any = compiled.instantiate()
        variants.append(direct("frozen", frozen.freeze(), sets))
    ms = {n: t.ms for n, t in in_turns(variants, clock, rounds).items()}
    complain_of_fallbacks(ours, name)
    best = min(ms["eager"], *(ms[m] for m in modes))
    error, eager_error = errors(ours(x), module(x), module, x)
    record = {
        "model": name,
        "precision": precision,
        "path": path,
        "ms": ms,
        "error": error,
        "eager_error": eager_error,
    }
    cells = [name, precision, path, f"{ms['ours']:.4f}"]
    cells += [f"{ms['frozen']:.4f}" if "frozen" in ms else "-"]
    cells += [f"{ms['library']:.4f}", f"{ms['eager']:.4f}"]
    cells += [
        f"{min(ms[m] for m in modes):.4f}",
        f"{ms['linear']:.4f}",
        f"{best / ms['ours']:.2f}x",
    ]
    cells += [f"{best / ms['frozen']:.2f}x" if "frozen" in ms else "-"]
    cells += [f"{ms['ours'] / ms['linear']:.3f}", f"{error:.2e}", f"{eager_error:.2e}"]
    return cells, record


def _compiled(module: nn.Module, mode: str, sets: Any) -> Variant:
    fast = torch.compile(module) if mode == "compile" else torch.compile(module, mode=mode)
    return direct(mode, fast, sets)


def errors(ours: Tensor, theirs: Tensor, module: nn.Module, x: Tensor) -> tuple[float, float]:
    """Relative Frobenius errors of ours and eager's on some rows, against float64."""
    exact = copy.deepcopy(module).double()(x[:CHECKED_ROWS].double())
    axis = next(i for i, size in enumerate(ours.shape) if size == x.shape[0])
    mine, other = (
        float((y.narrow(axis, 0, CHECKED_ROWS).double() - exact).norm() / exact.norm())
        for y in (ours, theirs)
    )
    return mine, other


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "founding", list(SETTINGS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--modes", nargs="+", default=["compile"], help="also: max-autotune")
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    options = _arguments()
    device = resolve_device(options.device)
    sheet = Sheet("Founding models, ms", COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            (p, m): compiled_model(m, p, device, Path(folder))
            for p in options.precisions
            for m in options.models
        }
    build(c.source for c in cases.values())
    with published(options, device, "Founding models", sheet) as save:
        for (precision, model), compiled in cases.items():
            with matmul_precision(SETTINGS[precision].matmul):
                sheet.add(*measure(model, precision, compiled, options.modes, options.rounds))
            save()
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
