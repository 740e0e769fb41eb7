"""Verbs for scripts in which ranks do different things: one goes first, or each has its share."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torchbus.plugin import Context, UsageError, an, expect, hookimpl

from torchbus_strategy import splitting
from torchbus_strategy.collectives import broadcast_object, sealed, unsealed
from torchbus_strategy.main_first import Turns

Result = TypeVar("Result")


class RankVerbs:
    """``s.main_first``, ``s.once``, ``s.on_main``, and shares for inference."""

    verbs = ("main_first", "once", "on_main", "split_between_processes", "gather_in_order")
    hears_trials = False

    _session: Context
    _turns: Turns | None = None
    _split: splitting.Split | None = None

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._results: dict[str, Any] = {}

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        if session.world_size > 1:
            assert session.job is not None
            self._turns = Turns(session, session.job)

    def main_first(self, local: bool = False) -> AbstractContextManager[None]:
        """Let rank 0 run the block first. The other ranks run it when rank 0 has finished.

        Use it for what one rank downloads or prepares, and the others then find:
        ``with s.main_first():``. With ``local=True`` the first rank of each node goes first, for
        files on a disk of the node. An error of the first rank is raised on all ranks. All ranks
        must enter the block. Raises UsageError for a function, which ``s.once`` calls.
        """
        expect("local", local, bool, "True or False; 'with s.main_first():' is a block of lines")
        return self._first_in_block(local)

    @contextmanager
    def _first_in_block(self, local: bool) -> Iterator[None]:
        world = self._session.world
        is_first = world.local_rank == 0 if local else world.is_main
        name = f"first of node {world.node_rank}" if local else "first"
        with self._first(name, "s.main_first", is_first):
            if not is_first:
                self._wait_for_all()
            yield
        if is_first:
            self._wait_for_all()

    def _wait_for_all(self) -> None:
        """Reach a place after all changes of files in the first ranks' blocks.

        So the other ranks see the changes. Otherwise they would see what rank 0 saw at their place.
        """
        if self._session.job is not None:
            self._session.job.wait_in("s.main_first")
            self._session.barrier()
            self._session.job.go_on()

    def once(self, key: str, function: Callable[[], Result]) -> Result:
        """Return on all ranks what ``function`` returns on rank 0, which alone calls it.

        Later calls with the same ``key`` return the same result and call nothing. The other ranks
        get a copy, by pickle. An error of the function is raised on all ranks, which must all call
        it.
        """
        expect("key", key, str, "a name for what the function makes")
        _expect_function("s.once('data', download)", function)
        if key not in self._results:
            self._results[key] = self._made(key, function)
        made: Result = self._results[key]
        return made

    def on_main(self, function: Callable[..., Result]) -> Callable[..., Result | None]:
        """Let only rank 0 run a function: a decorator, or ``s.on_main(upload)(path)``.

        On other ranks the function returns None at once. It must not call what all ranks have to
        call, such as ``s.reduce`` or ``backward``.
        """

        _expect_function("s.on_main(upload)(path)", function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Result | None:
            return function(*args, **kwargs) if self._session.world.is_main else None

        return call

    @contextmanager
    def split_between_processes(self, items: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give this rank a consecutive part of some items, for inference.

        Write ``with s.split_between_processes(prompts) as mine:``. ``items`` is a list, a tuple, a
        range, a tensor or an array, a map-style data set, or a dict of these with the same length.
        If they can't be divided evenly, the first ranks get one more. With ``apply_padding``, the
        other ranks repeat the last item, so that all have the same number. ``s.gather_in_order``
        puts the results together, without padding. No rank sends anything. Raises UsageError for
        other items.

        Source: ``split_between_processes`` of Accelerate.
        """
        place = self._session.world.data
        self._split = splitting.Split(splitting.length(items), place, apply_padding)
        yield items if place.parts == 1 else splitting.take(items, self._split.rows)

    def gather_in_order(self, results: Any) -> Any:
        """Return, on all ranks, the results of all items in the items' order.

        ``results`` is a list with one result for each item that this rank got from the last
        ``s.split_between_processes``, or a tensor with a row for each. Results of padding are left
        out. Results in a list are pickled. Under options that shorten passes, such as
        ``fast_dev_run``, each rank may have the results of its first items only. All ranks call it.
        Raises UsageError, on all ranks, if the ranks have split different items, or a rank has
        another number of results.
        """
        split = self._split
        if split is None:
            raise UsageError(
                "s.gather_in_order: nothing has been split: it puts together what ranks made of"
                " `with s.split_between_processes(items) as mine`"
            )
        world = self._session.world
        is_part = len(results) < len(split.rows) and self._is_limited
        rows = len(results) if is_part else len(split.rows)
        mine = Reported(split.total, rows, len(results), world.member)
        reported = self._session.all_gather_object(mine)
        refuse_other_counts(reported)
        own = results[: split.own]
        if isinstance(own, torch.Tensor):
            return torch.cat(_of_first_members(self._session.all_gather(own), reported))
        parts = _of_first_members(self._session.all_gather_object(list(own)), reported)
        return [one for part in parts for one in part]

    @property
    def _is_limited(self) -> bool:
        """Whether a plugin may end passes over loaders early."""
        plugins = [plugin for _, plugin in self._session.bus.plugins()]
        return any(getattr(plugin, "shortens_passes", False) for plugin in plugins)

    def _made(self, key: str, function: Callable[[], Result]) -> Result:
        what, job, is_main = f"s.once({key!r}, ...)", self._session.job, self._session.world.is_main
        message = b""
        with self._first(f"once/{key}", what, is_main):
            if is_main:
                result = function()
                message = b"" if job is None else _sealed(key, result)
        if job is not None:
            job.wait_in(what)
            message = broadcast_object(message)
            job.go_on()
        return result if is_main else cast("Result", unsealed(message, "rank 0"))

    @contextmanager
    def _first(self, name: str, what: str, is_first: bool) -> Iterator[None]:
        """Let one rank go first. A name may be used again, as by a script that retries."""
        self._times[name] += 1
        if self._turns is None:
            yield
            return
        with self._turns.after(f"{name}/{self._times[name]}", what, is_first):
            yield


class Reported(NamedTuple):
    """How many items there are, how many of them a rank has, and how many results.

    ``member`` is the rank's number among the ranks with the same items.
    """

    total: int
    rows: int
    results: int
    member: int


def refuse_other_counts(reported: list[Reported]) -> None:
    """Raise UsageError, on all ranks, if results can't be assigned to items."""
    totals = [one.total for one in reported]
    if len(set(totals)) > 1:
        raise UsageError(
            f"s.gather_in_order: the ranks have split {totals} items: split the same on all ranks"
        )
    for rank, one in enumerate(reported):
        if one.results != one.rows:
            raise UsageError(
                f"s.gather_in_order: rank {rank} has {one.results} results for its {one.rows}"
                " items: pass a list or a tensor with one result for each item"
            )


def _expect_function(example: str, function: object) -> None:
    if not callable(function):
        found = an(type(function).__name__)
        raise UsageError(f"{found} is not a function: pass one, as in {example}")


def _of_first_members(parts: list[Any], reported: list[Reported]) -> list[Any]:
    return [part for part, one in zip(parts, reported, strict=True) if one.member == 0]


def _sealed(key: str, result: object) -> bytes:
    try:
        return sealed(result)
    except Exception as error:
        raise UsageError(
            f"s.once({key!r}, ...): {an(type(result).__name__)} can't be sent to the other ranks,"
            f" because pickle refuses it: {error}. Return tensors or plain values instead"
        ) from error
