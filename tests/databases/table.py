"""The results of a sweep as a document: how many samples came out how, and every reason."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from databases.judge import OUTCOMES
from databases.layouts import LAYOUTS

HEAD = """# torch's own databases as tests

torch tests itself with two databases of samples: `module_db`, its modules, and `op_db`, its
operators and functions. `tests/torch_databases.py` turns them into modules and gives each to
`kernelwright.optimize`. The result is called with dense inputs, with the same values transposed,
expanded, inside of larger tensors, and with torch's lazy negative or conjugate bit, and with twice
as many samples; with gradients and without. A sample is

- *right* if outputs (structure, types, strides, whose memory, values by the rule of `verify`),
  gradients, arguments and state after the call are eager's, and if it raises where eager raises;
- *beyond eager* if only eager raises, for want of an operator for the type;
- *fell back* if the original ran, for a reason that the module counts;
- *refused* if there was a sentence instead of a result;
- *wrong* or *crashed* if there is a bug.

Of each entry there are float32 and one other type, of a module both modes; of the samples of an
entry all that differ in structure from those before.

This page is written by

```sh
python tests/torch_databases.py --out found.jsonl
python tests/torch_databases.py --out found.jsonl --table docs/torch_databases.md
```
"""


def document(records: Iterable[Mapping[str, Any]], about: str) -> str:
    found = [r for r in records if "verdict" in r]
    outcomes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[tuple[str, str], set[str]] = defaultdict(set)
    layouts: dict[str, Counter[str]] = defaultdict(Counter)
    causes: Counter[str] = Counter()
    kernels = 0
    for record in found:
        verdict = record["verdict"]
        kind, name, dtype, _ = record["entry"].split(" ")
        outcome = verdict["outcome"]
        outcomes[kind, dtype][outcome] += 1
        kernels += verdict.get("kernels", 0) > 0
        if outcome != "right":
            reasons[outcome][reason(verdict["why"])] += 1
            names[outcome, reason(verdict["why"])].add(name)
        for layout, said in verdict.get("layouts", {}).items():
            word, _, cause = said.partition("; ")
            layouts[layout][word.partition(":")[0]] += 1
            if layout != "plain" and cause:
                causes[reason(cause)] += 1
    columns = [*OUTCOMES, *sorted({o for c in outcomes.values() for o in c} - {*OUTCOMES})]
    parts = [HEAD, f"{about} In {kernels} of {len(found)} samples a kernel was generated.\n"]
    rows = [[kind, dtype, *(str(c[o]) for o in columns)] for (kind, dtype), c in outcomes.items()]
    total = [str(sum(c[o] for c in outcomes.values())) for o in columns]
    parts.append(table(["database", "type", *columns], [*sorted(rows), ["all", "", *total]]))
    parts.append("## By what the inputs are\n")
    words = ["right", "fell back", "wrong"]
    rows = [[layout, *(str(layouts[layout][w]) for w in words)] for layout in LAYOUTS]
    parts.append(table(["inputs", *words], rows))
    for outcome in columns[1:]:
        if reasons[outcome]:
            rows = [
                [str(n), why, shown(names[outcome, why])]
                for why, n in reasons[outcome].most_common()
            ]
            parts += [f"## {outcome.capitalize()}\n", table(["samples", "why", "of"], rows)]
    if causes:
        parts.append("## Fell back for other inputs than the example\n")
        rows = [[str(n), cause] for cause, n in causes.most_common()]
        parts.append(table(["calls", "why"], rows))
    return "\n".join(parts)


def reason(text: str) -> str:
    """What several samples have in common of a sentence: numbers and quoted names differ."""
    text = " ".join(text.split())
    text = re.sub(r"'[^']{1,60}'|\"[^\"]{1,60}\"", "'...'", text)
    text = re.sub(r"\b(tensors|args)(_\d+|\[\d+\])+", "an input", text)
    text = re.sub(r"\[[^\]]*\d[^\]]*\]", "[...]", text)
    text = re.sub(r"-?\b\d[\d.e+-]*", "N", text)
    return text if len(text) <= 200 else text[:197] + "..."


def shown(names: set[str]) -> str:
    first = sorted(names)[:4]
    return ", ".join(first) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(x.replace('|', '/') for x in line)} |\n" for line in lines)
