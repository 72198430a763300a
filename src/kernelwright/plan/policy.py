"""What a caller wants of a plan beyond what is fastest. An argument of every pass that asks it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """`generate_always`: every kernel is generated that can be, whether it pays or not.

    `channels_last_always`: every convolution is the library's, in channels_last if it may.
    So small models can be tested, measured and explained. What users get is WHERE_IT_PAYS.
    `backward`: a backward is generated too, for training.
    """

    generate_always: bool = False
    channels_last_always: bool = False
    backward: bool = False


WHERE_IT_PAYS = Policy()
ALWAYS = Policy(generate_always=True)
CHANNELS_LAST = Policy(channels_last_always=True)
