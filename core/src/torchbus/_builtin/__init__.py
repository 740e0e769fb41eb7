"""The plugins that the core itself brings to every session that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchbus._builtin import optimizers_ready
from torchbus._builtin.seeds import Seeds
from torchbus._builtin.verbose import ExplainFirstEpoch

if TYPE_CHECKING:
    from torchbus._session.context import Context


def first(session: Context) -> list[object]:
    """Return the plugins that come before those of other packages."""
    optimizers_ready.on_demand(session)
    seed = session.options["seed"]
    return [Seeds(seed)] if isinstance(seed, int) else []


def last(session: Context) -> list[object]:
    """Return the plugins that come after those of other packages."""
    return [ExplainFirstEpoch(session)] if session.options["verbose"] else []
