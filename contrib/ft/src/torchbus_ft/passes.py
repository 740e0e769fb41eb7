"""Counts the loop's passes over loaders, and moves a new or resumed replica to its position."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, hookimpl

from torchbus_ft.replicas import ReplicaLink
from torchbus_strategy.elastic import ElasticOrder, Place, elastic_order

State = dict[str, Any]


class Resumed:
    """Moves a resumed run to its position, for any earlier number of replicas.

    A checkpoint counts the batches of one rank. What part of the order they were depends on the
    number of replicas at each step, so this state has the places in the order.
    """

    hears_trials = False

    def __init__(self, replicas: ReplicaLink, passes: PassCounter) -> None:
        self._replicas = replicas
        self._passes = passes
        self._begun: int | None = None
        self._places: Places = {}

    def state_dict(self) -> State:
        return {
            "steps": self._replicas.manager.state_dict(),
            "begun": self._passes.begun,
            "places": [[n, place] for n, place in self._passes.state().items()],
        }

    def load_state_dict(self, state: State) -> None:
        self._replicas.manager.load_state_dict(state["steps"])
        self._begun = state["begun"]
        self._places = dict(state["places"])

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        """Restore the position at the first batch: in the checkpoint's pass, or the next one."""
        if self._begun is None:
            return
        in_that_pass = iterator.num_yielded > 0
        number = self._begun if in_that_pass else max(self._passes.begun, self._begun + 1)
        self._passes.go_on(number, self._places if in_that_pass else {})
        self._begun = None


Places = dict[int, Place]


class PassCounter:
    """Counts the passes of the loop, evaluation included, equally on all replicas.

    A new replica skips the passes that are over. While it ``is_catching_up`` with the others, the
    loop gets no batch, schedulers do not step, and nothing is logged.
    """

    hears_trials = False

    def __init__(self, session: Context, name: str) -> None:
        self._session = session
        self._name = name
        self.begun = 0
        # only the loop holds a strong reference: when it leaves a pass, the iterator is freed
        self._open: dict[int, tuple[weakref.ref[LoaderIterator], ElasticOrder]] = {}
        self._wanted: Places = {}

    @property
    def is_catching_up(self) -> bool:
        """Whether the loop has not yet reached the pass of the other replicas."""
        return bool(self._wanted)

    # Events --------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def skip_pass(self, loader: DataLoader[object]) -> bool | None:
        self.begun += 1
        last = max(self._wanted, default=0)
        return True if self.begun < last and self.begun not in self._wanted else None

    @hookimpl(trylast=True)
    def loader_opened(self, iterator: LoaderIterator) -> None:
        order = elastic_order(iterator.order)
        if order is None:
            return
        self._open = {n: self._open[n] for n, _, _ in self._in_progress()}
        self._open[self.begun] = weakref.ref(iterator), order
        if self.begun in self._wanted:
            order.go_to(self._wanted.pop(self.begun))
            restart(self._session, iterator)

    @hookimpl
    def skip_scheduler(self, scheduler: LRScheduler) -> bool | None:
        return True if self.is_catching_up else None

    @hookimpl(optionalhook=True)
    def skip_logging(self) -> bool | None:
        return True if self.is_catching_up else None

    @hookimpl
    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        self._wanted.clear()  # passes that the loop has not begun before its first step won't come

    # Settling ------------------------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """Whether the loop is in a pass over a divided loader."""
        return any(True for _ in self._in_progress())

    def _in_progress(self) -> Iterator[tuple[int, LoaderIterator, ElasticOrder]]:
        """The passes that the loop has neither exhausted nor left."""
        for n, (reference, order) in self._open.items():
            iterator = reference()
            if iterator is not None and not iterator.ended:
                yield n, iterator, order

    def commit(self) -> None:
        """Count the batches that the loop has consumed as used."""
        for _, order in self._open.values():
            order.commit()

    def take_back(self) -> None:
        """Offer the unused batches again, divided over the current ranks."""
        for reference, order in self._open.values():
            order.take_back()
            iterator = reference()
            if iterator is not None:
                restart(self._session, iterator)

    # State ---------------------------------------------------------------------------------------

    def state(self) -> Places:
        """Return the place in each open pass, by the pass's number."""
        return {n: order.place() for n, _, order in self._in_progress()}

    def load(self, places: Places, random: State) -> None:
        """Go to another replica's places. A pass that is over there ends here too.

        Call ``take_back`` afterwards.
        """
        self._session.random.load_common(random, self._stream(places), 2)
        self._wanted = {n: place for n, place in places.items() if n > self.begun}
        for n, (_, order) in self._open.items():
            order.go_to(places.get(n))

    def go_on(self, number: int, places: Places) -> None:
        """Continue a resumed run in pass ``number``, at these places."""
        opened = self._open.pop(self.begun, None)
        self.begun = number
        if opened is not None:
            self._open[number] = opened
            iterator = opened[0]()
            if number in places and iterator is not None:
                opened[1].go_to(places[number])
                restart(self._session, iterator)

    def _stream(self, places: Places) -> int:
        """Return a number for this rank's random stream, from its name, rank and places."""
        reported = (
            f"{self._name} {self._session.rank} {[(n, p['used']) for n, p in places.items()]}"
        )
        return zlib.crc32(reported.encode())


def restart(session: Context, iterator: LoaderIterator) -> None:
    """Restart a loader's workers at the order's place. The loop's random state is unchanged."""
    if iterator.loader.num_workers:
        drawn = session.random.state()
        iterator.restart()
        session.random.load(drawn)
