"""What a caller wants of a plan beyond what is fastest. An argument of every pass that asks it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """`generate_always`: every kernel is generated that can be, whether it pays or not.

    `channels_last_always`: every convolution of the library is run so that may be.
    So small models can be tested, measured and explained. What users get is WHERE_IT_PAYS.
    """

    generate_always: bool = False
    channels_last_always: bool = False


WHERE_IT_PAYS = Policy()
ALWAYS = Policy(generate_always=True)
CHANNELS_LAST = Policy(channels_last_always=True)
