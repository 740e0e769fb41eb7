"""``lint=True``: lines of the loop that slow it down, each said once. Nothing in here is imported into torch without it."""

from __future__ import annotations

from torchbus.plugin import Context

from torchbus_gpu.lint.cache import EmptyCache
from torchbus_gpu.lint.dataset import ObjectsInDataset
from torchbus_gpu.lint.loader import LoaderAdvice
from torchbus_gpu.lint.steps import Steps
from torchbus_gpu.lint.sync import Synchronisation
from torchbus_gpu.lint.zero_grad import KeptGradients
from torchbus_gpu.monitor import Monitor


def listeners(session: Context, monitor: Monitor) -> list[tuple[str, object]]:
    """What listens to the loop; methods of torch are replaced until the session ends."""
    steps = Steps()
    for lint in (Synchronisation(steps, session.device), EmptyCache(steps), KeptGradients(steps)):
        session.on_close.enter_context(lint.installed())
    return [
        ("steps", steps),
        ("dataset", ObjectsInDataset(session)),
        ("loader", LoaderAdvice(session, monitor)),
    ]
