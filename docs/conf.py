"""The site: `make docs` builds it from these pages and the docstrings, with warnings as errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "src")]

import make_file_map  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from kernelwright import __version__  # noqa: E402

project = "kernelwright"
author = "The kernelwright authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"kernelwright {version}"
exclude_patterns = ["_build"]
root_doc = "index"

myst_heading_anchors = 4

autodoc_typehints = "description"
autodoc_member_order = "bysource"

(DOCS / "reference" / "files.md").write_text(make_file_map.page())

OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)\s#]+)(?:#[^)\s]*)?\)")


def setup(app: Sphinx) -> None:
    app.connect("source-read", lead_out)


def lead_out(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to Markdown and folders outside of the site: the file to take along, or its name."""

    def instead(match: re.Match[str]) -> str:
        path = ((DOCS / name).parent / match[2]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return match[0]  # Sphinx's own, and if it leads nowhere, an error
        text = match[1].replace("`", "")
        return f"{{download}}`{text} <{match[2]}>`" if path.is_file() else match[1]

    source[0] = OUTSIDE.sub(instead, source[0])
