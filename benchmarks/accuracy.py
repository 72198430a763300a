"""The accuracy table: products against float64 on kind and unkind data, beside cuBLAS's own.

Two figures for each product: the relative Frobenius error, and the largest error of an element
divided by what its terms add up to without their signs (|x| |W|). At `highest` ours must stay
within the contract, the larger of twice cuBLAS float32's error and 4 eps, or the exit status is 1.
Where the emitted file leaves that few rows to the library, the rows are repeated until its own
product runs: its error is the subject here, not the choice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from measuring import (
    SETTINGS,
    arguments,
    build,
    compiled_for,
    complain_of_fallbacks,
    path_taken,
    published,
    shape_text,
    shapes_of,
)
from sheet import Sheet
from torch import Tensor, nn

from kernelwright.bench.context import matmul_precision, quiet_warnings
from kernelwright.plan import ALWAYS
from kernelwright.problem import resolve_device

SHAPES = "512x1024x8192,256x512x1000"
EPS = torch.finfo(torch.float32).eps
FACTOR, FLOOR = 2.0, 4 * EPS
LINEAR = "as Linear"


def _powers(shape: tuple[int, ...], limit: int, device: torch.device) -> Tensor:
    """2^U(-limit, limit)."""
    return torch.exp2(torch.empty(shape, device=device).uniform_(-limit, limit))


def _wide(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.randn(shape, device=device) * _powers(shape, 12, device)


def _wide_rows(shape: tuple[int, int], device: torch.device) -> Tensor:
    """A row of W is a column of the product, so that this is both wide rows and wide columns."""
    return torch.randn(shape, device=device) * _powers((shape[0], 1), 30, device)


def _sparse(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.randn(shape, device=device) * (torch.rand(shape, device=device) < 0.1)


Draw = Callable[[tuple[int, int], torch.device], Tensor]
DISTRIBUTIONS: dict[str, Draw] = {
    "uniform": lambda shape, device: torch.rand(shape, device=device),
    "normal": lambda shape, device: torch.randn(shape, device=device),
    "positive": lambda shape, device: torch.randn(shape, device=device).abs(),
    "wide": _wide,
    "wide rows": _wide_rows,
    "constant-ish": lambda shape, device: 1 + 1e-3 * torch.randn(shape, device=device),
    "sparse": _sparse,
}


@dataclass(frozen=True)
class Error:
    """Of a product against float64."""

    frobenius: float
    component: float

    def __str__(self) -> str:
        return f"{self.frobenius:.1e} {self.component:.1e}"

    def within(self, other: Error) -> bool:
        """Is this error allowed beside that of the library?"""
        pairs = ((self.frobenius, other.frobenius), (self.component, other.component))
        return all(ours <= max(FACTOR * theirs, FLOOR) for ours, theirs in pairs)


@dataclass(frozen=True)
class Exact:
    """The product in float64, and the sum of its terms' magnitudes."""

    product: Tensor
    magnitude: Tensor

    @staticmethod
    def of(x: Tensor, weight: Tensor) -> Exact:
        left, right = x.double(), weight.double()
        return Exact(F.linear(left, right), F.linear(left.abs(), right.abs()))

    def error(self, product: Tensor) -> Error:
        difference = product.double() - self.product
        component = (difference.abs() / self.magnitude).masked_fill(difference == 0, 0.0)
        return Error(float(difference.norm() / self.product.norm()), float(component.max()))


@dataclass(frozen=True)
class Subject:
    """A bare product of one size, emitted at one precision, with weights to be overwritten."""

    shape: tuple[int, ...]
    precision: str
    module: nn.Linear
    model: nn.Module
    path: str

    def errors(self, x: Tensor, exact: Exact) -> tuple[Error, Error]:
        """Ours, and the library's at the same setting."""
        with matmul_precision(SETTINGS[self.precision].matmul):
            ours = self.model(x)
            theirs = F.linear(x, self.module.weight)
        return exact.error(ours), exact.error(theirs)


def make_subjects(
    shapes: list[tuple[int, ...]], precisions: list[str], device: torch.device
) -> list[Subject]:
    wanted = [(shape, precision) for shape in shapes for precision in precisions]
    made = []
    for (rows, columns, depth), precision in wanted:
        module = nn.Linear(depth, columns, bias=False, device=device)
        made.append((module, compiled_for(module, rows, depth, precision, ALWAYS)))
    build(compiled.source for _, compiled in made)
    subjects = []
    for (shape, precision), (module, compiled) in zip(wanted, made, strict=True):
        model = compiled.instantiate()
        path = path_taken(model, torch.ones(shape[0], shape[2], device=device))
        subjects.append(Subject(shape, precision, module, model, path))
    return subjects


def fill(sheet: Sheet, subjects: list[Subject], device: torch.device) -> bool:
    """One row for each shape and pair of distributions; is every product at `highest` allowed?"""
    good = True
    for shape in dict.fromkeys(subject.shape for subject in subjects):
        here = [subject for subject in subjects if subject.shape == shape]
        rows, columns, depth = shape
        for name, draw in DISTRIBUTIONS.items():
            torch.manual_seed(0)
            x = draw((rows, depth), device)
            linear = nn.Linear(depth, columns, bias=False, device=device).weight
            for weights, weight in ((LINEAR, linear), (name, draw((columns, depth), device))):
                exact = Exact.of(x, weight)
                cells = [shape_text(shape), name, weights]
                record: dict[str, Any] = {"shape": shape, "x": name, "weight": weights}
                for subject in here:
                    subject.module.weight.data.copy_(weight)
                    ours, theirs = subject.errors(x, exact)
                    allowed = ours.within(theirs)
                    good &= allowed or subject.precision != "highest"
                    cells += [f"{ours}{'' if allowed else ' !'}", str(theirs)]
                    record[subject.precision] = {
                        "path": subject.path,
                        "rows": rows,
                        "ours": asdict(ours),
                        "library": asdict(theirs),
                        "allowed": allowed,
                    }
                sheet.add(cells, record)
    return good


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, "accuracy", ["highest", "high"])
    parser.add_argument("--shapes", type=shapes_of(3), default=SHAPES, metavar="MxNxK,...")
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    device = resolve_device(options.device)
    names = {"highest": "float32", "high": "TF32"}
    columns = ["shape MxNxK", "x", "W"]
    for precision in options.precisions:
        columns += [f"ours, {precision}", f"cuBLAS {names[precision]}"]
    title = "Errors against float64: relative Frobenius, then largest element's over |x| |W|"
    sheet = Sheet(title, tuple(columns))
    paths = Sheet("What ran", ("shape MxNxK", "precision", "rows", "path"))
    with torch.no_grad(), quiet_warnings():
        subjects = make_subjects(options.shapes, options.precisions, device)
        for subject in subjects:
            rows = subject.shape[0]
            cells = (shape_text(subject.shape), subject.precision, str(rows), subject.path)
            paths.add(cells, dict(zip(paths.columns, cells, strict=True)))
        with published(options, device, "Accuracy of products", sheet, paths):
            good = fill(sheet, subjects, device)
        for subject in subjects:
            complain_of_fallbacks(subject.model, shape_text(subject.shape))
    print(f"! marks an error over max({FACTOR:g} x cuBLAS's, {FLOOR:.1e}).")
    print(f"At `highest` {'every error is' if good else 'not every error is'} within that.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
