"""Forms a quorum of replicas before each step, and reduces tensors over them, by torchft."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context, DataPlace, LaunchError, RankFailed, TorchbusError, warn

from torchbus_ft._compat import Links
from torchbus_ft.options import SILENT, ReplicaOptions, reach
from torchbus_ft.transport import Transport
from torchbus_launch import listening
from torchbus_strategy.collectives import broadcast_object

WAITING = (
    "replica {!r} waits: {} of at least {} replicas have come. Start the others, or lower"
    " min_replicas"
)
TOO_FEW = (
    "replica {!r}: {} of at least {} replicas have come within quorum_timeout_s={:g}. Start the"
    " others, or lower min_replicas. {} steps are made, and nothing of them is lost here"
)
NO_QUORUM = (
    "replica {!r}: the lighthouse at {} has not formed a quorum within quorum_timeout_s={:g}: it"
    " waits for its own --min_replicas, or for replicas that were connected shortly before. {}"
    " steps are made, and nothing of them is lost here. Start the missing replicas, or lower"
    " --min_replicas"
)
LOST = (
    "replica {!r} can't reach the lighthouse at {}, after {} steps: {}. The parameters are"
    " those of the last step. Restart the lighthouse and the replicas, which resume from their"
    " checkpoints"
)
FOREIGN = (
    "replica {!r}: the replica at {}, which the lighthouse named, has another key, so its state is"
    " rejected. Give all replicas the same TORCHBUS_KEY, or a home folder that they share"
)


class ReplicaLink:
    """Links this rank to the same rank of the other replicas.

    This replica has the number ``number`` of ``count`` in the quorum. All replicas have the same
    ``steps``. The functions in ``on_change`` are called after the quorum has changed.
    """

    def __init__(
        self,
        session: Context,
        options: ReplicaOptions,
        state: Callable[[], object],
        load: Callable[[Any], None],
    ) -> None:
        self._session = session
        self._options = options
        self._store, place = self._open_store()
        self._links = self._connect(state, load, place)
        session.on_close.callback(self._close)
        self._quorum_id = -1
        self._warned = False
        self.number, self.count = 0, 1
        self.on_change: list[Callable[[], None]] = []

    def _open_store(self) -> tuple[dist.Store | None, tuple[str, int]]:
        """Serve the store of this replica on rank 0, and return it with its host and port.

        Ranks find this replica's manager in it, and replicas each other. All ranks call it.
        """
        if not self._session.is_main:
            host, port = broadcast_object(None)
            return None, (host, port)
        reach(self._options.lighthouse, self._options.timeout_s)
        host = self._options.host
        timeout = timedelta(seconds=self._options.timeout_s)
        store = listening.serve(host, 0, one_host=False, timeout=timeout)
        place = (host, store.port)
        return store, broadcast_object(place) if self._session.world_size > 1 else place

    def _connect(
        self, state: Callable[[], object], load: Callable[[Any], None], place: tuple[str, int]
    ) -> Links:
        options = self._options
        timeout = timedelta(seconds=options.timeout_s)
        try:
            return Links(
                state,
                load,
                timeout,
                options.host,
                Transport(options.host, options.key, options.timeout_s),
                min_replica_size=options.min_replicas,
                rank=self._session.rank,
                world_size=self._session.world_size,
                store_addr=place[0],
                store_port=place[1],
                lighthouse_addr=options.lighthouse,
                replica_id=options.name,
                connect_timeout=timeout,
                quorum_timeout=timedelta(seconds=options.quorum_timeout_s),
            )
        except (RuntimeError, TimeoutError) as error:
            raise LaunchError(SILENT.format(options.lighthouse, error)) from None

    @property
    def steps(self) -> int:
        """The number of committed steps since the first replica started."""
        return int(self._links.manager.current_step())

    @property
    def manager(self) -> Any:
        """torchft's Manager."""
        return self._links.manager

    @property
    def failed(self) -> bool:
        """Whether a collective of this step has failed, because a replica has left."""
        return self._links.manager.errored() is not None

    # The quorum ----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Agree on who takes part in the next step. A new replica gets the state of the others.

        All ranks of all replicas call it. Raises RankFailed if too few replicas join in time, if
        the lighthouse does not answer, or if a replica has another key. Raises RanksDiverged if the
        others train another model.
        """
        begun = time.monotonic()
        while not self._quorum():
            if time.monotonic() - begun > self._options.quorum_timeout_s:
                raise RankFailed(self._too_few(TOO_FEW, self._options.quorum_timeout_s, self.steps))
            if not self._warned and self._session.is_main:
                self._warned = True
                warn(self._too_few(WAITING))
            time.sleep(0.2)
        self._warned = False
        manager = self._links.manager
        self.number, self.count = manager.participating_rank() or 0, manager.num_participants()
        self._divide()
        if self._links.quorum_id != self._quorum_id:
            self._quorum_id = self._links.quorum_id
            for reported in self.on_change:
                reported()

    def _quorum(self) -> bool:
        """Ask the lighthouse once, and return whether there are enough replicas."""
        try:
            self._links.manager.start_quorum()
        except TorchbusError:
            raise
        except (RuntimeError, TimeoutError) as error:
            raise RankFailed(self._why(error)) from None
        if self._links.transport.foreign:
            raise RankFailed(FOREIGN.format(self._options.name, self._links.transport.foreign))
        return bool(self._links.manager.num_participants() >= self._options.min_replicas)

    def _why(self, error: Exception) -> str:
        """Return why there is no quorum: the lighthouse is down, or it waits for replicas."""
        name, url = self._options.name, self._options.lighthouse
        try:
            reach(url, self._options.timeout_s)
        except LaunchError:
            return LOST.format(name, url, self.steps, error)
        return NO_QUORUM.format(name, url, self._options.quorum_timeout_s, self.steps)

    def _too_few(self, text: str, *more: object) -> str:
        come = self._links.manager.num_participants()
        return text.format(self._options.name, come, self._options.min_replicas, *more)

    def _divide(self) -> None:
        """Give this rank its part of the data, of one part for each rank of all replicas."""
        rank, ranks = self._session.rank, self._session.world_size
        place = DataPlace(self.number * ranks + rank, self.count * ranks)
        if self._session.world.data != place:
            self._session.change_world(data_place=place)

    def commit(self) -> bool:
        """Return whether to make the step: all ranks of this replica have the averages.

        All ranks of the replica call it.
        """
        return bool(self._links.manager.should_commit())

    # Collectives ---------------------------------------------------------------------------------

    def mean(self, flat: Tensor) -> bool:
        """Replace a tensor by its mean over replicas, in place. All ranks call it.

        Returns False if that failed. The tensor's values are then undefined.
        """
        if self.sum(flat):
            flat /= self.count
            return True
        return False

    def sum(self, flat: Tensor) -> bool:
        """Replace a tensor by its sum over replicas, in place. All ranks call it.

        Returns False if that failed. The tensor's values are then undefined.
        """
        if self.failed:
            return False
        try:
            self._links.sum(torch.view_as_real(flat) if flat.is_complex() else flat)
        except Exception as error:
            self._links.manager.report_error(error)
            return False
        return True

    def _close(self) -> None:
        self._links.close()
        self._store = None
