"""The corpus at full size with the tiles that a GPU gets, their epilogues run on the host.

    PYTHONPATH=src python tests/corpus_tiles.py [CHAIN ...]

What a tile does with its results is emitted for the very tile that was chosen, and small models
are given other tiles. So the chains are planned as they are timed, and two samples go through
conv_host.py: torch convolves, the emitted programs do the rest, and float64 is the judge. Ten
minutes for all of them on one core; a few are among the tests.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import conv_host
import torch

from kernelwright.accuracy import Accuracy
from kernelwright.lower import ConvKernel
from kernelwright.pipeline import compile_problem
from kernelwright.problem import in_mode, load_problem

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import corpus_files

SAMPLES = 2
BOUND = 2e-6  # of the relative error
# What eager's convolutions are measured to be: exact, or rounded to TF32.
EAGER = {"exact": 1e-7, "rounded": 3e-4}


class Everywhere(Mapping[str, Accuracy]):
    """The same accuracy, whatever a convolution is called."""

    def __init__(self, error: float) -> None:
        self.accuracy = Accuracy(eager=error, channels_last=error)

    def __getitem__(self, name: str) -> Accuracy:
        return self.accuracy

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def error_of(chain: str, training: bool, eager: str) -> float | None:
    """The relative error of a chain's outputs; None where no convolution is generated."""
    with tempfile.TemporaryDirectory() as folder:
        source = corpus_files.write(chain, small=False, folder=Path(folder))
        found = errors_of_file(source, training, eager)
    return found[0] if found else None


def errors_of_file(source: Path, training: bool, eager: str) -> tuple[float, float] | None:
    """That of the emitted programs, and that of the model in float32 here; None as above."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as made, torch.no_grad():
        folder = Path(made)
        problem = in_mode(load_problem(source, "cpu", "highest"), training)
        measured = Everywhere(EAGER[eager])
        compiled = compile_problem(problem, target="cuda", accuracies=measured)
        if not any(isinstance(kernel, ConvKernel) for kernel in compiled.kernels):
            return None
        inputs = tuple(x[:SAMPLES].double() for x in problem.inputs)
        written, exact = copy.deepcopy(problem.module), copy.deepcopy(problem.module).double()
        compiled.problem.module.double()
        torch.manual_seed(1)
        got = conv_host.outputs_of(compiled, inputs, folder)
        torch.manual_seed(1)  # the masks of live dropout are the same on both sides
        wanted = exact(*inputs)
        torch.manual_seed(1)
        rounded = written(*(x.float() for x in inputs))
    ours, theirs = (float((x - wanted).norm() / wanted.norm()) for x in (got, rounded))
    return ours, theirs


def main(names: list[str]) -> int:
    wrong = 0
    chains = names or [chain for chain in corpus_files.CHAINS if corpus_files.convolves(chain)]
    modes = [(chain, mode) for chain in chains for mode in corpus_files.modes(chain)]
    for (chain, mode), eager in product(modes, EAGER):
        error = error_of(chain, mode == "train", eager)
        if error is not None:
            fine = error <= BOUND
            wrong += not fine
            what = f"{chain}, {mode}, eager {eager}"
            print(f"{error:.1e} {'' if fine else 'WRONG '}{what}", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
