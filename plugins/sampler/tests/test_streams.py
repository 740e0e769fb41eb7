"""Iterable datasets that shuffle with the process's random numbers, or by an epoch of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "shuffled_streams.py"


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (0, ["noise"]),
        (1, ["noise"]),
        pytest.param(0, [], marks=pytest.mark.slow),
        pytest.param(2, [], marks=pytest.mark.slow),
        pytest.param(1, ["persistent"], marks=pytest.mark.slow),
    ],
)
def test_the_ranks_see_each_sample_once_in_the_order_of_one_process(workers, words):
    """``noise``: each rank draws numbers of its own while it trains."""
    result = fork_script(SCRIPT, workers, *words).ok()
    assert result.stdout.count("right") == 8 and "wrong" not in result.stdout, result.stdout


BUFFER = """
    import warnings
    import torch
    from torch.utils.data import DataLoader, IterableDataset
    from torchbus import session

    class Buffer(IterableDataset):
        first = 0
        def __iter__(self):
            yield torch.full((1,), float(self.first))
            yield from torch.arange(3.0).view(3, 1)

    def passes(s, alike):
        buffer, weight = Buffer(), s.adopt(torch.nn.Parameter(torch.zeros(1)))
        loader = DataLoader(buffer, batch_size=2)
        for same in alike:
            buffer.first, count = (0 if same else s.rank), 0
            for batch in loader:
                (weight * batch).mean().backward()
                count += 1
            yield count

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(devices=2, launch="fork") as s:
            print(*passes(s, [False, True, False]))
            print(*passes(s, [True, False, True]))
    print(len([one for one in caught if "different first items from Buffer" in str(one.message)]))
"""


def test_a_stream_of_each_ranks_own_stays_whole_when_first_items_agree_by_chance() -> None:
    assert fork_script(BUFFER).ok().stdout.splitlines() == ["2 2 2", "1 2 2", "1"]
