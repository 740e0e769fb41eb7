"""One index means one sample on all ranks, or the loop is stopped before it trains."""

from __future__ import annotations

import collections
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from torchbus_sampler.content.comparison import unlike
from torchbus_sampler.content.items import fields_of
from torchbus_sampler.content.probe import CanNotBeAsked, ask
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

Point = collections.namedtuple("Point", "x y")


class Holder:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    "one, other, where",
    [
        (torch.arange(4.0), torch.tensor([0.0, 1.0, 3.0, 2.0]), ""),
        (torch.zeros(2), torch.zeros(3), ""),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), ""),
        ((torch.ones(2), 3), (torch.ones(2), 4), "[1]"),
        (
            {"image": np.ones((2, 2)), "name": "a.png"},
            {"image": np.ones((2, 2)), "name": "b.png"},
            "['name']",
        ),
        (Point(1, [2, b"3"]), Point(1, [2, b"4"]), ".y[1]"),
        (
            collections.UserDict(ids=list(range(20))),
            collections.UserDict(ids=[*range(19), 0]),
            "['ids']",
        ),
        (Holder(np.float32(1)), Holder(np.float32(2)), ".value"),
        (None, 0, ""),
        (torch.tensor(1 + 2j), torch.tensor(2 + 1j), ""),
        (torch.eye(3).to_sparse(), torch.eye(3).flip(0).to_sparse(), ""),
        ({"a", "b"}, {"a", "c"}, ""),
        (True, False, ""),
        (float("nan"), 1.0, ""),
        (np.array(["a", "b"]), np.array(["a", "c"]), ""),
    ],
)
def test_what_differs_is_found_by_its_path(one, other, where):
    assert unlike([fields_of(one), fields_of(one)]) == []
    assert unlike([fields_of(one), fields_of(other)]) == [where]


def test_what_only_looks_different_is_alike():
    for make in (
        lambda: {"a", "b", "c"},
        object,
        lambda: Holder(object()),
        lambda: float("nan"),
        lambda: lambda: 0,
    ):
        assert unlike([fields_of(make()), fields_of(make())]) == []
    exact = torch.rand(1000, dtype=torch.float64)
    assert unlike([fields_of(exact), fields_of(exact * (1 + 1e-12))]) == []


class Counting(Dataset):
    """Counts what it was asked for, draws from generators of all kinds, and reads a file from where
    it stands.
    """

    def __init__(self, path):
        self.count = 0
        self.own = [
            random.Random(1),
            torch.Generator().manual_seed(1),
            np.random.default_rng(1),
            np.random.RandomState(1),
        ]
        self.python, self.torch, self.numpy, self.old = self.own
        self.file = open(path)
        self.opened = None

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.count += 1
        self.opened = self.opened or object()
        drawn = [
            self.python.random(),
            torch.rand(1, generator=self.torch),
            self.numpy.random(),
            self.old.rand(),
        ]
        return (
            index,
            self.count,
            drawn,
            self.file.readline(),
            torch.rand(1),
            random.random(),
            np.random.rand(),
        )


@pytest.mark.parametrize("keeps_open", [True, False])
def test_asking_leaves_a_data_set_as_it_was(tmp_path, keeps_open):
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(50)))
    held = Counting(path), Counting(path)
    asked, alone = Subset(held[0], [4, 3, 2, 1, 0]), Subset(held[1], [4, 3, 2, 1, 0])
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    first = ask(asked, keeps_open)
    assert first == ask(asked, keeps_open)
    assert (asked.dataset.opened is None) is not keeps_open
    got = [str(asked[index]) for index in range(5)]
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    assert got == [str(alone[index]) for index in range(5)]
    for data in held:
        data.file.close()


def test_what_can_not_be_asked_twice_is_not_asked():
    class NextLine(Dataset):
        def __init__(self):
            self.lines = iter(range(10))

        def __len__(self):
            return 10

        def __getitem__(self, index):
            return next(self.lines)

    data = NextLine()
    with pytest.raises(CanNotBeAsked, match="iterator"):
        ask(data, True)
    assert data[0] == 0
    with pytest.raises(CanNotBeAsked, match="item 0 raises KeyError"):
        ask({"a": 1}, True)
    with pytest.raises(CanNotBeAsked, match="no length"):
        ask(object(), True)
    assert ask(TensorDataset(torch.zeros(0)), True) == {}


HEAD = (SCRIPTS / "contents_head.py").read_text()

CASES = SCRIPTS / "contents.py"


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "split",
    [
        "order = np.random.permutation(20); data = TensorDataset(torch.arange(20)[order])",
        "order = np.random.default_rng().permutation(20); data = Subset(torch.arange(20)[:, None], order[:16].tolist())",
        "names = [f'{number}.png' for number in range(20)]; np.random.default_rng().shuffle(names); data = [(i, n) for i, n in enumerate(names)]",
        "import os; data = TensorDataset(torch.arange(10 + os.path.exists('downloaded'))); open('downloaded', 'w').close()",
    ],
)
def test_a_split_that_each_rank_draws_for_itself_is_refused(split):
    script = f"{HEAD}\nnp.random.default_rng()\n{split}\nfrom torchbus import session\n" + (
        'if __name__ == "__main__":\n    with session(strategy="ddp", devices=2, launch="script") as s:\n        train(DataLoader(data, 2))\n'
    )
    ended = run_script(
        script.replace("np.random.permutation", "np.random.default_rng().permutation")
    )
    assert ended.status and not ended.orphans
    found = re.search(
        r"the ranks' data sets do not hold the same samples: (.*?)\. Here each rank runs the script again",
        words(ended.stderr),
    )
    assert found, ended.stderr
    assert "on rank 0" in found[1] and "on rank 1" in found[1] and "data" in found[1]


def test_one_forked_script_of_cases() -> None:
    """Each case is a session of its own."""
    ended = fork_script(CASES)
    found = ended.json()
    ranks, explained, _ = found["augmented"]
    assert "compare" not in explained
    assert sorted(ranks[0][0] + ranks[1][0]) == [float(i) for i in range(12)]
    assert "Unstable gives another answer each time" in found["clock"][1]
    for name in ("own", "local"):
        ranks, explained, warned = found[name]
        assert [len(seen) for seen, _ in ranks] == [12, 12]
        assert ranks[1][0] == [float(i) for i in range(1, 24, 2)]
        words_of_rank = (
            "TensorDataset holds other samples on each rank, and the script asks for its rank"
        )
        assert words_of_rank in explained
        assert any("pass replace_sampler=False; if not" in text for text in warned)
        assert ranks[1][1] == 0
    assert found["off"][0][1][0] == [float(i) for i in range(1, 24, 2)] and not found["off"][2]
    for name in ("main", "late"):
        assert "the ranks' data sets do not hold the same samples" in found[name]
        assert "inside the block" in found[name] and "replace_sampler=False" in found[name]
    assert "item 0[0]: 0 on rank 0, 1 on rank 1" in found["main"]
    assert "item 0[0]: 1 on rank 0, 0 on rank 1" in found["unnamed"]
