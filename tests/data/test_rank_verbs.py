"""``s.main_first``, ``s.once``, ``s.on_main``, ``s.split_between_processes``, and its results."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import run_nodes
from ranks import facts, run
from torchbus import session
from torchbus.errors import UsageError


def test_rank_0_goes_first_and_the_others_find_what_it_made(tmp_path: Path) -> None:
    found = facts(
        f"""
        from pathlib import Path
        from time import sleep
        for place, local in (("one", False), ("two", True), ("three", False)):
            folder = Path({str(tmp_path)!r}) / place
            with s.main_first(local=local):
                saw = folder.exists()
                if not saw:
                    sleep(0.05)  # others that did not wait would see no folder
                    folder.mkdir()
            found[place] = s.all_gather_object(saw)
        """,
        ranks=3,
    )
    assert found == {place: [False, True, True] for place in ("one", "two", "three")}


def test_the_others_find_files_of_the_script_too(tmp_path: Path) -> None:
    """Elsewhere they see of these what rank 0 saw at the same place. Here that would be nothing."""
    found = facts(
        """
        from time import sleep
        for place, local in (("one", False), ("two", True)):
            with s.main_first(local=local):
                saw = [Path(place).exists(), place in os.listdir()]
                if not all(saw):
                    sleep(0.05)
                    Path(place).write_text("downloaded")
            found[place] = s.all_gather_object([*saw, Path(place).read_text()])
        with s.main_first():
            Path("always").write_text("once")
        found["always"] = s.all_gather_object(Path("always").read_text())
        """,
        before=f"import os\nfrom pathlib import Path\nos.chdir({str(tmp_path)!r})",
        ranks=3,
    )
    first, later = [[saw, saw, "downloaded"] for saw in (False, True)]
    both = [first, later, later]
    assert found == {"one": both, "two": both, "always": ["once"] * 3}


ON_NODES = """
import json, sys
from pathlib import Path
from torchbus import session

with session(strategy="ddp", devices=int(sys.argv[2]), num_nodes=2, accelerator="cpu") as s:
    saw = []
    for number, local in enumerate([False, True, True, False]):
        place = f"{number} {s.world.node_rank if local else 'all'}"
        with s.main_first(local=local):
            folder = Path(sys.argv[1]) / place
            saw.append(folder.exists())
            folder.mkdir(exist_ok=True)
    saw = s.all_gather_object(saw)
    if s.is_main:
        print(json.dumps(saw))
"""


@pytest.mark.slow
def test_on_several_nodes_the_first_rank_of_each_goes_first(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ON_NODES)
    results = run_nodes([2, 2], script, str(tmp_path), "2")
    first, later = [False, False, False, False], [True, True, True, True]
    others = [True, False, False, True]
    assert all(result.ok() for result in results)
    assert results[0].json() == [first, later, others, later]


def test_a_function_runs_once_and_all_ranks_have_its_result() -> None:
    found = facts("""
        calls = []
        def make():
            calls.append(s.rank)
            return {"rank": s.rank, "vocabulary": torch.arange(3)}
        made = [s.once("words", make) for _ in range(3)] + [s.once("more", lambda: 7)]
        found["calls"] = s.all_gather_object(calls)
        found["made"] = s.all_gather_object([made[0]["rank"], made[2]["vocabulary"].tolist(), made[3]])
        found["on main"] = s.all_gather_object(s.on_main(lambda x, more=0: [x, more, s.rank])(1, more=2))
        @s.on_main
        def named():
            "Documented."
        found["named"] = [named.__name__, named.__doc__]
    """)
    assert found == {
        "calls": [[0], []],
        "made": [[0, [0, 1, 2], 7]] * 2,
        "on main": [[1, 2, 0], None],
        "named": ["named", "Documented."],
    }


def test_what_rank_0_raises_all_ranks_raise_and_go_on_alike() -> None:
    found = facts("""
        class Odd(Exception):
            def __init__(self, one, two):
                super().__init__("odd")

        def attempt(work):
            try:
                work()
            except Exception as error:
                return [type(error).__name__, str(error), str(error.__cause__)]

        def missing():
            with s.main_first():
                if s.is_main:
                    raise FileNotFoundError(2, "no such file", "words.txt")

        def odd():
            raise Odd(1, 2)

        works = {
            "first": missing,
            "once": lambda: s.once("words", lambda: {}["key"]),
            "again": lambda: s.once("words", lambda: {}["other"]),
            "class": lambda: s.once("odd", odd),
            "unsendable": lambda: s.once("code", lambda: (lambda: 1)),
        }
        for name, work in works.items():
            found[name] = s.all_gather_object(attempt(work))
        found["after"] = s.once("words", lambda: "there")
    """)
    cause = "rank 0 raised this in s."
    one = ["FileNotFoundError", "[Errno 2] no such file: 'words.txt'"]
    assert found["first"] == [[*one, "None"], [*one, f"{cause}main_first"]]
    assert found["once"][1] == ["KeyError", "'key'", f"{cause}once('words', ...)"]
    assert found["again"][1][:2] == ["KeyError", "'other'"]
    assert found["class"][1][:2] == ["RankFailed", "Odd: odd"]
    assert found["unsendable"][0] == [
        "UsageError",
        *found["unsendable"][0][1:],
    ] and found["unsendable"][1][1].startswith("s.once('code', ...): a function can't be sent to")
    assert found["after"] == "there"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("with s.main_first():\n    assert not s.is_main, 'broken download'", "broken download"),
        ("with s.main_first():\n    assert s.is_main, 'broken copy'", "broken copy"),
        ("s.once(f'key of {s.rank}', int)", "rank 1 waits in s.once('key of 1', ...)"),
        ("if s.rank:\n    s.main_first().__enter__()", "rank 1 waits in s.main_first"),
        ("with s.main_first():\n    s.barrier()", "rank 0 waits in s.barrier"),
    ],
)
@pytest.mark.share(3)
def test_a_rank_that_fails_or_stays_away_ends_the_job(body: str, message: str) -> None:
    result = run(body)
    assert result.status == 1 and not result.orphans and message in result.stderr


KINDS = """
import numpy
def values(items):
    return [one[0].item() if isinstance(one, (tuple, torch.Tensor)) else int(one) for one in items]
kinds = {
    "list": lambda n: list(range(n)),
    "tuple": lambda n: tuple(range(n)),
    "range": range,
    "tensor": lambda n: torch.arange(n).view(n, 1),
    "array": numpy.arange,
    "data set": lambda n: TensorDataset(torch.arange(n)),
}
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_items_of_every_kind_come_back_in_their_order(ranks: int) -> None:
    """Each number of items, with and without padding; the shares are those of Accelerate."""
    found = facts(
        """
        for kind, make in kinds.items():
            for n in (0, 1, 2, 5, 7):
                for padding in (False, True):
                    with s.split_between_processes(make(n), apply_padding=padding) as mine:
                        shares = s.all_gather_object(values(mine))
                        whole = s.gather_in_order(values(mine))
                    found[f"{kind} {n} {padding}"] = [type(mine).__name__, shares, whole]
        """,
        before=KINDS,
        ranks=ranks,
    )
    assert len(found) == 60
    types = {"data set": "Subset", "tensor": "Tensor", "array": "ndarray"}
    for case, (made, shares, whole) in found.items():
        *kind, n, padding = case.split()
        items = list(range(int(n)))
        name = " ".join(kind)
        assert made == types.get(name, name) or (name, made, padding) == ("range", "list", "True")
        assert whole == items
        longest = max(map(len, shares))
        if padding == "True":
            assert {len(share) for share in shares} == {longest}
        assert [one for share in shares for one in share][: int(n)] == items or padding == "True"
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_dicts_and_rows_of_tensors() -> None:
    found = facts("""
        batch = {"prompt": ["a", "b", "c"], "ids": torch.arange(6).view(3, 2), "more": {"x": (1, 2, 3)}}
        with s.split_between_processes(batch, apply_padding=True) as mine:
            plain = {**mine, "ids": mine["ids"].tolist()}
            found["mine"] = s.all_gather_object(plain)
            found["rows"] = s.gather_in_order(mine["ids"] * 10).tolist()
        found["theirs"] = [batch["prompt"], len(batch["ids"])]
    """)
    assert found["mine"][0] == {
        "prompt": ["a", "b"],
        "ids": [[0, 1], [2, 3]],
        "more": {"x": [1, 2]},
    }
    assert found["mine"][1] == {
        "prompt": ["c", "c"],
        "ids": [[4, 5], [4, 5]],
        "more": {"x": [3, 3]},
    }
    assert found["rows"] == [[0, 10], [20, 30], [40, 50]]
    assert found["theirs"] == [["a", "b", "c"], 3]


def test_results_that_do_not_fit_the_items_are_refused_on_all_ranks() -> None:
    found = facts("""
        def attempt(work):
            try:
                work()
            except Exception as error:
                return str(error)

        def split(items, results):
            with s.split_between_processes(items) as mine:
                s.gather_in_order(results(mine))

        works = {
            "nothing": lambda: s.gather_in_order([]),
            "fewer": lambda: split(range(5), lambda mine: list(mine)[: 2 if s.rank else 3]),
            "lost": lambda: split(range(5), lambda mine: list(mine)[: 1 if s.rank else 3]),
            "other": lambda: split(range(5 + s.rank), list),
        }
        for name, work in works.items():
            found[name] = s.all_gather_object(attempt(work))
    """)
    assert found["nothing"][0].startswith("s.gather_in_order: nothing has been split")
    assert found["fewer"] == [None, None]
    lost = "s.gather_in_order: rank 1 has 1 results for its 2 items"
    assert all(text.startswith(lost) for text in found["lost"])
    assert all("the ranks have split [5, 6] items" in text for text in found["other"])


@pytest.mark.parametrize(
    ("option", "whole"),
    [
        ("fast_dev_run=True", [0, 1, 5, 6]),
        ("limit_eval_batches=2", [0, 1, 2, 3, 5, 6, 7, 8]),
        ("overfit_batches=9", [*range(9)]),
    ],
)
def test_limited_passes_give_the_results_of_each_ranks_first_items(
    option: str, whole: list[int]
) -> None:
    """As a list, and as a tensor."""
    found = facts(
        """
        with torch.no_grad(), s.split_between_processes(TensorDataset(torch.arange(9))) as mine:
            rows = torch.cat([x for (x,) in DataLoader(mine, batch_size=2)])
            found["list"] = s.gather_in_order(rows.tolist())
            found["tensor"] = s.gather_in_order(rows).tolist()
        """,
        options=option,
    )
    assert found == {"list": whole, "tensor": whole}


def test_ranks_that_compute_one_model_together_have_the_same_items() -> None:
    found = facts(
        """
        net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(1, 2)).sum().backward()
        with s.split_between_processes(range(5)) as mine:
            found["mine"] = s.all_gather_object(list(mine))
            found["whole"] = s.gather_in_order([one * 2 for one in mine])
            found["rows"] = s.gather_in_order(torch.tensor(mine)).tolist()
        """,
        options="plan={'0': 'colwise', '2': 'rowwise'}",
        strategy="tp",
    )
    assert found == {"mine": [[0, 1, 2, 3, 4]] * 2, "whole": [0, 2, 4, 6, 8], "rows": [*range(5)]}


def test_training_with_a_share_is_refused() -> None:
    result = run("""
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with s.split_between_processes(TensorDataset(torch.randn(8, 2))) as mine:
            for (x,) in DataLoader(mine, batch_size=2):
                net(x).mean().backward()
                optimizer.step()
    """)
    assert result.status == 1
    assert "the ranks' data sets do not hold the same samples" in result.stderr


def test_one_process_has_all_items_and_every_verb() -> None:
    with session() as s:
        with s.main_first(), s.split_between_processes([1, 2, 3], apply_padding=True) as mine:
            assert mine == [1, 2, 3]
        assert s.gather_in_order([2, 4, 6]) == [2, 4, 6]
        assert s.once("key", lambda: 5) == s.once("key", lambda: 6) == 5
        assert s.on_main(lambda: 7)() == 7
        wrong = {"int": 3, "str": "prompt", "generator": (one for one in [1])}
        for name, items in wrong.items():
            with pytest.raises(UsageError, match=f"an? {name} has no items to divide"):
                s.split_between_processes(items).__enter__()
        with pytest.raises(UsageError, match=r"different lengths: {'a': 1, 'b': 2}"):
            s.split_between_processes({"a": [1], "b": [1, 2]}).__enter__()
        with pytest.raises(UsageError, match=r"local=.* 'with s.main_first\(\):' is a block"):
            s.main_first(print)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="key"):
            s.once(3, int)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"an int is not a function: .* s.once\('data'"):
            s.once("words", 3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="a NoneType is not a function"):
            s.on_main(None)  # type: ignore[arg-type]
