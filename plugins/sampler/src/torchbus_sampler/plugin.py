"""Divides the data of loaders over the ranks, and by ``s.shard`` the batches of the script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from torchbus.plugin import Context, UsageError, expect, hookimpl

from torchbus_sampler import decision
from torchbus_sampler.divider import Divider
from torchbus_sampler.ledger import Ledger
from torchbus_sampler.sharding import shard

BATCH = ("per_device", "global")
SHARDS_EVAL = (
    "shard_eval=True: what replicas that come and go have evaluated can't be reduced over all of"
    " them. Leave shard_eval out: each replica evaluates the whole set"
)


class Sampler:
    """Divides the order of map-style loaders over the ranks.

    Args:
        replace_sampler: False leaves every loader as it is.
        batch: with "per_device", the loader's batch_size counts for each rank. With "global", the
            script's own batch is divided, so N ranks compute what one rank does.
        shard_eval: divide loaders in evaluation too, without padding, for loops that reduce over
            ranks themselves.
        sample_ledger: a folder in which each rank records the samples that it got (see ``Ledger``).

    Raises:
        UsageError: an option has another type or value.
    """

    owns = ("order of the data",)
    verbs = ("shard",)

    def __init__(
        self,
        *,
        replace_sampler: bool = True,
        batch: Literal["per_device", "global"] = "per_device",
        shard_eval: bool = False,
        sample_ledger: str | os.PathLike[str] | None = None,
    ) -> None:
        expect("replace_sampler", replace_sampler, bool, "True or False")
        expect("shard_eval", shard_eval, bool, "True or False")
        expect(
            "sample_ledger", sample_ledger, (str, os.PathLike, type(None)), "the path of a folder"
        )
        if batch not in BATCH:
            raise UsageError(f"batch={batch!r} is unknown: use 'per_device' or 'global'")
        self._divided_only = decision.checked(
            replace_sampler, shard_eval=shard_eval, sample_ledger=sample_ledger
        )
        self._replace = replace_sampler
        self._batch = batch
        # a step of all ranks uses no more samples than a step of the script
        self.divides_own_batch = batch == "global"
        self._shard_eval = shard_eval
        self._ledger_folder = sample_ledger
        self._session: Context | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        divides = any(getattr(plugin, "divides_data", False) for _, plugin in session.bus.plugins())
        decision.look(session, self._divided_only, divides)
        if session.world.divides_anew and self._shard_eval:
            raise UsageError(SHARDS_EVAL)
        several = session.world_size > 1 or session.world.divides_anew
        if several and divides and self._replace:
            ledger = (
                None
                if self._ledger_folder is None
                else Ledger(Path(self._ledger_folder), session.rank)
            )
            session.bus.register(
                Divider(session, self._batch, self._shard_eval, ledger), "sampler.divider"
            )

    def shard(self, *values: Any, repeat: bool = False) -> Any:
        """Return this rank's part of a batch, or of a series of them, that the script makes itself.

        Of a tensor, several (``x, y = s.shard(x, y)``), or a nesting of them, all with the same dim
        0, each rank gets a contiguous share of dim 0. Of a range, a list or another iterable, each
        rank gets every world_size-th item, and no two ranks get the same. Gradients of the next
        ``backward`` are weighted accordingly. ``repeat=True`` is for training: a rank without an
        item at the end repeats one, with weight 0. All ranks must call it.
        """
        value = values[0] if len(values) == 1 else values
        if self._session is None or self._session.world.data.parts == 1:
            return value
        return shard(self._session, value, repeat)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        off = session.world.data.parts > 1 and not self._replace
        return {"notes": ["loaders are not divided: replace_sampler=False"]} if off else {}
