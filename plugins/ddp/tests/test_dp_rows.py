"""Which rows each rank computes."""

from __future__ import annotations

from hypothesis import given, strategies

from torchbus_ddp.dp.rows import Rows, share_rows


@given(total=strategies.integers(1, 200), size=strategies.integers(1, 9))
def test_every_row_is_computed_once(total, size):
    shares = [share_rows(total, size, rank) for rank in range(size)]
    own = [
        row
        for rows in shares
        if rows.local
        for row in range(rows.start, rows.start + rows.computed)
    ]
    assert own == list(range(total))
    samples = shares[0].samples
    assert {rows.samples for rows in shares} == {samples} and max(samples) == samples[0]
    assert all(count == 0 or count >= min(2, total) for count in samples)
    assert all(isinstance(rows, Rows) and 1 <= rows.computed <= total for rows in shares)
