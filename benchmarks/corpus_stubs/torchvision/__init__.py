"""Stands in for torchvision: small images made up of random numbers, and the transforms that the
scripts of the corpus use.
"""

from __future__ import annotations

from torchvision import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
