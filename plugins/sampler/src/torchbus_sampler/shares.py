"""Split a global batch over the ranks."""

from __future__ import annotations

from collections.abc import Sequence


def share_sizes(num_samples: int, num_ranks: int, at_least: int = 2) -> list[int]:
    """Return the sizes of the ranks' shares, rank 0 first.

    They are as even as possible. Each rank gets at least two samples where possible, because
    BatchNorm rejects a batch of one. If there are too few samples, the last ranks get none.

    >>> share_sizes(7, 3), share_sizes(5, 3), share_sizes(1, 2)
    ([3, 2, 2], [3, 2, 0], [1, 0])
    """
    sharers = min(num_ranks, max(1, num_samples // at_least)) if num_samples else 0
    if not sharers:
        return [0] * num_ranks
    size, rest = divmod(num_samples, sharers)
    return [size + (rank < rest) if rank < sharers else 0 for rank in range(num_ranks)]


def share_out(
    batches: Sequence[Sequence[object]], num_ranks: int, batch_size: int | None, at_least: int = 2
) -> list[list[object]]:
    """Return each rank's indices, from consecutive batches of the user's order.

    If there is a full batch for each rank, rank r gets batch r. Otherwise each rank gets a
    contiguous share, which is no larger than the script's batch. That happens at the ragged end,
    and with one batch for all ranks. If ``batch_size`` is None, the user's batches vary in size.
    """
    if len(batches) == num_ranks and all(
        batch_size is None or len(batch) == batch_size for batch in batches
    ):
        return [list(batch) for batch in batches]
    indices = [index for batch in batches for index in batch]
    sizes = share_sizes(len(indices), num_ranks, at_least)
    if batch_size is not None and max(sizes) > batch_size:
        sizes = share_sizes(len(indices), num_ranks, 1)
    shares, start = [], 0
    for size in sizes:
        shares.append(indices[start : start + size])
        start += size
    return shares


def one_each(batches: Sequence[Sequence[object]], num_ranks: int) -> list[list[object]]:
    """Give each rank one of the script's batches, as long as there are some.

    Returns [] if one of them has only one sample.

    >>> one_each([[0, 1, 2], [3, 4]], 3), one_each([[0, 1, 2], [3]], 3)
    ([[0, 1, 2], [3, 4], []], [])
    """
    if len(batches) > 1 and any(len(batch) < 2 for batch in batches):
        return []
    return [*map(list, batches), *([] for _ in range(num_ranks - len(batches)))]
