"""Certify that a candidate's ModelNew computes the same function as Model: `verify`.

In: the paths of two files. Out: a Certificate with one Check for each way of being wrong that
people who wrote such kernels fell into.
"""

from kernelwright.verify.certificate import Certificate, Check
from kernelwright.verify.session import verify

__all__ = ["Certificate", "Check", "verify"]
