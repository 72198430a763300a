"""How a value shows itself in a notebook: report/ draws it, and stands above what it draws."""

from __future__ import annotations

import importlib

PAGE = "kernelwright.report.page"


class Shown:
    """Has `<name of the class>_html` of the PAGE for its picture."""

    def _repr_html_(self) -> str:
        draw = getattr(importlib.import_module(PAGE), f"{type(self).__name__.lower()}_html")
        return str(draw(self))
