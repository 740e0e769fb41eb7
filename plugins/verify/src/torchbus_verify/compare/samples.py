"""Compares the samples that the ranks used with those of the plain run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchbus_verify.record.writing import RankRecord

Batch = tuple[int, int, int]
"""The numbers of a loader, of a pass over it, and of a batch in the pass."""


@dataclass(frozen=True)
class SampleComparison:
    """The result of comparing samples.

    ``problems`` describe lost, repeated or reordered samples. ``twice`` are the datasets of which
    every rank trained on all samples, ``parts`` those of which each rank evaluated a part, and
    ``divided`` those whose training batches were divided.
    """

    problems: tuple[str, ...]
    twice: tuple[str, ...]
    parts: tuple[str, ...]
    divided: tuple[str, ...]


def compare(
    ranks: list[RankRecord], plain: RankRecord, whole: Sequence[str] = ()
) -> SampleComparison:
    """Check that each batch of the plain run is divided over the ranks in order, or seen by all.

    ``whole`` names data sets that are known to be evaluated, although gradients are on.
    """
    theirs, ours = _batches(plain), [_batches(record) for record in ranks]
    evaluated = {key[:2] for key, event in theirs.items() if event["dataset"] in whole}
    trained = _trained(plain) - evaluated
    _drop_seen_whole(theirs, ours, trained)
    had: list[set[Any]] = [set() for _ in ranks]
    problems: list[str] = []
    found: dict[str, list[str]] = {"twice": [], "parts": [], "divided": []}
    for key, event in theirs.items():
        shares = [batches[key]["samples"] if key in batches else [] for batches in ours]
        how = _how(shares, event["samples"], had)
        if how == "wrong":
            problems.append(_problem(key, event, shares))
        elif how == "divided":
            found["divided" if key[:2] in trained else "parts"].append(event["dataset"])
        elif key[:2] in trained and len(ranks) > 1 and len(event["samples"]) > 1:
            found["twice"].append(event["dataset"])
        for one, share in zip(had, shares, strict=True):
            one.update(share)
    extra = _extra(ours, theirs)
    lists = {name: tuple(dict.fromkeys(values)) for name, values in found.items()}
    twice = tuple(name for name in lists["twice"] if name not in lists["divided"])
    return SampleComparison((*problems, *extra), twice, lists["parts"], lists["divided"])


def _batches(record: RankRecord) -> dict[Batch, dict[str, Any]]:
    return {(one["loader"], one["of_pass"], one["batch"]): one for one in record.of("batch")}


def _drop_seen_whole(
    theirs: dict[Batch, Any], ours: list[dict[Batch, Any]], trained: set[tuple[int, int]]
) -> None:
    """Remove evaluation passes of which every rank saw all samples, in batches of any size."""
    for one in {key[:2] for key in theirs} - trained:
        wanted, *seen = [
            [
                sample
                for key, event in batches.items()
                if key[:2] == one
                for sample in event["samples"]
            ]
            for batches in (theirs, *ours)
        ]
        if all(samples == wanted for samples in seen):
            for batches in (theirs, *ours):
                for key in [key for key in batches if key[:2] == one]:
                    del batches[key]


def _trained(record: RankRecord) -> set[tuple[int, int]]:
    """Return the loaders and passes that train: each batch, or all but one, feeds a backward.

    A loader's single batch that is read before the same backward as another loader's batch does
    not count: the loop only inspects it."""
    used: Counter[tuple[int, int]] = Counter()
    consumed: Counter[tuple[int, int]] = Counter()
    waiting: set[tuple[int, int]] = set()
    beside: set[tuple[int, int]] = set()
    for event in record.events:
        if event["kind"] == "batch" and event["trains"]:
            key = (event["loader"], event["of_pass"])
            consumed[key] += 1
            waiting.add(key)
        elif event["kind"] == "backward":
            used.update(waiting)
            beside |= waiting if len(waiting) > 1 else set()
            waiting.clear()
    looks = {key for key, count in consumed.items() if count == 1 and key in beside}
    trained = {key for key, count in consumed.items() if used[key] >= max(1, count - 1)} - looks
    return trained | {
        key for key, count in consumed.items() if 1 < count <= _after(record, key) + 1
    }


def _after(record: RankRecord, key: tuple[int, int]) -> int:
    """Return the number of backwards from the first batch of a pass to the next pass.

    Batches may be prefetched.
    """
    places: dict[tuple[int, int], list[int]] = {}
    for place, event in enumerate(record.events):
        if event["kind"] == "batch":
            places.setdefault((event["loader"], event["of_pass"]), []).append(place)
    first, last = places[key][0], places[key][-1]
    following = [one[0] for one in places.values() if one[0] > last]
    part = record.events[first : min(following, default=None)]
    return sum(event["kind"] == "backward" for event in part)


def _how(shares: list[list[Any]], batch: list[Any], had: list[set[Any]]) -> str:
    """Return how a batch was shared: "whole" on all ranks, "divided" in order, or "wrong".

    A rank without samples may repeat earlier ones.
    """
    if all(share == batch for share in shares):
        return "whole"
    remaining = batch
    for share, earlier in zip(shares, had, strict=True):
        if remaining and remaining[: len(share)] == share:
            remaining = remaining[len(share) :]
        elif remaining or not earlier.issuperset(share):
            return "wrong"
    return "wrong" if remaining else "divided"


def _problem(key: Batch, event: dict[str, Any], shares: list[list[Any]]) -> str:
    wanted, got = event["samples"], [one for share in shares for one in share]
    lost = [one for one in wanted if one not in got]
    twice = sorted({one for one in got if got.count(one) > wanted.count(one)}, key=str)
    facts = [f"unused: {some(lost, 5)}"] * bool(lost) + [
        f"used more than once, or from elsewhere: {some(twice, 5)}"
    ] * bool(twice)
    place = f"{event['dataset']}, pass {key[1] + 1}, batch {key[2] + 1}"
    return f"{place}: {'; '.join(facts) or 'the same samples in another order'}"


def _extra(ours: list[dict[Batch, Any]], theirs: dict[Batch, Any]) -> Iterator[str]:
    for rank, batches in enumerate(ours):
        more = [key for key in batches if key not in theirs]
        if more:
            event = batches[more[0]]
            yield (
                f"{event['dataset']}: rank {rank} took {len(more)} batches that the plain run did"
                " not take"
            )


def some(values: list[Any], most: int = 3) -> str:
    """List the first values, and how many more there are."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more
