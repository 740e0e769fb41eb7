"""Checksums of orders: over blocks, by which ranks see that they have the same order."""

from __future__ import annotations

import pytest
import torch

from torchbus_sampler.orders.shared import BLOCK, checksum_of, local_array


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_blocks(length: int) -> None:
    """A block's checksum is of everything up to its end, and of nothing behind it."""
    order = torch.randperm(length)
    base = local_array(length, lambda out: out.copy_(order))
    assert base.indices(0, length) == order.tolist()
    for place in {0, 1, BLOCK - 2, BLOCK - 1, BLOCK, length - 1} & set(range(length)):
        other = order.clone()
        other[place] += 1
        changed = local_array(length, lambda out, other=other: out.copy_(other))
        for stop in {1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, length} & set(range(1, length + 1)):
            same = base.checksum(stop) == changed.checksum(stop)
            assert same == (place >= -(-stop // BLOCK) * BLOCK)


def test_checksums_do_not_depend_on_what_holds_the_numbers() -> None:
    numbers = list(range(0, 3 * BLOCK, 3))
    assert (
        checksum_of(numbers)
        == checksum_of(tuple(numbers))
        == checksum_of(torch.tensor(numbers))
        != checksum_of(numbers[:-1])
    )
    assert checksum_of(["a", "b"]) != checksum_of(["b", "a"])
