"""``lint=True``: find lines of the loop that slow it down, and warn of each once.

Without it, nothing in torch is replaced.
"""

from __future__ import annotations

from torchbus.plugin import Context

from torchbus_gpu.lint.cache import EmptyCache
from torchbus_gpu.lint.dataset import ObjectsInDataset
from torchbus_gpu.lint.loader import LoaderAdvice
from torchbus_gpu.lint.sync import Synchronisation
from torchbus_gpu.lint.zero_grad import RetainedGradients
from torchbus_gpu.monitor import Monitor


def listeners(session: Context, monitor: Monitor) -> list[tuple[str, object]]:
    """Return the listeners, and replace methods of torch until the session ends."""
    steps = session.steps.follow()
    for lint in (
        Synchronisation(steps, session.device),
        EmptyCache(steps),
        RetainedGradients(steps),
    ):
        session.on_close.enter_context(lint.installed())
    return [
        ("dataset", ObjectsInDataset(session)),
        ("loader", LoaderAdvice(session, monitor)),
    ]
