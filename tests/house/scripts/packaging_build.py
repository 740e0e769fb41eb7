"""Builds a wheel of each folder into the first one, as pip does it, but all in one process."""

import os
import sys

from hatchling.build import build_wheel

to, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    build_wheel(to)
