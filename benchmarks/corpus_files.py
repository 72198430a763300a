"""The chains of benchmarks/corpus as model files, at full size or small (model_files.py).

The convolutions are those of the regime that the generated kernels are for: batch 12 to 128, 3 to
128 channels in and 16 to 256 out, kernels of 1 to 7, 2-D sides of 32 to 512 and 3-D ones of 16 to
64. A chain is run in the mode its Model is constructed in, or in those of its line MODES, where the
mode matters.
"""

from __future__ import annotations

import re
from pathlib import Path

from model_files import choose, constant, perturbed

FOLDER = Path(__file__).resolve().parent / "corpus"
CHAINS = tuple(sorted(p.stem for p in FOLDER.glob("*.py")))


def modes(chain: str) -> tuple[str, ...]:
    return tuple(constant(FOLDER / f"{chain}.py", "MODES", ("train",)))


def convolves(chain: str) -> bool:
    """Whether a convolution leads the chain; a Linear does otherwise."""
    return chain.startswith("conv")


def write(chain: str, small: bool, folder: Path, batch: int = 0) -> Path:
    """A model file whose norms have drawn weights, biases and running statistics.

    With a `batch` it has so many samples instead of its own number.
    """
    variant = "small" if small else "full"
    path = choose(FOLDER / f"{chain}.py", variant, folder / f"{chain}.py")
    text = path.read_text()
    if batch:
        text = re.sub(r"\bbatch=\d+", f"batch={batch}", text)
    path.write_text(perturbed(text))
    return path
