"""The library in emitted files holds nothing that its programs do not reach, says the compiler.

Every definition of an emitted text is declared deprecated, under a number. The compiler then warns
of each use, with its line: that is who mentions whom, without a word of the pruner's own reading.
(Of alias templates g++ says nothing; their names are looked for.)
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import checking
import pytest

from kernelwright.emit import cxx, library
from kernelwright.emit.cxx import Definition
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem

CXX = shutil.which("g++")
FLAGS = [
    "-std=c++17",
    "-fopenmp",
    "-fsyntax-only",
    "-Wno-attributes",
    "-Wdeprecated-declarations",
    "-fno-pretty-templates",
]  # GCC 12 breaks down over the pretty ones
WARNING = re.compile(r"^[^\n:]+:(\d+):\d+: warning: .* is deprecated: #(\d+)", re.MULTILINE)
# All four templates, both kinds of half, booleans, strided loads and a library of functions.
MODELS = ("linear_gelu_softmax", "half_gelu_group_norm", "where_scale", "conv2d_min_tanh_tanh",
          "linear_multiply_batch_norm_train", "sort_diamond")  # fmt: skip
# maximum and minimum use the first on AArch64 alone, load_every the next ones for steps of 2 and 4,
# tiles the last ones on x86-64.
ELSEWHERE = {"keep_nan", "Packed", "PackedLanes", "every_second", "packed_every"}
ELSEWHERE |= {"exchange", "turn", "turn_block", "turn_tile"}
PATHS = [p for p in checking.MODELS if p.stem in MODELS]


def marked(text: str) -> tuple[str, list[tuple[Definition, int, int]]]:
    """The text with its definitions numbered, and each with its first and last line."""
    code = re.sub(r"^#include", "//include", text, flags=re.M)
    named = [d for d, _ in cxx.definitions(cxx.read(code)) if d.kind in PLACES]
    places, at = [], 0
    for definition in named:
        at = text.index(definition.text, at)
        first = text.count("\n", 0, at) + 1
        places.append((definition, first, first + definition.text.count("\n")))
        at += len(definition.text)
    for number, (definition, _, _) in reversed(list(enumerate(places))):
        at = text.rindex(definition.text)
        body = PLACES[definition.kind].sub(
            rf'\g<0> [[deprecated("#{number}")]] ', definition.text, count=1
        )
        text = text[:at] + body + text[at + len(definition.text) :]
    return text, places


def mentions_of_aliases(
    text: str, places: list[tuple[Definition, int, int]]
) -> list[tuple[int, int]]:
    """As the compiler's warnings: the lines, and the numbers of the alias templates named there."""
    aliases = [
        (number, str(definition.name), range(first, last + 1))
        for number, (definition, first, last) in enumerate(places)
        if re.match(rf"{COMMENTS}using ", definition.text)
    ]
    lines = [re.sub("//.*", "", line) for line in text.split("\n")]
    return [
        (at, number)
        for at, line in enumerate(lines, 1)
        for number, name, own in aliases
        if at not in own and re.search(rf"\b{name}\b", line)
    ]


# Where the attribute stands: behind `struct`, behind the name of an alias, or in front of the rest.
COMMENTS = r"\A(?:\s*//[^\n]*\n)*(?:template <(?:[^<>]|<[^<>]*>)*>\s*)?"
PLACES = {
    "type": re.compile(rf"{COMMENTS}(?:struct|class|enum class|using \w+)"),
    "function": re.compile(COMMENTS),
    "variable": re.compile(COMMENTS),
}


@pytest.mark.skipif(CXX is None, reason="there is no g++ here, which names the uses")
@pytest.mark.parametrize("path", PATHS, ids=checking.name_of)
def test_everything_is_reached(path: Path, tmp_path: Path) -> None:
    compiled = compile_problem(load_problem(path, "cpu"))
    text, places = marked(library.headers(compiled.source))
    unit = tmp_path / "marked.cpp"
    unit.write_text(text + "\n" + library.programs(compiled.source))
    done = subprocess.run([str(CXX), *FLAGS, str(unit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    uses = [(int(line), int(number)) for line, number in WARNING.findall(done.stderr)]
    uses += mentions_of_aliases(unit.read_text(), places)
    owner = {line: i for i, (_, a, b) in enumerate(places) for line in range(a, b + 1)}
    reached: set[str] = set()
    while True:
        # A name is reached as a whole: its overloads and specialisations are one function.
        more = {
            str(places[number][0].name)
            for line, number in uses
            if line not in owner or places[owner[line]][0].name in reached
        }
        if more <= reached:
            break
        reached |= more
    assert len(reached) > 5
    unused = {str(d.name) for d, _, _ in places} - reached - ELSEWHERE
    assert not unused, sorted(unused)
