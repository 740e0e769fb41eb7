"""Runs at the import of torchbus: reads the generators' states, or becomes a launched rank."""

from __future__ import annotations

import base64
import importlib
import json
import os
import random
import sys
from typing import Any

import torch

from torchbus.errors import UsageError

VARIABLE = "TORCHBUS_LAUNCH"
START_DIRECTORY = os.getcwd()
"""Where the script began: a rank that runs it again begins there, too."""
States = dict[str, Any]
imported: States = {}
"""The states of the generators when a process that the user started imported torchbus."""
NOT_FROM_HERE = "import sys; sys.path[:] = [path for path in sys.path if path]\n"


def command(code: str) -> list[str]:
    """Return the command that runs code in another Python.

    ``python -c`` would import modules of the working directory first, which may be anybody's.
    """
    return [sys.executable, "-c", NOT_FROM_HERE + code]


def read() -> None:
    """Read the generators' states, or become the rank in the variable, which no child inherits."""
    global imported
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        imported = generator_states()
        return
    try:
        place = json.loads(text)
        take_over = importlib.import_module(place["taken_over_by"]).take_over
    except Exception as error:
        raise UsageError(f"{VARIABLE}={text[:80]!r} is not from a session. Unset it") from error
    take_over(place)


def generator_states() -> States:
    """Return the state of each generator in a form for JSON.

    NumPy's generator is included only if NumPy is imported and its generator is a Mersenne Twister.
    """
    version, numbers, gauss = random.getstate()
    states: States = {
        "torch": base64.b64encode(bytes(torch.get_rng_state().tolist())).decode(),
        "random": [version, list(numbers), gauss],
    }
    if "numpy" in sys.modules:
        kind, key, *remaining = sys.modules["numpy"].random.get_state()
        states |= {"numpy": [kind, key.tolist(), *remaining]} if kind == "MT19937" else {}
    return states
