"""Numbers with units, as people read them."""

from __future__ import annotations


def scaled(value: float, unit: str) -> str:
    """`134.2 MB`: three or four digits and a decimal prefix."""
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 1000:
            return f"{value:.4g} {prefix}{unit}".rstrip()
        value /= 1000
    return f"{value:.4g} T{unit}"
