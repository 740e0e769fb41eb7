"""How a global batch is shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchbus_sampler.order import share_out, share_sizes

ranks = st.integers(1, 9)


def test_examples():
    assert share_sizes(8, 2) == [4, 4]
    assert share_sizes(7, 3) == [3, 2, 2]
    assert share_sizes(5, 3) == [3, 2, 0]
    assert share_sizes(3, 2) == [3, 0]
    assert share_sizes(1, 3) == [1, 0, 0]
    assert share_sizes(0, 2) == [0, 0]
    assert share_sizes(2, 2, at_least=1) == [1, 1]


@given(num_samples=st.integers(0, 200), num_ranks=ranks, at_least=st.integers(1, 3))
def test_sizes(num_samples, num_ranks, at_least):
    sizes = share_sizes(num_samples, num_ranks, at_least)
    assert len(sizes) == num_ranks and sum(sizes) == num_samples
    assert sizes == sorted(sizes, reverse=True)  # rank 0 first
    given_any = [size for size in sizes if size]
    assert not given_any or max(given_any) - min(given_any) <= 1
    # as many as can be
    assert len(given_any) == min(num_ranks, max(num_samples // at_least, min(num_samples, 1)))
    assert all(size >= at_least for size in given_any) or num_samples < at_least


@given(
    batches=st.lists(st.lists(st.integers(), min_size=1, max_size=7), min_size=1, max_size=6),
    num_ranks=ranks,
    data=st.data(),
)
def test_shares_are_the_users_order_in_consecutive_pieces(batches, num_ranks, data):
    batch_size = data.draw(st.sampled_from([None, len(batches[0])]))
    shares = share_out(batches, num_ranks, batch_size)
    assert len(shares) == num_ranks
    assert [index for share in shares for index in share] == [
        index for batch in batches for index in batch
    ]


@given(num_ranks=ranks, batch_size=st.integers(1, 5))
def test_a_full_batch_for_each_rank_stays_as_it_is(num_ranks, batch_size):
    batches = [list(range(rank * batch_size, (rank + 1) * batch_size)) for rank in range(num_ranks)]
    assert share_out(batches, num_ranks, batch_size) == batches


@given(batches=st.lists(st.lists(st.integers(), min_size=1, max_size=7), min_size=1, max_size=6))
def test_batches_that_vary_in_size_as_they_please_stay_whole(batches):
    assert share_out(batches, len(batches), None) == batches
