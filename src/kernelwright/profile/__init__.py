"""A model or an emitted file in, the time of every step out: measured, and predicted."""

from kernelwright.profile.compare import Difference, difference, read
from kernelwright.profile.run import Profile, Settings, profile, with_predictions

__all__ = [
    "Difference",
    "Profile",
    "Settings",
    "difference",
    "profile",
    "read",
    "with_predictions",
]
