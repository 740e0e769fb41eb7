"""Replaces the order of captured loaders by this rank's share of it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from itertools import count

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from torchbus.plugin import (
    BackwardCall,
    Context,
    LoaderIterator,
    LoaderPass,
    Origin,
    Unsupported,
    hookimpl,
    warn,
)

from torchbus_sampler._compat import auto_collation, index_sampler
from torchbus_sampler.content.comparison import LOCAL_DATA, ContentComparison
from torchbus_sampler.content.first_item import begin, left_whole
from torchbus_sampler.counted import CountedMetrics
from torchbus_sampler.decision import BYPASSED, Decision, TrainingLoaders, decide
from torchbus_sampler.ledger import Ledger
from torchbus_sampler.order import length_of
from torchbus_sampler.orders.elastic import (
    ElasticIndices,
    in_phrases,
    refuse_stream,
    without_samples,
)
from torchbus_sampler.orders.shared import memory_of
from torchbus_sampler.stateful import drop_skipped, kind_of_order
from torchbus_sampler.stream import divided_order, divided_stream, unpack
from torchbus_strategy import random_streams, script_generators
from torchbus_strategy.elastic import elastic_order
from torchbus_strategy.evaluating import DecidingModels, without_gradients
from torchbus_strategy.script_generators import STRIDE

IDLE = (
    "batch='global' divides batches of size {} over {} ranks, and each rank gets at least two"
    " samples, so {} of them get none and stay idle. Use batches of {} samples or more, fewer"
    " devices, or batch='per_device'"
)

ITSELF = (
    "the ranks read different first items from {} now, and the same ones in its earlier passes,"
    " which were divided between the ranks. From now on each rank trains on all that it reads. Pass"
    " replace_sampler=False if each rank has its own data, such as a replay buffer"
)

ALONE = 3
"""The number of batches that a prefetching wrapper may hold."""


class Divider:
    """Divides loaders when they are iterated. Registered only if there are several ranks."""

    def __init__(
        self, session: Context, batch: str, shard_eval: bool, ledger: Ledger | None
    ) -> None:
        self._session = session
        self._global = batch == "global"
        self._shard_eval = shard_eval
        self._ledger = ledger
        if ledger is not None:
            session.on_close.callback(ledger.close)
        self._models = DecidingModels()
        session.bus.register(self._models, "sampler.models")
        self._decisions: weakref.WeakKeyDictionary[DataLoader[object], Decision] = (
            weakref.WeakKeyDictionary()
        )
        self._training = TrainingLoaders(session)
        self._contents = ContentComparison(session)
        self._between = BetweenPasses(session)
        self._counted = CountedMetrics(session)
        session.bus.register(self._counted, "sampler.counted")
        self._memory = memory_of(session.world)
        self._has_said_idle = False
        # by loader over a stream, whether its data set divides itself
        self._streams: weakref.WeakKeyDictionary[DataLoader[object], bool] = (
            weakref.WeakKeyDictionary()
        )
        self._passes: weakref.WeakKeyDictionary[DataLoader[object], Origin] = (
            weakref.WeakKeyDictionary()
        )
        # loaders from which rank 0 got other batches than the script's own
        self._parts: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
        self._evaluated: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
        session.batches.follow()

    @property
    def _batches_per_step(self) -> int:
        return 1 if self._global else self._session.world.data.parts

    @hookimpl(trylast=True)  # it returns an answer, so later listeners would not be called
    def loader_start(self, loader: DataLoader[object]) -> LoaderPass | None:
        if not self._session.captures(loader):
            return None
        if self._decide(loader).divide and not isinstance(loader.dataset, IterableDataset):
            with self._session.random.order():
                self._contents.compare(loader)
        decision = self._decisions[loader] = self._decide(loader)
        if decision.divide and not decision.evaluation:
            self._say_idle(loader)
            self._between.begins()
            self._counted.begins(self._training.begins(loader))
        self._session.random.use("order")  # DataLoader draws a seed when it makes the iterator
        if isinstance(loader.dataset, IterableDataset):
            replacements = self._stream(loader) if decision.divide else {}
        elif decision.divide or decision.evaluation:
            seeds = seeds_of_workers(loader, self._session.world.data.part)
            replacements = self._order(loader, decision) | seeds
        else:
            replacements = {}
        if replacements and getattr(loader, "in_order", True) is False:
            replacements["in_order"] = True  # otherwise batches can't be identified
        if self._ledger is not None:
            self._ledger.begin(loader)
        if not replacements:
            return None
        order = LoaderPass(**replacements)
        if (again := elastic_order(order)) is not None:
            order.has_more = again.has_more
        return order

    def _say_idle(self, loader: DataLoader[object]) -> None:
        parts, size = self._session.world.data.parts, loader.batch_size
        idle = without_samples(parts, size) if self._global else 0
        if idle and self._session.is_main and not self._has_said_idle:
            self._has_said_idle = True
            warn(IDLE.format(size, parts, idle, 2 * parts))

    def _order(self, loader: DataLoader[object], decision: Decision) -> dict[str, object]:
        """Return this rank's share. In evaluation, return the whole order from the same stream."""
        batched, pad = auto_collation(loader), not decision.evaluation
        if self._session.world.divides_anew and decision.divide:
            again = ElasticIndices(self._session, loader, batched, self._global, self._ledger)
            return {"batch_sampler" if batched else "sampler": again}
        world, batches = self._session.world, self._batches_per_step
        part, parts, batches = (*world.data, batches) if decision.divide else (0, 1, 1)
        order = kind_of_order(loader, self._memory)(
            index_sampler(loader),
            part,
            parts,
            batches,
            batched,
            self._session.random,
            pad,
            loader.dataset,
            pad and self._may_be_a_look(loader),
        )
        return {"batch_sampler" if batched else "sampler": order}

    def _may_be_a_look(self, loader: DataLoader[object]) -> bool:
        """Whether the script may only inspect a first batch, as of a loader that evaluates.

        A new loader does not count in a line in which another one has trained.
        """
        is_new = loader not in self._training and not self._training.is_training_line
        return is_new and (bool(self._training) or loader in self._evaluated)

    def _stream(self, loader: DataLoader[object]) -> dict[str, object]:
        """Divide a stream if the ranks' first items agree. If they once differ, the stream stays
        whole in all later passes, because first items of replay buffers may agree by chance.
        """
        refuse_stream(self._session, loader.dataset)
        digest, begun = begin(loader)
        differ = len(set(self._session.all_gather_object(digest))) > 1
        before = self._streams.get(loader)
        if differ and before is False and self._session.is_main:
            warn(ITSELF.format(type(loader.dataset).__name__))
        self._streams[loader] = differ or before is True
        if self._streams[loader]:
            self._decisions[loader] = Decision(
                False, "not divided, its dataset divides itself (the ranks' first items differ)"
            )
            return left_whole(begun)
        world, random = self._session.world, self._session.random
        return divided_stream(loader, world.data, self._batches_per_step, begun, random)

    @hookimpl
    def loader_bypassed(self, loader: DataLoader[object]) -> None:
        if self._session.captures(loader) and self._decide(loader).divide:
            raise Unsupported(BYPASSED.format(type(loader).__name__))

    @hookimpl
    def loader_opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        decision, origin = self._decisions.get(loader), iterator.origin
        if decision is not None and decision.divide and not decision.evaluation:
            self._between.opened(loader, iterator)
        self._session.random.use(
            "evaluation" if decision is not None and decision.evaluation else "own"
        )
        if decision is None:
            return
        self._passes[loader] = origin
        divided = divided_order(iterator.order)
        drop_skipped(divided, iterator)
        origin.ragged = divided is not None and divided.is_ragged
        if decision.evaluation:
            self._evaluated.add(loader)
            origin.evaluates, origin.alike = decision.why, not decision.divide

    @hookimpl
    def loader_length(self, loader: DataLoader[object]) -> int | None:
        if not self._session.captures(loader) or not self._decision_for_length(loader).divide:
            return None
        try:
            return length_of(loader, self._session.world.data.parts, self._batches_per_step)
        except TypeError:  # a stream without a length: torch raises its own error
            return None

    def _decision_for_length(self, loader: DataLoader[object]) -> Decision:
        """Return the decision for the latest pass.

        Between two passes of a loader that trains, the models' mode decides instead.
        """
        known, latest = self._decisions.get(loader), self._passes.get(loader)
        if known is None:
            return self._decide(loader)
        if (
            loader in self._training
            and (known.divide or known.evaluation)
            and (latest is None or latest.is_over)
        ):
            return decide(loader, self._models.now(), False, self._shard_eval)
        return known

    @hookimpl
    def batch_ready(
        self,
        loader: DataLoader[object],
        batch: object,
        order: LoaderPass | None,
        iterator: LoaderIterator,
    ) -> object:
        if loader not in self._decisions:
            return None
        divided = divided_order(order)
        share, instead = unpack(batch, divided)
        if self._ledger is not None:
            self._ledger.take(loader, iterator.num_yielded - 1, share)
        if not iterator.origin.evaluates:
            self._between.takes(iterator.origin)
            self._session.random.use("own")
            iterator.origin.share = share
            begun = divided is not None and divided.began_whole
            if self._decisions[loader].divide and iterator.num_yielded == 1 + begun:
                self._parts.add(loader)
                self._training.take(loader, share)
            if iterator.num_yielded == ALONE and self._only_evaluates(loader, iterator.origin):
                self._training.say_unfed(type(loader.dataset))
        return instead

    def _only_evaluates(self, loader: DataLoader[object], origin: Origin) -> bool:
        """Whether a pass that began with gradients on continues without them, as where
        ``iter(loader)`` is called far from ``next``.
        """
        divides = self._decisions[loader].divide and loader not in self._training
        return bool(divides and without_gradients() and not origin.used)

    @hookimpl
    def batches_skipped(
        self, loader: DataLoader[object], order: LoaderPass | None, count: int
    ) -> None:
        decision, divided = self._decisions.get(loader), divided_order(order)
        if not count:
            self._training.begins(loader)
            self._training.add(loader)
        elif decision is not None and decision.divide and not decision.evaluation:
            self._training.add(loader)  # it fed a backward in an earlier run
            self._between.takes(self._passes[loader])
        if divided is not None:
            divided.forget(count)

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        self._between.backward()
        self._training.backward(call)

    @hookimpl
    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        self._training.step(optimizer)

    @hookimpl
    def loader_end(self, loader: DataLoader[object], order: LoaderPass | None) -> None:
        latest, decision = self._passes.get(loader), self._decisions.get(loader)
        if latest is not None:
            self._between.ends(latest)
        if (
            latest is None
            or decision is None
            or not decision.divide
            or latest.evaluates
            or latest.used
            or latest.share is None  # the pass had no batches
        ):
            return
        if self._session.batches.waiting(latest):
            self._training.wait_for(type(loader.dataset), latest)
        elif not self._session.batches.may_have_been_used(loader):
            self._training.say_unfed(type(loader.dataset))

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            for loader in self._parts:
                if loader not in self._training and not self._session.batches.may_have_been_used(
                    loader
                ):
                    self._training.say_unfed(type(loader.dataset))
            self._training.say_waited_for()
        elif isinstance(error, RuntimeError | ValueError):
            self._training.explain(error)

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, DataLoader):
            return None
        decision = (
            Decision(True, "divided") if thing in self._training else self._decisions.get(thing)
        )
        if decision is None:
            return (
                "not iterated yet" if self._session.captures(thing) else "left alone: not adopted"
            )
        if not decision.divide or decision.evaluation:
            return decision.why
        return in_phrases(self._session, self._global, thing.batch_size)

    def _decide(self, loader: DataLoader[object]) -> Decision:
        if self._contents.are_local(loader):
            return Decision(False, LOCAL_DATA)
        trains_here = self._training.trains_here(loader)
        return decide(loader, self._models.now(), trains_here, self._shard_eval)


FURTHER = 2  # backwards after the end of a pass: one may belong to a batch that was read ahead


class BetweenPasses:
    """Follows where divided passes begin and end, also by ``break``.

    A pass that begins and ends inside another training pass does not count. Passes in a background
    thread don't count either, because they end at a different place of the loop on each rank.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._events = count(1)
        # numbers of the events at which each unfinished pass was opened, and yielded its last batch
        self._opened: dict[Origin, int] = {}
        self._latest: dict[Origin, int] = {}
        self._iterators: dict[Origin, weakref.ref[object]] = {}
        self._further = 0

    def begins(self) -> None:
        """Record that a divided pass begins. All ranks call it."""
        if _in_main_thread():
            self._session.random.pass_begins()

    def opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        """Record that a pass has its iterator."""
        if _in_main_thread():
            self._opened[iterator.origin] = next(self._events)
            part, parts = self._session.world.data
            if parts > 1:
                found = script_generators.of_pass(loader, self._session.frame)
                self._session.random.draw_apart(found, part)

    def takes(self, origin: Origin) -> None:
        """Record that the loop gets a batch of a divided pass, or got some in an earlier run.

        Python calls the callback of the latest weak reference first. So this one is made last: when
        other callbacks run, the random streams are already those for after the pass.
        """
        iterator = None if origin.iterator is None else origin.iterator()
        if origin in self._opened and iterator is not None:
            if origin not in self._latest:
                self._iterators[origin] = weakref.ref(iterator, lambda _: self.ends(origin))
            self._latest[origin] = next(self._events)
            self._session.random.goes_on()

    def ends(self, origin: Origin) -> None:
        """Record that a pass is over, or that the loop has dropped its iterator."""
        began, elapsed = self._opened.pop(origin, None), self._latest.pop(origin, None)
        self._iterators.pop(origin, None)
        if began is None or elapsed is None or not self._session.is_inside:
            return
        if not any(one.used and latest < began for one, latest in self._latest.items()):
            self._session.random.pass_ends()
            self._further = 0

    def backward(self) -> None:
        """Record a call of ``backward``, maybe on batches that the loop stores or makes itself."""
        self._further += 1
        if self._further == FURTHER:
            self._session.random.goes_on()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class SeedWorker:
    """A ``worker_init_fn`` that seeds by rank, and then calls the user's.

    All ranks draw the same base seed for the workers, so the stream from which the order of the
    data is drawn stays equal on all ranks.
    """

    def __init__(self, rank: int, user: Callable[[int], None] | None) -> None:
        self._rank = rank
        self._user = user

    def __call__(self, worker_id: int) -> None:
        if self._rank:
            random_streams.seed(torch.initial_seed() + STRIDE * self._rank)
            script_generators.seed_in_worker(STRIDE * self._rank)
        if self._user is not None:
            self._user(worker_id)


def seeds_of_workers(loader: DataLoader[object], rank: int) -> dict[str, object]:
    """Return a new ``worker_init_fn`` that seeds the loader's workers by rank; {} without any."""
    if not loader.num_workers:
        return {}
    return {"worker_init_fn": SeedWorker(rank, loader.worker_init_fn)}
