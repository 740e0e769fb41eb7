"""What users read when ranks have waited long for others."""

from __future__ import annotations

from torchbus._launch.hang.questions import SLOTS
from torchbus._launch.watch.place import Place

RANK_CODE = (
    "Code that depends on the rank (`if s.rank == 0:`), or on its batch (a smaller one at the end"
    " of an epoch: drop_last=True), must not leave out what all ranks have to call"
)


def report(
    places: list[Place], world_size: int, waited_s: float, *, all_answer: bool = True
) -> str:
    """Say where each rank is, which ranks are missing, and what that usually means.

    ``all_answer``: False if only those answered that are elsewhere than the first.
    """
    if not all_answer:
        return _of_some(places, world_size, waited_s)
    silent = sorted(set(range(world_size)) - {place.rank for place in places})
    missing = [place for place in places if not place.waits_in]
    lines = [f"torchbus: ranks have waited {waited_s:.0f} s for others:"]
    lines += [f"  {place.words()}" for place in places]
    lines += [
        f"  rank {rank} does not answer: it is stopped, in native code that holds Python's lock, or"
        " its machine is cut off"
        for rank in silent
    ]
    who = ", ".join(str(rank) for rank in sorted([*silent, *(place.rank for place in missing)]))
    lines.append(
        f"  missing: rank {who}. {_cause(missing, silent)}"
        if who
        else f"  none is missing: {_without_cause(places)}"
    )
    return "\n".join(lines)


def _of_some(places: list[Place], world_size: int, waited_s: float) -> str:
    asked, *elsewhere = places
    lines = [f"torchbus: ranks have waited {waited_s:.0f} s for others:", f"  {asked.words()}"]
    lines += [f"  {place.words()}" for place in elsewhere]
    lines.append(
        f"  of {world_size} ranks, {len(elsewhere)} say that they are elsewhere than rank"
        f" {asked.rank}. The others are there, too, or do not answer; of more than {SLOTS} that are"
        " elsewhere, only the first are shown"
    )
    lines.append(f"  {_cause([place for place in elsewhere if not place.waits_in], [])}")
    return "\n".join(lines)


def _without_cause(places: list[Place]) -> str:
    if len({place.waits_in for place in places}) == 1:
        return (
            "all are in the same call, which takes long by itself (much to send, a slow network),"
            " or has lost one of its connections"
        )
    return f"they wait for each other. {RANK_CODE}"


def _cause(missing: list[Place], silent: list[int]) -> str:
    if silent:
        return "If a rank gives no sign of life for freeze_timeout, the job ends"
    if any("DataLoader" in place.note for place in missing):
        return "Its data does not arrive: check the workers of that loader, and what they read"
    if any("evaluation" in place.note for place in missing):
        return "It seems to evaluate by itself: the others wait until it is back"
    return f"It may only be slow; then all ranks go on by themselves. {RANK_CODE}"
