"""Does the judge's clock bear out what the candidate's says?

In: what the candidate's clock showed, and what the judge saw of the same calls from outside. Out: a
sentence where both cannot be right.

The one idea: a burst of calls has no pauses, so all the time that it takes is theirs, and the cache
is warm, so it takes no more than the timed calls did. Noise only adds to what the judge sees: one
quiet burst clears the candidate, and a liar has none. The timed rounds are seen through the flushes
between the calls, which take far longer than a small model, and not equally long in two processes;
they show only what is gross beside that.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

BURST_MS = 2.5  # of a burst, if the claim is true; on a busy machine, less than a process's turn
MOST_CALLS = 200
BURST_SECONDS = 3.0  # for all bursts of a variant
BELIEVED = 0.6  # of the judge's time that the candidate's clock must show at least
BURST_SLACK_MS = 1.0  # of a burst, by which messages may differ
ROUND_SLACK_MS = 0.2  # of a round, likewise
FLUSH_SLACK = 0.5  # of what a round without a call takes


Look = tuple[Any, Any]  # what a set held, and a result of the candidate on it


@dataclass(frozen=True)
class Burst:
    """Some calls back to back, by the judge's clock, and as many of nothing, in ms."""

    calls: int
    taken: float
    idle: float

    @property
    def each(self) -> float:
        return self.taken / self.calls


@dataclass(frozen=True)
class Rounds:
    """A block of timed rounds: one of them by the candidate's clock, by the judge's, and empty."""

    claimed: float
    taken: float
    idle: float


@dataclass
class Witness:
    """One variant of the candidate's, as its own clock shows it and as the judge saw it."""

    name: str
    claims: list[float] = field(default_factory=list)
    rounds: list[Rounds] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    look: Look | None = None  # at a result of the quickest burst

    def saw(self, burst: Burst, look: Look | None) -> None:
        if all(burst.each < other.each for other in self.bursts):
            self.look = look
        self.bursts.append(burst)

    @property
    def claimed(self) -> float:
        return statistics.median(self.claims)

    @property
    def calls(self) -> int:
        """How many calls the next burst should have."""
        return max(1, min(MOST_CALLS, int(BURST_MS / max(self.claimed, 1e-9))))

    @property
    def patient(self) -> bool:
        """Is there time for another burst?"""
        return sum(burst.taken for burst in self.bursts) < BURST_SECONDS * 1e3

    def doubt(self) -> str | None:
        """What the judge says, unless it bears the claim out."""
        if all(self._contradicts(burst) for burst in self.bursts):
            return self._told(min(self._judged(burst) for burst in self.bursts))
        if all(_gross(block) for block in self.rounds):
            return self._told(min(block.taken - block.idle for block in self.rounds))
        return None

    def _judged(self, burst: Burst) -> float:
        """One call of a burst. Messages cost the least that they ever did: delays are no excuse."""
        return (burst.taken - min(b.idle for b in self.bursts)) / burst.calls

    def _contradicts(self, burst: Burst) -> bool:
        excess = BELIEVED * self._judged(burst) - self.claimed
        return excess * burst.calls > BURST_SLACK_MS

    def _told(self, judged: float) -> str:
        return (
            f"{self.name} takes {self.claimed:.4f} ms by the clock in its own process, but "
            f"{judged:.4f} ms by the judge's: "
            "work is left after the call, or the clock is not torch's; if others use the device, "
            "try again when they do not"
        )


def _gross(block: Rounds) -> bool:
    excess = BELIEVED * (block.taken - block.idle) - block.claimed
    return excess > ROUND_SLACK_MS + FLUSH_SLACK * block.idle
