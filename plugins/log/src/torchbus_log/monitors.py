"""Monitored values, for early stopping and the best checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from torchbus.plugin import Context, UsageError, warn

from torchbus_log.exchange import Key, LoggedValue, NumberExchange, Pair, merged, numbers_of

PATIENT_EPOCHS = 10  # a loop may evaluate each few epochs


class Monitors:
    """Reduces each monitored value over ranks once, when it is complete.

    Monitors judge this number, and loggers write it. A value that is logged ``on_epoch`` can be
    monitored by its name, or by its name with ``_epoch``.
    """

    def __init__(self, session: Context, exchange: NumberExchange, names: Iterable[str]) -> None:
        self._session = session
        self._exchange = exchange
        self._names = frozenset(names)
        self._missing = set(self._names).difference(session.bus.hook.optional_name())
        self._logged: set[str] = set()
        self._automatic: set[str] = set()  # names that only ``autolog`` has logged so far
        self._bases: dict[str, str] = {}
        self._alone: dict[str, int] = {}
        self._evaluated: tuple[int | None, int] | None = None
        self._epoch: int | None = None
        self._num_ended = 0  # epochs of this process, as a run may resume in a later one
        self._has_warned = False

    def logs(self, name: str, on_epoch: bool = False) -> bool:
        """Called when the loop logs a name. Return whether the name is monitored."""
        self._logged.add(name)
        return bool(self._matching(name, on_epoch) or f"{name}_step" in self._names)

    def named(self, written: str, name: str) -> None:
        """Record that an epoch's value of ``name`` will be written as ``written``."""
        self._bases[written] = name

    def judged(
        self, records: Sequence[LoggedValue], *, divided: bool = False, automatic: bool = False
    ) -> list[LoggedValue]:
        """Reduce the monitored records, and fire ``monitored_value``. Return all records.

        All ranks must call this. With ``divided``, some ranks may lack some of the records. With
        ``automatic``, they are from ``autolog`` and not from the loop.
        """
        found = list(records)
        asked = {index: self._names_of(one) for index, one in enumerate(found)}
        asked = {index: names for index, names in asked.items() if names}
        if not asked and not divided:
            return found
        mine = numbers_of([found[index] for index in asked])
        if divided:
            values = self._gathered(found, asked, mine)
        else:
            keys = [
                Key(found[index].name, found[index].reduce, found[index].step) for index in asked
            ]
            reduced = self._exchange.reduced(found[next(iter(asked))].step, keys, mine)
            values = {
                name: value
                for names, value in zip(asked.values(), reduced, strict=True)
                for name in names
            }
        for index, names in asked.items():
            found[index] = found[index]._replace(
                parts=(values[names[0]],), scale=1.0, weight=1.0, reduce="sum", sync=False
            )
        for name, value in values.items():
            self._missing.discard(name)
            is_first = not automatic and name in self._automatic
            (self._automatic.add if automatic else self._automatic.discard)(name)
            self._session.bus.hook.monitored_value(name=name, value=value, is_first=is_first)
        return found

    def _gathered(
        self, found: Sequence[LoggedValue], asked: dict[int, list[str]], mine: Sequence[Pair]
    ) -> dict[str, float]:
        ours = [
            (names, found[index].reduce, pair)
            for (index, names), pair in zip(asked.items(), mine, strict=True)
        ]
        alike: dict[tuple[str, str], list[Pair]] = {}
        for theirs in self._session.all_gather_object(ours):
            for names, reduce, pair in theirs:
                for name in names:
                    alike.setdefault((name, reduce), []).append(pair)
        return {
            name: merged(reduce, [(total, weight) for total, weight in pairs])
            for (name, reduce), pairs in alike.items()
        }

    def _names_of(self, record: LoggedValue) -> list[str]:
        base = self._bases.get(record.name)
        return self._matching(record.name, False) if base is None else self._matching(base, True)

    def _matching(self, name: str, on_epoch: bool) -> list[str]:
        names = (name, f"{name}_epoch") if on_epoch else (name,)
        return [one for one in names if one in self._names]

    def refuse_second(self, name: str, step: int) -> None:
        """Raise UsageError for a second value ``on_epoch`` at one step outside of a pass."""
        if self._alone.get(name) == step:
            raise UsageError(
                f"s.log({name!r}, ..., on_epoch=True) came twice outside of a pass over a"
                " DataLoader: nothing shows which values belong together, and each would be"
                " judged separately. Log their mean once"
            )
        self._alone[name] = step

    # Names that are never logged -----------------------------------------------------------------

    @property
    def found(self) -> list[str]:
        """The monitored names that were logged, in this run or the run that it continues."""
        return sorted(self._names - self._missing)

    def resumed(self, found: Collection[str]) -> None:
        """Record the names that were logged in the run that this one continues."""
        self._missing.difference_update(found)

    def evaluation(self, epoch: int | None, steps: int) -> None:
        """Called when a pass over an evaluation's loader has ended."""
        if self._missing and steps and not self._session.bus.hook.skip_logging():
            self._evaluated = self._evaluated or (epoch, steps)

    def training(self, epoch: int | None, steps: int) -> None:
        """Called after a backward. Raises UsageError for names that should have been logged by now.

        Before the first evaluation, this is an error only if a name looks misspelt, and after some
        epochs a warning.
        """
        if not self._missing or self._session.bus.hook.skip_logging():
            return
        self._epoch = epoch if self._epoch is None else self._epoch
        if self._evaluated is not None:
            before, then = self._evaluated
            if epoch != before or (epoch is None and steps > then):
                raise UsageError(self._message("by the end of the first evaluation"))
        elif epoch != self._epoch:
            self._epoch, self._num_ended = epoch, self._num_ended + 1
            if self._num_ended == 1 and self._looks_misspelt():
                raise UsageError(self._message("by the end of the first epoch"))
            if self._num_ended == PATIENT_EPOCHS:
                self._say_once(f"in the first {PATIENT_EPOCHS} epochs")

    def _looks_misspelt(self) -> bool:
        return any(get_close_matches(name, self._logged, 1, 0.85) for name in self._missing)

    def end(self) -> None:
        """Warn of names that were never logged. A plugin may need its name, and raise an error."""
        if self._missing and not self._has_warned and self._logged:
            self._say_once("in this session: nothing was judged by it")

    def also_written(self, names: Collection[str]) -> None:
        """Record names that were written, by any plugin or the loop."""
        self._logged.update(names)

    def _say_once(self, when: str) -> None:
        self._has_warned = True
        warn(self._message(when))

    def _message(self, when: str) -> str:
        missing = [repr(name) for name in sorted(self._missing)]
        there = ", ".join(sorted(self._logged)) or "none"
        return (
            f"monitored, but not logged {when}: {', '.join(missing)}. Logged names: {there}."
            f" Monitor one of these, or call s.log({missing[0]}, ...) on all ranks"
        )
