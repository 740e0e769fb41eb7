"""What every session brings along, as plugins like any other.

Each is there only if it has something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchbus._builtin import optimizers_ready
from torchbus._builtin.between_runs import RestBetweenRuns
from torchbus._builtin.models_to_device import ModelsToDevice
from torchbus._builtin.printing import Rank0Prints
from torchbus._builtin.seeds import Seeds
from torchbus._builtin.to_device import BatchesToDevice
from torchbus._builtin.verbose import ExplainFirstEpoch
from torchbus._files.shared import SharedFiles

if TYPE_CHECKING:
    from torchbus._session.context import Context


def standard_plugins(session: Context) -> list[object]:
    """Return the built-in plugins that this session needs."""
    optimizers_ready.on_demand(session)
    plugins: list[object] = []
    if isinstance(session.options["seed"], int):
        plugins.append(Seeds(session.options["seed"]))
    if session.device.type != "cpu":
        plugins.append(BatchesToDevice(session))
    if session.device.type != "cpu" and (session.world_size > 1 or _was_asked_for(session)):
        plugins.append(ModelsToDevice(session))
    if session.world_size > 1:
        plugins += [Rank0Prints(session), SharedFiles(session), RestBetweenRuns(session)]
    if session.options["verbose"]:
        plugins.append(ExplainFirstEpoch(session))
    return plugins


def _was_asked_for(session: Context) -> bool:
    """Whether the call names a device. If not, a script may mean the CPU by saying nothing."""
    return any(session.options[name] != "auto" for name in ("devices", "accelerator"))
