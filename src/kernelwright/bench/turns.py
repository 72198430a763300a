"""In which order the variants of a round are called.

What ran just before shows in a time: a GPU at its power limit lowers its clock, and raises it again
while something light runs. So over the rounds each variant follows each other one equally often,
and begins equally often: a Latin square balanced for neighbours (E. J. Williams, 1949).
"""

from __future__ import annotations


def turns(count: int, round_number: int) -> list[int]:
    """The variants 0 to count - 1 in the order of this round.

    All neighbours have met equally often after `count` rounds, twice as many if it is odd.
    """
    zigzag = [count - i // 2 if i % 2 == 0 else i // 2 + 1 for i in range(count)]
    if count % 2 and round_number // count % 2:
        zigzag.reverse()
    return [(place + round_number) % count for place in zigzag]
