"""Imported last by the process that forks for each run: see tests/heap.py."""

import gc

gc.freeze()
