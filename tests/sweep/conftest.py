"""Tests of sweeps find what they share beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
