"""Continue the passes that were open when the checkpoint was written."""

from __future__ import annotations

from torchbus.plugin import LoaderIterator, UsageError, warn

from torchbus_checkpoint.loop.loaders.known import signature
from torchbus_checkpoint.loop.loaders.passes import OpenPass
from torchbus_checkpoint.loop.position import Position
from torchbus_checkpoint.replay.numbering import Numbering
from torchbus_checkpoint.replay.target import Key
from torchbus_checkpoint.state.plain import State


def continue_passes(
    position: Position,
    saved_open: dict[Key, State],
    heads: dict[str, int],
    scale: float,
    numbering: Numbering,
) -> None:
    """Skip the batches that each pass had given. Warn about a pass that is not open now."""
    for one in position.open:
        saved = saved_open.pop((one.section, one.ordinal), None)
        if saved is not None and one.alive is not None:
            count = int(saved["taken"] * scale)
            _skip(position, one, one.alive, saved, count)
            numbering.taken = count
            position.expected_after = count + 1
            position.expected = {
                key: last + 1 for key, last in heads.items() if count and last in (count - 1, count)
            }
    for saved in saved_open.values():
        warn(
            f"a pass over a loader that had given {saved['taken']} batches is not open where this"
            " run resumes: it starts again from its first batch"
        )


def _skip(
    position: Position, one: OpenPass, iterator: LoaderIterator, saved: State, count: int
) -> None:
    one.started, one.wanted = saved["started"], saved["wanted"]
    if saved["wanted"] is not None and not iterator.taken:
        position.random.put(saved["wanted"], iterator.loader)
    try:
        iterator.skip(max(0, count - iterator.taken))
    except StopIteration:
        raise UsageError(
            f"the interrupted pass had given {count} batches, and the loader of"
            f" {signature(iterator.loader)} has only {iterator.taken} now: the data has changed;"
            " start again with resume='never'"
        ) from None
