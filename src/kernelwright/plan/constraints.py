"""What is found wrong with a plan, and what the next one therefore has to respect.

A Finding prints as what was decided again and why. `constraints | finding` is what a plan that has
taken it to heart is made under. What is found of a plan holds for its graph alone: a finding that
changes a graph (its sizes, its laws, the order of its values) does away with those of later passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelwright.plan.dense import Copy
from kernelwright.plan.layouts import Layout
from kernelwright.plan.reasons import Reason, Refusal


@dataclass(frozen=True)
class Constraints:
    """What has been found, in the order of the passes that it concerns.

    `folded`: the convolutions that take the average pool behind them into their weights; None: any
    may. `held`: the inputs (by number) whose leading size is the example's. `layouts`: the order of
    convolutions, where it was chosen again. `stored`: the views that are stored, one plan after the
    other. `library`: convolutions that have no tile, or a slow one. `whole`: those that are alone
    in their kernel, so that what reads them is planned as if they were the library's. `called`:
    those of the library whose order was chosen late, since they were to be generated.
    """

    folded: frozenset[str] | None = None
    held: frozenset[int] = frozenset()
    layouts: tuple[tuple[str, Layout], ...] = ()
    stored: tuple[tuple[Copy, ...], ...] = ()
    library: tuple[tuple[str, Refusal], ...] = ()
    whole: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()

    def __or__(self, finding: Finding) -> Constraints:
        return finding.onto(self)

    @property
    def left(self) -> frozenset[str]:
        """The convolutions that are the library's after all."""
        return frozenset(name for name, _ in self.library)


@dataclass(frozen=True)
class Finding:
    """What is wrong with a plan, so that it is made again."""

    about: str
    why: Reason

    def onto(self, known: Constraints) -> Constraints:
        """The constraints with what follows from this."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.about}: {self.why}"


@dataclass(frozen=True)
class NoTile(Finding):
    """A convolution that was to be generated has no tile that pays."""

    refusal: Refusal

    def onto(self, known: Constraints) -> Constraints:
        return replace(known, library=(*known.library, (self.about, self.refusal)))


@dataclass(frozen=True)
class Alone(Finding):
    """What reads a convolution was parted for its epilogue, and does not run there."""

    def onto(self, known: Constraints) -> Constraints:
        return replace(known, whole=known.whole | {self.about})


@dataclass(frozen=True)
class CopiesInSecret(Finding):
    """Steps would copy views before they read them."""

    wanted: tuple[Copy, ...]

    def onto(self, known: Constraints) -> Constraints:
        return replace(known, stored=(*known.stored, self.wanted))


@dataclass(frozen=True)
class OtherLayout(Finding):
    """A convolution is better off in another order than it was given."""

    layout: Layout

    def onto(self, known: Constraints) -> Constraints:
        layouts = (*known.layouts, (self.about, self.layout))
        return Constraints(known.folded, known.held, layouts, called=known.called)


@dataclass(frozen=True)
class Called(OtherLayout):
    """A convolution that was to be generated is the library's, whose order was not chosen yet."""

    def onto(self, known: Constraints) -> Constraints:
        return replace(super().onto(known), called=known.called | {self.about})


@dataclass(frozen=True)
class NeedsSizes(Finding):
    """The graph hangs on leading sizes that were left free."""

    inputs: frozenset[int]

    def onto(self, known: Constraints) -> Constraints:
        return Constraints(known.folded, known.held | self.inputs)


@dataclass(frozen=True)
class PoolsFirst(Finding):
    """Average pools are better taken into the input of a convolution, but for those `kept`."""

    kept: frozenset[str]

    def onto(self, known: Constraints) -> Constraints:
        return Constraints(folded=self.kept)


class NoPlan(Exception):
    """There is no plan at all under these constraints; the findings say why."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = findings
