"""Derives every polynomial of kernels/scalar.cuh; run it to print coefficients and errors.

A fit enters as (f, weight, number of coefficients, interval); float32 coefficients leave. The idea:
Lawson's reweighted least squares converges to the minimax fit of ``weight * (p - f)``, and rounding
one coefficient at a time, refitting those left, lets them absorb the rounding of those before.
"""

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp
import numpy as np

mp.mp.dps = 40
Function = Callable[[mp.mpf], mp.mpf]


class Fit(NamedTuple):
    f: Function
    weight: Function
    terms: int
    low: float
    high: float


def sqrt_form(f: Function) -> Function:
    """f as a function of z = x * x."""
    return lambda z: f(mp.sqrt(z))


def mills(t: mp.mpf) -> mp.mpf:
    """Phi(-t) / exp(-t^2 / 2)."""
    return mp.erfc(t / mp.sqrt(2)) * mp.exp(t * t / 2) / 2


def log2_of_tail(t: mp.mpf) -> mp.mpf:
    """log2(Phi(-t))."""
    return mp.log(mp.erfc(t / mp.sqrt(2)) / 2, 2)


HALF_LN2 = 0.3467  # ln(2) / 2 and the slack of a rounded argument reduction
FITS = {
    "exp(r) = 1 + r + r^2 p(r), relative": Fit(
        lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.exp(r), 5, -HALF_LN2, HALF_LN2
    ),
    "expm1(r) = r + r^2 p(r), relative": Fit(
        lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.expm1(r), 6, -HALF_LN2, HALF_LN2
    ),
    "log1p(f) = f + f^2 (f p(f) - 1/2), relative": Fit(
        lambda f: (mp.log1p(f) - f + f * f / 2) / f**3,
        lambda f: f**3 / mp.log1p(f),
        8,
        -0.33343,
        0.33343,
    ),
    "log1p(e) = e + e p(e - 1/2), 0 <= e <= 1, relative": Fit(
        lambda d: mp.log1p(d + 0.5) / (d + 0.5) - 1 if d > -0.5 else mp.mpf(0),
        lambda d: (d + 0.5) / mp.log1p(d + 0.5) if d > -0.5 else mp.mpf(1),
        10,
        -0.5,
        0.5,
    ),
    "log1p(e) = s (2 + s^2 p(s^2)), s = e / (2 + e), 0 <= e <= 1, relative": Fit(
        sqrt_form(lambda s: (mp.atanh(s) - s) * 2 / s**3),
        sqrt_form(lambda s: s**3 / mp.atanh(s) / 2),
        4,
        1e-12,
        1 / 9,
    ),
    "expm1(x) = x + x^2 p(x), -0.4 < x < 0, relative": Fit(
        lambda x: (mp.expm1(x) - x) / x**2, lambda x: x**2 / mp.expm1(x), 4, -0.4, -1e-12
    ),
    "tanh(x) = x + x^3 p(x^2), |x| < 0.5, relative": Fit(
        sqrt_form(lambda x: (mp.tanh(x) - x) / x**3),
        sqrt_form(lambda x: x**3 / mp.tanh(x)),
        4,
        1e-12,
        0.5**2,
    ),
    "tanh(x) = x + x^3 p(x^2), |x| < 0.625, relative": Fit(
        sqrt_form(lambda x: (mp.tanh(x) - x) / x**3),
        sqrt_form(lambda x: x**3 / mp.tanh(x)),
        5,
        1e-12,
        0.625**2,
    ),
    "erf(x) = x + x p(x^2), |x| < 0.925, relative": Fit(
        sqrt_form(lambda x: mp.erf(x) / x - 1),
        sqrt_form(lambda x: x / mp.erf(x)),
        7,
        1e-12,
        0.925**2,
    ),
    "2^f = 1 + f p(f), |f| < 0.5, relative": Fit(
        lambda f: (2**f - 1) / f, lambda f: f / 2**f, 6, -0.5001, 0.5001
    ),
    "Phi(-t) = 2^(t p(t) - 1), absolute, times exp(t^2 / 6)": Fit(
        lambda t: (log2_of_tail(t) + 1) / t if t > 0 else -mp.sqrt(2 / mp.pi) / mp.log(2),
        lambda t: t * mp.log(2) * 2 ** log2_of_tail(t) * mp.exp(t * t / 6),
        10,
        0.0,
        14.5,
    ),
    "erf(x) = 1 - exp(-x p(x)), 0.925 <= x < 3.95, absolute": Fit(
        lambda x: -mp.log(mp.erfc(x)) / x, lambda x: x * mp.erfc(x), 6, 0.925, 3.95
    ),
}


def minimax(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The coefficients that minimise max |columns @ c - target|, by Lawson's iteration."""
    weight = np.ones(len(target))
    best, best_error = np.zeros(columns.shape[1]), np.inf
    for _ in range(400):
        root = np.sqrt(weight)
        c = np.linalg.lstsq(columns * root[:, None], target * root, rcond=None)[0]
        error = np.abs(columns @ c - target)
        if error.max() < best_error:
            best, best_error = c, error.max()
        weight = np.maximum(weight * error / (weight * error).max(), 1e-30)
    return best


def nodes(low: float, high: float) -> np.ndarray:
    return (low + high) / 2 - np.cos(np.linspace(0, np.pi, 600)) * (high - low) / 2


def solve(fit: Fit) -> tuple[list[np.float32], float]:
    """The float32 coefficients of a fit, lowest power first, and the maximum weighted error."""
    x = nodes(fit.low, fit.high)
    f, weight = ([float(g(mp.mpf(float(v)))) for v in x] for g in (fit.f, fit.weight))
    columns = np.stack([np.array(weight) * x**k for k in range(fit.terms)], axis=1)
    rest = np.array(f) * weight
    coefficients: list[np.float32] = []
    for k in range(fit.terms):
        scale = np.abs(columns[:, k:]).max(axis=0)  # keeps the least squares well conditioned
        c = np.float32((minimax(columns[:, k:] / scale, rest) / scale)[0])
        coefficients.append(c)
        rest = rest - float(c) * columns[:, k]
    return coefficients, float(np.abs(rest).max())


def main() -> None:
    for name, fit in FITS.items():
        coefficients, error = solve(fit)
        print(f"{name}: {error:.1e}\n  " + ", ".join(f"{c!s}f" for c in coefficients))
    p, error = solve(
        Fit(
            lambda r: mills((1 / r - 1) / 0.33) / r,
            lambda r: r * mp.exp(-(((1 / r - 1) / 0.33) ** 2) / 6),
            7,
            1 / (1 + 0.33 * 14.5),
            1.0,
        )
    )
    print(f"Phi(-t) = exp(-t^2 / 2) r P(r), r = 1 / (1 + 0.33 t), absolute: {error:.1e}")
    print("  " + ", ".join(f"{c!s}f" for c in p))


if __name__ == "__main__":
    main()
