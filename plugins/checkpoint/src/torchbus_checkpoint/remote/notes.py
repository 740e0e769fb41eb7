"""Notes about a store.

Rank 0 prints them, maybe in a thread. A warning would name no line of the script there.
"""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(f"torchbus: {text}", file=sys.stderr, flush=True)
