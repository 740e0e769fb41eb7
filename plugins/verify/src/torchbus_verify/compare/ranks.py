"""The ranks of one run among themselves: bit for bit, for what was reduced is the same
everywhere.
"""

from __future__ import annotations

from torchbus_verify.record.reading import Event, Record


def different(ranks: list[Record]) -> str:
    """Where a rank first has other parameters than rank 0, in words; "" if nowhere."""
    for rank, record in enumerate(ranks[1:], start=1):
        for ours, first in zip(record.of("step"), ranks[0].of("step"), strict=False):
            for key in ("parameters", "buffers"):
                name = _first(ours[key], first[key])
                if name:
                    return (
                        f"from step {first['step'] + 1} on rank {rank} has another {name} than"
                        " rank 0"
                    )
    return ""


def own_rows(ranks: list[Record], plain: Record) -> set[str]:
    """Parameters that have a row for each sample, of which each rank holds its own."""
    theirs = {name: one for step in plain.of("step") for name, one in step["parameters"].items()}
    held = [
        {name: one for step in record.of("step") for name, one in step["parameters"].items()}
        for record in ranks
    ]
    shapes = {name: [one[name][1] for one in held if one.get(name)] for name in theirs}
    wanted = {name: one[1] for name, one in theirs.items() if one}
    return {name for name, whole in wanted.items() if _are_rows(shapes[name], whole, len(ranks))}


def elsewhere(ranks: list[Record]) -> set[str]:
    """Parameters that other ranks' optimizers hold and rank 0's does not: their states
    are sharded.
    """
    held = [
        {name for step in record.of("step") for name, one in step["parameters"].items() if one}
        for record in ranks
    ]
    return set().union(*held[1:]) - held[0] if held else set()


def hide_gradients(ranks: list[Record]) -> bool:
    """Whether no step has one where the loop could see it: an engine keeps them."""
    steps = [step for record in ranks for step in record.of("step")]
    return bool(steps) and not any(one for step in steps for one in step["gradients"].values())


def unseen(ranks: list[Record]) -> list[str]:
    """Of these, the ones whose values rank 0 has not even at the end: layers of a pipeline."""
    ends = ranks[0].of("state")[-1:] if ranks else []
    known = {name for end in ends for name, one in end["tensors"].items() if one}
    return sorted(elsewhere(ranks) - known)


def replicas(ranks: list[Record]) -> bool:
    """Whether every rank computed the same losses before they were reduced, one after another."""
    losses = [[event["own"] for event in record.of("backward")] for record in ranks]
    return (
        len(ranks) > 1
        and len(losses[0]) > 1
        and None not in losses[0]
        and all(one == losses[0] for one in losses)
    )


def _first(ours: Event, theirs: Event) -> str:
    for name, one in theirs.items():
        other = ours.get(name)
        if one and other and one[1] == other[1] and one[3] != other[3]:
            return name
    return ""


def _are_rows(shapes: list[list[int]], whole: list[int], ranks: int) -> bool:
    """Whether the ranks' shapes make up the whole one, row by row."""
    if len(shapes) != ranks or not whole or not all(shapes) or whole in shapes:
        return False
    return sum(shape[0] for shape in shapes) == whole[0]
