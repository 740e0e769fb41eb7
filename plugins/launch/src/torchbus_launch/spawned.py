"""Makes the call in a process that ``spawn`` has started."""

from __future__ import annotations

import os
import pickle
from multiprocessing import spawn

from torchbus_launch.children import standard_input


def main(given: bytes) -> None:
    """Import the parent's main module, as multiprocessing does, and call the function.

    Its session takes this rank's place.
    """
    from torchbus.session import Session

    from torchbus_launch.spawn import find

    os.dup2(standard_input(), 0)
    preparation, module, name, ours, sent = pickle.loads(given)
    spawn.prepare(preparation)
    __import__(module)
    function = find(module, name)
    if ours is not None:
        plugins, arguments = pickle.loads(ours)
        function = Session(*plugins, **arguments)(function)
    args, kwargs = pickle.loads(sent)
    function(*args, **kwargs)
