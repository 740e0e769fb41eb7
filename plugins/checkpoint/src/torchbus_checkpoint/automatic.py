"""Automatic checkpoints: at intervals, on request, and at the end."""

from __future__ import annotations

import os
from pathlib import Path

from torchbus.plugin import Context, LoaderIterator, warn

from torchbus_checkpoint.disk import choice
from torchbus_checkpoint.exchange import agree
from torchbus_checkpoint.loop.contents import ObjectFinder
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.loop.steps import LoopSteps
from torchbus_checkpoint.options import CheckpointOptions
from torchbus_checkpoint.remote import fetch
from torchbus_checkpoint.remote.mirror import RemoteMirror
from torchbus_checkpoint.remote.store import shown
from torchbus_checkpoint.requests import Requests, When
from torchbus_checkpoint.state.snapshot import LoopSnapshot
from torchbus_rank0.printing import say

LEFT = (
    "max_steps or max_time ended the loop, and then the loop left its pass by `break`, or made more"
    " steps. No run can resume from the last checkpoint, which has only the weights. Remove the"
    " `break`, since the pass ends without it; in a loop without a loader, end with an epoch"
)

LOST = (
    "no checkpoint has the weights of a value of {!r}, so the value does not count: the loop logged"
    " it in the middle of a step, before optimizer.step(). Log it at the end of a batch or an"
    " epoch, or let every_n_steps=... write a checkpoint before each evaluation"
)
LOST_IN_WINDOW = (
    "no checkpoint has the weights of a value of {!r}, so the value does not count: the loop logged"
    " it in an open window of accumulate_grad_batches={}. Log it after a multiple of"
    " accumulate_grad_batches batches, or at the end of an epoch"
)


class AutomaticSaves:
    """Writes the automatic checkpoints. ``mirror`` uploads them to a store if it is not None."""

    def __init__(
        self,
        session: Context,
        options: CheckpointOptions,
        when: When,
        requests: Requests,
        loop: tuple[ObjectFinder, LoopPosition, LoopSteps],
        snapshot: LoopSnapshot,
        mirror: RemoteMirror | None,
    ) -> None:
        assert options.folder is not None
        self._session = session
        self._options, self._folder = options, options.folder
        self._when = when
        self.requests = requests
        self._finder, self._position, self._steps = loop
        self._snapshot = snapshot
        self._mirror = mirror
        self._has_warned = self._looks_again = False

    def boundary(self, iterator: LoaderIterator | None) -> None:
        """Called between two steps, when the loop asks for a batch or ``s.epochs`` for an epoch."""
        requests = self.requests
        requests.look()
        cut = self._session.bus.hook.cut_short()
        ends = iterator is None and self._position.is_after_epochs and not cut
        is_new = self._steps.since_save or (ends and not self._snapshot.end_is_saved)
        if not is_new and not requests.leave:
            if self._steps.count and self._when.is_due(self._steps.count, self._steps.epochs):
                self._when.saved(self._steps.count, self._steps.epochs)  # these weights are saved
            return
        if iterator is not None and self._looks_again:
            self._looks_again = False
            self._position.can_be_found_again(iterator)
        self._finder.look_once()
        if self._position.was_left or cut == "earlier":
            return
        due = (
            ends
            or self._when.is_due(self._steps.count, self._steps.epochs)
            or requests.save
            or requests.leave
            or cut
            or (self._steps.judged and self._steps.owes_value)
            or (self._steps.judged and self._steps.evaluated and self._when.is_default)
        )
        if due and (iterator is None or self._position.can_be_found_again(iterator)):
            if iterator is not None and _is_used_up(iterator):
                self._session.bus.hook.last_batch_used(iterator=iterator)
            self._save(ends)
            # only later is it visible whether a counter of the loop counts batches or passes
            self._looks_again = iterator is not None and not iterator.num_yielded
            if requests.leave:
                self._leave(requests.leave)

    def at_end(self) -> None:
        """Save the ended loop, unless the last checkpoint already contains its end.

        A loop over ``s.epochs`` has saved its end, with the variables of its function. A loop that
        was cut short has no end to save. If it left its pass by ``break`` or made more steps, the
        last checkpoint can't record its position, and a warning says so.
        """
        is_cut = bool(self._session.bus.hook.cut_short())
        is_over = not (self._snapshot.end_is_saved or is_cut)
        is_new = self._steps.since_save or is_over
        if self._position.trains and is_new:
            self._snapshot.loop_was_left = is_cut
            self._save(ends=True)
            if is_cut and self._session.is_main:
                warn(LEFT)

    def load_best(self) -> None:
        """Load the weights of the best checkpoint into the models, if an option asks for it."""
        session, options = self._session, self._options
        if not options.load_best:
            return
        since = self._finder.since
        found = agree(
            session,
            "checkpoint/best",
            lambda: str(choice.best_after(self._folder, since, options.mode) or ""),
        )
        if found:
            chosen = fetch.to_this_host(session, options, Path(found))
            self._snapshot.put_weights(chosen)
            if session.is_main:
                value = choice.metric(Path(found))
                say(f"loads the best weights, of {chosen}: {options.monitor!r} was {value:g}")
        elif session.is_main:
            after = f" after step {since}, at which the newest model begins" if since else ""
            warn(
                f"load_best=True: no checkpoint in {self._folder} has a value of"
                f" {options.monitor!r}{after}, so the models keep their final weights. Log it:"
                f" s.log({options.monitor!r}, value)"
            )

    def explain_lines(self) -> list[str]:
        """Say where and when checkpoints are written, and whether signals can't be handled."""
        url, keep = self._options.url, self._options.keep
        then = "" if url is None else f", and sent to {shown(url)}"
        lines = [
            f"written to {self._folder}{then}, {self._when.describe()}; {keep or 'all'} are kept"
        ]
        if self._options.load_best:
            lines.append(f"at the end models get the weights with the best {self._options.monitor}")
        if not self.requests.hears_signals:
            lines.append(
                "SIGTERM and SIGUSR1 are not handled, because the session did not begin in the"
                " main thread: call s.save_and_leave() instead"
            )
        return lines

    def judge(self, value: float) -> None:
        """Called for each monitored value, which is the value of the present weights."""
        if self._steps.loaded:
            return
        self._snapshot.metric, self._steps.judged = value, True
        if not self._steps.since_save and self._steps.count:
            self._snapshot.write_value(self._place)
            self._steps.saved()

    @property
    def _place(self) -> Path:
        return self._folder / f"{choice.PREFIX}{self._steps.count:08d}"

    def _warn_of_lost_value(self) -> None:
        steps = self._steps
        if steps.lost_value and not (steps.judged or self._has_warned) and self._session.is_main:
            self._has_warned = True
            window = self._session.options.get("accumulate_grad_batches", 1)
            text = LOST if window == 1 else LOST_IN_WINDOW
            warn(text.format(self._options.monitor, window))

    def _save(self, ends: bool) -> None:
        if self._steps.loaded:  # the checkpoint of these weights has the position of its run
            return
        os.makedirs(self._folder, exist_ok=True)
        if self._mirror is not None:
            self._mirror.check()
        self._warn_of_lost_value()
        self._snapshot.loop_has_ended = ends
        self._snapshot.write(self._place)
        self._snapshot.end_is_saved = ends
        self._when.saved(self._steps.count, self._steps.epochs)
        self._steps.saved()
        self.requests.saved()

    def _leave(self, status: int) -> None:
        """Exit with a status after which schedulers start the job again."""
        self._snapshot.wait()
        if self._session.is_main:
            say(
                f"saved after step {self._steps.count} as asked, and leaving with exit"
                f" status {status}"
            )
        raise SystemExit(status)


def _is_used_up(iterator: LoaderIterator) -> bool:
    """Whether the loop has got the last batch, as far as the length is known."""
    varies = iterator.order is not None and iterator.order.has_more is not None
    try:
        return not varies and 0 < len(iterator) <= iterator.num_yielded
    except TypeError:  # a stream
        return False
