"""DataLoaders with an ``__iter__`` of their own: torchdata's is divided and goes on from its state,
others are divided or refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = (SCRIPTS / "loader_subclasses_head.py").read_text()

STATEFUL = SCRIPTS / "stateful_loader.py"
OTHERS = SCRIPTS / "loader_subclasses.py"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stateful_loader_is_divided_and_goes_on_from_its_state(workers: int) -> None:
    found = fork_script(STATEFUL, workers, timeout_s=110).json()
    order, weight = found["alone"]
    seen, weights = found["divided"]
    assert [one + other for one, other in zip(*seen, strict=True)] == order
    assert weights == pytest.approx([weight] * 2, abs=1e-15)
    assert (
        found["length"] == 7
        and found["whole"] == 53
        and found["global"] == pytest.approx(weight, abs=1e-15)
    )
    for name in ("gone on", "asked before"):
        for every in (1, 3):
            first, rest = found[f"{name} {every}"]
            assert [one + other for one, other in zip(*first, strict=True)] + [
                one + other for one, other in zip(*rest, strict=True)
            ] == order
    if not workers:
        assert [
            one + other for one, other in zip(*found["from one process"], strict=True)
        ] == order[2:]


def test_a_stateful_loader_of_a_stream() -> None:
    found = fork_script(
        HEAD
        + """
from torchdata.stateful_dataloader import StatefulDataLoader

class Stream(IterableDataset):
    def __iter__(self): return iter([(torch.tensor(float(i)),) for i in range(21)])

found["alone"] = train(StatefulDataLoader(Stream(), 8))
with ranks() as s:
    found["divided"] = [s.all_gather_object(one) for one in train(StatefulDataLoader(Stream(), 4))]
print(json.dumps(found))
"""
    ).json()
    assert [one + other for one, other in zip(*found["divided"][0], strict=True)] == found["alone"][
        0
    ]
    assert found["divided"][1] == pytest.approx([found["alone"][1]] * 2, abs=1e-15)


def test_other_subclasses() -> None:
    found = fork_script(OTHERS).json()
    every = [float(number) for number in range(53)]
    for name in ("Generates", "OfOthers", "Repeats"):
        assert sorted(found[name][0] + found[name][1]) == every, name
    for name in ("Bypasses", "ByItself", "later"):
        assert "defines its own __iter__" in found[name] and "super().__iter__()" in found[name], (
            found[name]
        )
    assert found["off"] == [every, every]
    assert found["evaluated"] == 14 and found["still"] == 7
    assert found["clean"] == [False, "__main__", 14]


def test_torch_is_as_it_was() -> None:
    class Made(DataLoader):
        pass

    assert "__init_subclass__" not in vars(DataLoader) and "__iter__" not in vars(Made)
