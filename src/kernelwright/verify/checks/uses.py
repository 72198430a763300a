"""One grammar of use: what people do with a module, in random order, to original and candidate.

In: a Subject and a level. Out: a Finding. A rule is a line of `words`; a history is some of them,
drawn from the seed, at inputs of drawn sizes, values and layouts, and what is seen after every line
is compared (acts/uses.py). All rules of a level are drawn before any is drawn again, so that each
has its turn; which came after which is counted. A history that fails is cut down to the lines that
it takes, and told as a script.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.verify import cases, statistic, words
from kernelwright.verify.acts.uses import FACTS, RAISED
from kernelwright.verify.cases import LAYOUTS, Case
from kernelwright.verify.certificate import DROP_IN, FUNCTION, GRADIENTS, LEVELS, MODULE, Finding
from kernelwright.verify.inputs import Inputs, Named, map_floating, map_tensors, seeded, with_size
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import ONCE, Act
from kernelwright.verify.subject import SMALL_SECONDS, Subject

SETS = 3  # of inputs in a history
LENGTH, FEW = 10, 4  # rules of one; of a model with so many weights
LARGE = 1 << 24
MOST_SUMMED = 129  # rows that gradients are sums over
SLACK = 32.0  # times over what is allowed: precision is asked for by the checks of values
STEPS = {"quick": 30, "usual": 80, "thorough": 1200}
SECONDS = {"quick": 3.0, "usual": 6.0, "thorough": 60.0}
SHRINKING_SECONDS = 6.0
ELEMENTS = 1 << 18  # of one set of inputs
SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 100),
    *(127, 128, 129, 160, 192, 200, 255, 256, 257, 300, 384, 500, 511, 512, 513, 640, 1000, 1024),
)


@dataclass(frozen=True)
class Rule:
    """A line with places for the number of a set of inputs, another one, a small number, a kind.

    One that gives no result is mostly followed by a call. `lone` ones are left out where random
    numbers are drawn, or forward changes attributes: they are not repeated call by call.
    """

    name: str
    level: str
    line: str
    lone: bool = False
    again: bool = False  # whether an instance has to be constructed
    writes: bool = False  # to weights

    @property
    def is_call(self) -> bool:
        return self.line.startswith("y = ")


KINDS = ("usual", "expanded", "transposed", "one row", "large", "small")

RULES = (
    Rule("call", FUNCTION, "y = quiet(m, x[{i}])"),
    Rule("call with gradients enabled", FUNCTION, "y = loud(m, x[{i}])"),
    Rule("call in inference mode", FUNCTION, "y = inferred(m, x[{i}])"),
    Rule("call on a copy", FUNCTION, "y = quiet(m, fresh(x[{i}]))"),
    Rule("call twice", FUNCTION, "y = [quiet(m, x[{i}]), quiet(m, x[{i}])]"),
    Rule("call often", FUNCTION, "y = often(m, x[{i}])", lone=True),
    Rule("call after a while", FUNCTION, "y = later(m, x[{i}])"),
    Rule("call in a thread", FUNCTION, "y = in_thread(quiet, m, x[{i}])", lone=True),
    Rule("call in two threads", FUNCTION, "y = at_once(m, x[{i}], x[{j}])", lone=True),
    Rule("call in a forked process", FUNCTION, "y = in_child(m, x[{i}])", lone=True),
    Rule("write to an input", FUNCTION, "rewrite(x[{i}])\ny = quiet(m, x[{i}])"),
    Rule("write one number of an input", FUNCTION, "touch(x[{i}])\ny = quiet(m, x[{i}])"),
    Rule("swap rows of an input", FUNCTION, "swap(x[{i}])\ny = quiet(m, x[{i}])"),
    Rule("write to a result", FUNCTION, "spoil(quiet(m, x[{i}]))\ny = quiet(m, x[{i}])"),
    Rule("stain free memory", FUNCTION, "stain()"),
    Rule("another instance", FUNCTION, "m = another({s})", again=True),
    Rule("write weights", FUNCTION, "write(m)", writes=True),
    Rule("write weights unseen", FUNCTION, "write_unseen(m)", writes=True),
    Rule("write one weight", FUNCTION, "write_one(m)", writes=True),
    Rule("nudge weights", FUNCTION, "nudge(m)", writes=True),
    Rule("reorder weights", FUNCTION, "reorder(m)", writes=True),
    Rule("write buffers", FUNCTION, "write_buffers(m, names)", writes=True),
    Rule("give weights other memory", FUNCTION, "give(m)", writes=True),
    Rule("replace weights", FUNCTION, "replace(m)", writes=True),
    Rule("load weights", FUNCTION, "load(m, strict=True)", writes=True),
    Rule("load some weights", FUNCTION, "load(m, strict=False)", writes=True),
    Rule("step of an optimizer", FUNCTION, "step(m)", writes=True),
    Rule("the first weights again", FUNCTION, "back(m, weights_then)", writes=True),
    Rule("gradients", GRADIENTS, "y = gradients(m, x[{i}], '{k}')"),
    Rule("gradients added", GRADIENTS, "y = backward(m, x[{i}], '{k}')"),
    Rule("gradients twice", GRADIENTS, "y = twice(m, x[{i}], '{k}')"),
    Rule("gradients of two graphs", GRADIENTS, "y = interleaved(m, x[{i}], x[{j}], '{k}')"),
    Rule("gradients after a write", GRADIENTS, "y = in_place(m, x[{i}], '{k}')"),
    Rule("gradients under checkpoint", GRADIENTS, "y = checkpointed(m, x[{i}], '{k}')", lone=True),
    Rule(
        "gradients in a thread",
        GRADIENTS,
        "y = in_thread(gradients, m, x[{i}], '{k}')",
        lone=True,
    ),
    Rule("gradients cleared", GRADIENTS, "m.zero_grad(set_to_none={flag})"),
    Rule("freeze some", GRADIENTS, "freeze(m, {s})"),
    Rule("freeze all", GRADIENTS, "m.requires_grad_(False)"),
    Rule("thaw all", GRADIENTS, "m.requires_grad_(True)"),
    Rule("eval", MODULE, "m.eval()"),
    Rule("train", MODULE, "m.train()"),
    Rule("mode of a sublayer", MODULE, "mode(m, {s}, {flag})"),
    Rule("autocast aside", MODULE, "aside(in_half, m, x[{i}])"),
    Rule("half precision aside", MODULE, "aside(as_half, m, x[{i}])"),
    Rule("determinism", MODULE, "y = deterministic(m, x[{i}])"),
    Rule("deepcopy", MODULE, "m = copy.deepcopy(m)"),
    Rule("pickle", MODULE, "m = pickled(m)"),
    Rule("save and load", MODULE, "m = saved(m)"),
    Rule("carry over", MODULE, "m = carried_over(m, another({s}))", again=True),
    Rule("cast and back", MODULE, "cast_and_back(m)", writes=True),
    Rule(
        "forward itself",
        DROP_IN,
        "with torch.no_grad():\n    y = m.forward(*x[{i}][0], **x[{i}][1])",
    ),
    Rule("hook", DROP_IN, "y = with_hook(m, x[{i}])"),
    Rule("other weights for a call", DROP_IN, "y = functional(m, x[{i}])"),
    Rule("subclass", DROP_IN, "subclassed(m)"),
)
BY_NAME = {rule.name: rule for rule in RULES}

LOOKED_AT = {
    FUNCTION: (
        *("inputs written", "inputs that require gradients", "memory shared"),
        "generators moved",
    ),
    GRADIENTS: (*("weights written", "weights that require gradients", "weights with a gradient"),),
    MODULE: ("training",),
    DROP_IN: (),
}


def _row(value: float, x: Tensor) -> Tensor:
    changed = x.clone()
    if x.ndim and x.shape[0]:
        changed[x.shape[0] // 2] = value
    return changed


def _negative_row(x: Tensor) -> Tensor:
    changed = x.clone()
    if x.ndim and x.shape[0]:
        changed[x.shape[0] // 3] = -changed[x.shape[0] // 3].abs() - 0.25
    return changed


def _mixed_row(x: Tensor) -> Tensor:
    """Numbers of very different sizes beside each other."""
    if not x.ndim:
        return x
    powers = torch.arange(x.shape[-1]).remainder(5).sub(2).mul(2)
    return torch.randn_like(x) * torch.pow(10.0, powers.double()).to(x.dtype)


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda x: x,
    "normal": torch.randn_like,
    "with a row of zeros": partial(_row, 0.0),
    "with a row of equal numbers": partial(_row, 0.7),
    "with a row of negative numbers": _negative_row,
    "with a row of NaN": partial(_row, float("nan")),
    "with a row of infinities": partial(_row, float("inf")),
    "of mixed sizes in each row": _mixed_row,
    "tied": cases.DISTRIBUTIONS["tied"],
    "a thousand times larger": lambda x: x * 1e3,
    "a thousand times smaller": lambda x: x * 1e-3,
}
# What gradients are taken at: in sums of terms that cancel, right ones may be far from each other.
TAME = ("as they are", "normal", "with a row of zeros", "with a row of negative numbers", "tied")


def _bounds(by: int, x: Tensor) -> Tensor:
    """Whole numbers with one beyond the largest, or the smallest, that there is."""
    if x.dtype == torch.bool or x.is_floating_point() or x.is_complex() or not x.numel():
        return x
    changed = x.clone()
    changed.view(-1)[0] = (x.max() if by > 0 else x.min()) + by
    return changed


@dataclass(frozen=True)
class Given:
    """A set of inputs, as it is drawn."""

    rows: int
    values: str
    layout: str
    draw: int
    beyond: int = 0

    def make(self, subject: Subject, draw: int) -> Inputs:
        leaves, tree = pytree.tree_flatten(subject.draw(subject.small, self.draw + 50 * draw))
        with seeded(subject.job.number("use", self.draw, draw)):
            for index in subject.resized:
                leaves[index] = with_size(leaves[index], 0, self.rows)
            inputs: Inputs = pytree.tree_unflatten(leaves, tree)
            inputs = map_floating(VALUES[self.values], inputs)
        inputs = map_tensors(partial(_bounds, self.beyond), inputs) if self.beyond else inputs
        return map_tensors(self._laid, inputs) if self.layout else inputs

    def _laid(self, x: Tensor) -> Tensor:
        changed = LAYOUTS[self.layout](x)
        return x if changed is None else changed

    def __str__(self) -> str:
        beyond = {0: "", 1: ", one above the largest", -1: ", one below the smallest"}[self.beyond]
        return f"{self.rows} rows {self.values}{beyond}{self.layout and f', {self.layout}'}"


@dataclass(frozen=True)
class History:
    """Rules in their order, the lines that they became, and the inputs."""

    rules: tuple[str, ...]
    lines: tuple[str, ...]
    given: tuple[Given, ...]
    level: str
    names: tuple[str, ...]
    has_buffers: bool

    def without(self, start: int, end: int) -> History:
        keep = [i for i in range(len(self.lines)) if not start <= i < end]
        rules, lines = (tuple(x[i] for i in keep) for x in (self.rules, self.lines))
        return replace(self, rules=rules, lines=lines)

    def case(self, subject: Subject) -> Case:
        def make(draw: int) -> Inputs:
            return Inputs(tuple(one.make(subject, draw) for one in self.given), {})

        return Case("a history of use", make, strides=False)

    @property
    def act(self) -> Act:
        within = LEVELS[: LEVELS.index(self.level) + 1]
        facts = [name for level in within for name in LOOKED_AT[level]]
        parts = {"lines": self.lines, "facts": facts, "names": self.names}
        # In train mode forward itself writes to buffers.
        writes = self.has_buffers or any(BY_NAME[name].writes for name in self.rules)
        return Act("used", {**{k: list(x) for k, x in parts.items()}, "writes": writes})


def at_level(subject: Subject, level: str) -> Finding:
    """Histories of this level's rules and of all below it."""
    if _own_numbers(subject):
        told = "the candidate draws other random numbers than eager, so no two histories are alike"
        return Finding(None, told)
    if subject.misused:
        return Finding(
            None, f"the candidate is wrong in a use of the level {subject.misused} already"
        )
    if _is_large(subject) and subject.job.quick and level != FUNCTION:
        return Finding(None, "so many weights take more time than a quick run has")
    how = "thorough" if subject.job.thorough else "quick" if subject.job.quick else "usual"
    steps, length = (FEW, FEW) if _is_large(subject) and how != "thorough" else (STEPS[how], LENGTH)
    until = time.monotonic() + SECONDS[how]
    drawn: list[tuple[str, ...]] = []
    passed: list[Finding] = []
    for history in _histories(subject, level, steps, length):
        finding = tried(subject, history)
        drawn.append(history.rules)
        if finding.passed is False:
            subject.misused = level
            return replace(_told(subject, history, finding), drawn=tuple(drawn))
        passed += [finding] if finding.passed else []
        if time.monotonic() > until:
            break
    count = sum(map(len, drawn))
    if not passed:
        return Finding(None, "the original takes none of these uses", drawn=tuple(drawn))
    worst = max(passed, key=lambda x: (x.error or 0.0) / (x.allowed or 1.0))
    told = f"{count} steps in {len(drawn)} histories; {worst.detail}"
    return replace(worst, detail=told, drawn=tuple(drawn))


def _own_numbers(subject: Subject) -> bool:
    """Dropout by another generator: nothing of a history could be compared."""
    if not subject.random_in_any_mode:
        return False
    with subject.mode(training=True):
        return statistic.draws_other_numbers(subject, cases.own(subject), ONCE)


def _is_large(subject: Subject) -> bool:
    """Where every line that touches all weights takes a good part of a second."""
    return sum(x.numel() for x in subject.state.values()) > LARGE


def _histories(subject: Subject, level: str, steps: int, length: int) -> Iterator[History]:
    """As many as have so many rules of the level, each rule before any comes again."""
    chance = random.Random(subject.job.number("uses", level))
    rules = [rule for rule in RULES if _possible(subject, rule)]
    own = [rule for rule in rules if rule.level == level]
    below = [r for r in rules if LEVELS.index(r.level) < LEVELS.index(level)] or own
    left: list[Rule] = []
    while steps > 0:
        chosen: list[Rule] = []
        while len(chosen) < length:
            left = left or chance.sample(own, len(own))
            chosen.append(left.pop() if chance.random() < 0.6 else chance.choice(below))
            steps -= 1
        yield _written(subject, level, chosen, chance)


def _possible(subject: Subject, rule: Rule) -> bool:
    if rule.lone and (subject.random_in_any_mode or subject.reference.volatile):
        return False
    if "in_child" in rule.line and subject.device.type != "cpu":
        return False
    if rule.again and _is_large(subject) and not subject.job.thorough:
        return False
    return not rule.again or isinstance(subject.reference.arguments, Inputs)


def _written(subject: Subject, level: str, chosen: list[Rule], chance: random.Random) -> History:
    """With a call before everything, and mostly one after what gives no result itself."""
    rules = [BY_NAME["call"]]
    for rule in chosen:
        rules.append(rule)
        if not rule.is_call and chance.random() < 0.8:
            calls = [r for r in RULES if r.is_call and r.level == level and _possible(subject, r)]
            plain = chance.random() < 0.5 or not calls
            rules.append(BY_NAME["call"] if plain else chance.choice(calls))
    lines = tuple(
        rule.line.format(
            i=chance.randrange(SETS),
            j=chance.randrange(SETS),
            s=chance.randrange(1, 8),
            k=chance.choice(KINDS),
            flag=chance.random() < 0.5,
        )
        for rule in rules
    )
    given = tuple(_given(subject, level, chance) for _ in range(SETS))
    names = (*subject.names.parameters, *subject.names.buffers)
    drawn = tuple(rule.name for rule in rules)
    return History(drawn, lines, given, level, names, bool(subject.names.buffers))


def _given(subject: Subject, level: str, chance: random.Random) -> Given:
    """Sizes as eager can afford them; what is extreme is for calls alone."""
    values = list(VALUES) if level == FUNCTION else TAME
    each = subject.reference.elements / max(subject.batch, 1)
    most = min(SMALL_SECONDS / max(subject.seconds / max(subject.batch, 1), 1e-9), ELEMENTS / each)
    most = max(most, subject.small) if level == FUNCTION else min(most, MOST_SUMMED)
    sizes = [size for size in SIZES if size <= max(most, 1)]
    rows = chance.choice(sizes if chance.random() < 0.8 else [1]) if sizes else 1
    rows = rows if subject.resized else subject.small
    layout = chance.choice(list(LAYOUTS)) if chance.random() < 0.3 else ""
    beyond = chance.choice((-1, 1)) if level == FUNCTION and chance.random() < 0.3 else 0
    return Given(rows, chance.choice(values), layout, chance.randrange(1, 40), beyond)


def tried(subject: Subject, history: History) -> Finding:
    """Whether the candidate is right in all that the original does of a history."""
    finding = _on_draw(subject, history, 0)
    if finding.passed is False and history.level != FUNCTION:
        return _on_draw(subject, history, 1)  # a kink can fall to either side by rounding
    return finding


def _on_draw(subject: Subject, history: History, start: int) -> Finding:
    case, act = history.case(subject), history.act
    inputs = case.make(start)
    ours = attempted(lambda: subject.candidate(inputs, act, start))
    theirs = attempted(lambda: subject.original(inputs, act, start))
    drew = _drew(subject)
    if isinstance(theirs, Raised):
        return Finding(None, f"the original's process raised {theirs}")
    exact = attempted(lambda: subject.oracle(inputs, act, start, replay=drew))
    if isinstance(exact, Raised):
        return Finding(None, f"there is no oracle: the original in float64 raised {exact}")
    if isinstance(ours, Raised):
        return Finding(False, f"the candidate raised {ours}")
    names = [name for name in _before_raising(theirs) if name in _before_raising(exact)]
    if (wrong := _differs(ours, theirs, names)) is not None:
        return Finding(False, wrong)
    sides = _Alike(subject, names, ours, exact, start)
    later = replace(case, make=lambda draw: case.make(start + draw))
    return _leniently(judge(sides, later, act, sides.cut(theirs)))


def _leniently(finding: Finding) -> Finding:
    """What comes of a wrong order is far off; what is near is rounding, added up over steps."""
    if finding.passed is False and finding.error is not None and finding.allowed is not None:
        return replace(finding, passed=finding.error <= SLACK * finding.allowed)
    return finding


def _drew(subject: Subject) -> bool:
    """Whether forward drew random numbers; constructing an instance does as well."""
    return subject.random_in_any_mode and subject.drew


def _before_raising(found: Named) -> list[str]:
    return [name for name in found if not name.startswith(RAISED)]


def _differs(ours: Any, theirs: Named, names: list[str]) -> str | None:
    """What is seen otherwise than in the original, but for the values of results."""
    if not isinstance(ours, Named):
        return "the candidate's process gave no history"
    for name in names:
        if name not in ours:
            raised = next((f"{v}, {k}" for k, v in ours.items() if k.startswith(RAISED)), "stopped")
            return f"the candidate raised {raised}"
        if not name.startswith(FACTS):
            continue
        facts = ours[name] if isinstance(ours[name], dict) else {}
        for fact, value in theirs[name].items():
            if facts.get(fact) != value:
                return f"{fact} is {facts.get(fact)!r} instead of {value!r}, {name}"
    return None


class _Alike:
    """The sides of a history, with what all of them came to; the first results are known."""

    def __init__(
        self, subject: Subject, names: list[str], ours: Any, exact: Any, start: int
    ) -> None:
        self.subject, self.names, self.start = subject, names, start
        self.known = {"candidate": ours, "oracle": exact}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subject, name)

    @property
    def drew(self) -> bool:
        return _drew(self.subject)

    def cut(self, found: Any) -> Named:
        missing = next((name for name in self.names if name not in found), None)
        if missing is not None:
            raise Raised("Ended", f"a second run did not come to {missing}")
        kept = {name: found[name] for name in self.names if not name.startswith(FACTS)}
        return Named(kept)

    def candidate(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any:
        known = self.known.pop("candidate", None)
        if known is None:
            known = self.subject.candidate(inputs, act, self.start + draw)
        return self.cut(known)

    def original(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any:
        return self.cut(self.subject.original(inputs, act, self.start + draw))

    def oracle(self, inputs: Inputs, act: Act = ONCE, draw: int = 0, replay: bool = False) -> Any:
        known = self.known.pop("oracle", None)
        if known is None:
            known = self.subject.oracle(inputs, act, self.start + draw, replay)
        return self.cut(known)

    def rounded(self, inputs: Inputs, act: Act = ONCE, draw: int = 0, number: int = 0) -> Any:
        return self.cut(self.subject.rounded(inputs, act, self.start + draw, number))


def _told(subject: Subject, history: History, finding: Finding) -> Finding:
    """With as few lines as it takes, and as a script."""
    until = time.monotonic() + SHRINKING_SECONDS
    size = len(history.lines) // 2
    while size and time.monotonic() < until:
        end = len(history.lines)
        while end > 0 and time.monotonic() < until:
            fewer = history.without(max(0, end - size), end)
            again = tried(subject, fewer) if fewer.lines else Finding(None, "")
            if again.passed is False:
                history, finding = fewer, again
            end -= size
        size //= 2
    lines = "; ".join(line.replace("\n", "; ") for line in history.lines)
    return replace(finding, detail=f"after {lines}: {finding.detail}", log=script(subject, history))


SCRIPT = """# Runs the model and the candidate through one history, and prints what they give.
{words}

import importlib.util
import sys


def loaded(path):
    spec = importlib.util.spec_from_file_location("user_file", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def given(file, seed, rows):
    torch.manual_seed(seed)
    drawn = file.get_inputs()
    args, kwargs = (drawn, {{}}) if isinstance(drawn, list | tuple) else ((), drawn)
    first = tensors(args)[0].shape[0]
    sized = lambda v: v.repeat(-(-rows // first), *[1] * (v.ndim - 1))[:rows]
    return each(lambda v: sized(v) if v.ndim and v.shape[0] == first else v, args), kwargs


def history(made, file, names):
    another = lambda seed: (torch.manual_seed(seed), made())[1]
    m = another(0)
    x = [{sets}]
    weights_then = snapshot(m)
{lines}


model, candidate = loaded({model!r}), loaded({candidate!r})
arguments = model.get_init_inputs() if hasattr(model, "get_init_inputs") else []
names = [name for name, _ in model.Model(*arguments).named_buffers()]
for made in (model.Model, candidate.ModelNew):
    print(f"\\n{{made.__name__}}")
    history(lambda: made(*arguments), model, names)
"""


def script(subject: Subject, history: History) -> str:
    """A file that does the same by hand; the numbers are others, of the same kinds."""
    text = Path(words.__file__).read_text(encoding="utf-8").partition("from __future__")[2]
    lines = []
    for line in history.lines:
        lines += [f"    {part}" for part in line.splitlines()]
        if line.splitlines()[-1].lstrip().startswith("y = "):
            lines.append(f"    print({line.splitlines()[-1].strip()!r}, y)")
    sets = ", ".join(f"given(file, {one.draw}, {one.rows})" for one in history.given)
    return SCRIPT.format(
        words="from __future__" + text,
        sets=sets,
        lines="\n".join([*(f"    # x[{i}]: {g}" for i, g in enumerate(history.given)), *lines]),
        model=subject.job.model,
        candidate=subject.job.candidate,
    )
