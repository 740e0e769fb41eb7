"""Tolerances for two runs that differ only in the order of their sums.

A sum of n terms in arithmetic with unit roundoff u is off by at most ``LAMBDA * sqrt(n) * u``, as a
part of its terms, with a probability of 1 - 2n exp(-LAMBDA**2 / 2) (Higham and Mary, 2019). Two
runs may be off by that to both sides, and each step adds as much. In a model, n is the size of the
largest input of a module: no element of a gradient sums more terms, one for each sample and
position.
"""

from __future__ import annotations

import math

import torch

LAMBDA = 8.0


def unit(dtype: torch.dtype = torch.float64) -> float:
    """Return half the distance from 1 to the next number of ``dtype``. Integers have float64's."""
    inexact = dtype.is_floating_point or dtype.is_complex
    return torch.finfo(dtype if inexact else torch.float64).eps / 2


def of_sums(unit: float, terms: int, steps: int = 0) -> float:
    """Return the largest relative difference that rounding explains after ``steps`` steps."""
    return 2 * LAMBDA * math.sqrt(max(terms, 1)) * unit * (steps + 1)


def of_empty(unit: float, terms: int, largest: float) -> float:
    """Return what rounding leaves of a gradient that is zero.

    Its terms are as large as those of other gradients.
    """
    return math.sqrt(max(terms, 1)) * unit * largest
