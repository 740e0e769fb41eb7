"""The end after a number of steps or some time, and a run that resumes from there."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from torchbus_earlystop.judge import seconds
from torchbus_testing.forking import fork_script
from torchbus_testing.state import assert_torch_unchanged, torch_state

LOOP = """
import json, sys, time, torch
from torchbus import session
from torch.utils.data import DataLoader, TensorDataset
def run(ranks, kind, slow, **options):
    with session(strategy="ddp", devices=ranks, launch="fork", batch="global", **options) as s:
        torch.manual_seed(0)
        x = torch.randn(24, 3)
        train = DataLoader(TensorDataset(x, x.sum(1)), batch_size=6, shuffle=True)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        batches, evaluated = [], 0
        for epoch in s.epochs(5) if kind == "epochs" else range(5):
            count = 0
            for a, b in train:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(a)[:, 0], b).backward()
                optimizer.step()
                count += 1
                time.sleep(slow)
            batches.append(count)
            with torch.no_grad():
                evaluated += len(list(DataLoader(TensorDataset(x), batch_size=8)))
        weights = model.weight.flatten().tolist()
        everywhere = s.all_gather_object((batches, weights))
        return batches, evaluated, weights, everywhere.count((batches, weights)) == ranks, s.should_stop
print(json.dumps([run(*case, **options) for *case, options in json.loads(sys.argv[1])]))
"""


def run(*cases: Any) -> list[Any]:
    result = fork_script(LOOP, json.dumps(cases))
    assert result.ok(), result
    found: list[Any] = json.loads(result.stdout)
    assert all(alike for *_, alike, _ in found)
    return found


def test_max_steps_and_a_run_with_more(tmp_path: Path) -> None:
    there = {"checkpoint": str(tmp_path / "epochs")}
    here = {"checkpoint": str(tmp_path / "range")}
    whole, plain, first, same, more, over, again = run(
        (1, "epochs", 0, {"max_steps": 11}),
        (3, "range", 0, {"max_steps": 11}),
        (2, "epochs", 0, {"max_steps": 6, **there}),
        (2, "epochs", 0, {"max_steps": 6, **there}),
        (2, "epochs", 0, {"max_steps": 11, **there}),
        (2, "range", 0, {"max_steps": 4, **here}),
        (2, "range", 0, {"max_steps": 11, **here}),
    )
    assert [one[0] for one in (whole, plain, first)] == [[4, 4, 3], [4, 4, 3, 0, 0], [4, 2]]
    assert (whole[1], plain[1]) == (9, 15), "evaluation still works"
    assert same[2] == first[2] != whole[2], "no step beyond the bound"
    assert (over[0], over[4]) == ([4, 0, 0, 0, 0], True)
    for other in (plain, more, again):
        assert other[2] == pytest.approx(whole[2], abs=1e-6)


def test_max_time_ends_all_ranks_after_the_same_step() -> None:
    found = run(
        (1, "epochs", 0.05, {"max_time": 0.2}),
        (3, "epochs", 0.05, {"max_time": 0.2}),
        (2, "epochs", 0, {"max_time": "10:00:00"}),
    )
    assert all(sum(one[0]) < 20 and one[4] for one in found[:2])
    assert found[2][0] == [4] * 5 and not found[2][4]


def test_a_run_goes_on_after_max_time_as_one_run(tmp_path: Path) -> None:
    """At any step at which the time ends."""
    there = {"checkpoint": str(tmp_path / "cut"), "every_n_steps": 7}
    whole, cut, again, rest = run(
        (2, "epochs", 0, {"max_steps": -1, "max_time": 9999}),
        (2, "epochs", 0.05, {"max_time": 0.1, **there}),
        (2, "epochs", 0.05, {"max_time": 0.1, **there}),
        (2, "epochs", 0, {"max_time": "10:00:00", **there}),
    )
    assert sum(cut[0]) + sum(again[0]) < 20, "the clock has cut both"
    assert rest[2] == whole[2] and rest[4] is False


EPOCHS = """
import json, sys, torch
from torchbus import session
from torch.utils.data import DataLoader, TensorDataset
def run(kind, leaves, **options):
    with session(strategy="ddp", devices=2, launch="fork", **options) as s:
        torch.manual_seed(0)
        x = torch.randn(16, 3)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loader = DataLoader(TensorDataset(x), batch_size=2)
        def batches():
            if kind != "passes":
                for _ in range(2 if kind == "pairs" else 1):
                    yield s.shard(torch.randn(4, 3))
            else:
                for batch, in loader:
                    yield batch
        for epoch in s.epochs(6):
            for batch in batches():
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                if leaves and s.should_stop:
                    break
        return model.weight.flatten().tolist()
def refused(*case, **options):
    try:
        return run(*case, **options)
    except Exception as error:
        return str(error)
there, left, lacking = ({"checkpoint": sys.argv[1] + f"/{name}"} for name in "abc")
print(json.dumps([
    run("steps", False), run("steps", False, max_steps=4, **there), run("steps", False, **there),
    run("passes", True, max_steps=6, **left), refused("passes", False, **left),
    run("pairs", False, max_steps=3, **lacking), run("pairs", True, max_steps=3),
    refused("pairs", False, **lacking),
]))
"""


def test_a_cut_between_epochs_and_cuts_that_a_break_or_more_steps_follow(tmp_path: Path) -> None:
    result = fork_script(EPOCHS, str(tmp_path))
    assert result.ok(), result
    whole, cut, more, _, refused, three, left_by_break, lacking = json.loads(result.stdout)
    assert more == whole != cut
    assert three == left_by_break, "an epoch of 2 is cut after 1: no step begins after the third"
    for words in (refused, lacking):
        assert "left its pass by `break`, or made more steps. Remove the `break`" in words
    assert "since the pass ends without it" in result.stderr


def test_other_optimizers_finish_the_last_step() -> None:
    before = torch_state()
    one, two = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, two)]
    steps: list[int] = []
    for number, optimizer in enumerate(optimizers):
        optimizer.register_step_post_hook(lambda *_, number=number: steps.append(number))
    with session(max_steps=2) as s:
        for (x,) in DataLoader(TensorDataset(torch.ones(5, 1))):
            for net, optimizer in zip((one, two), optimizers, strict=True):
                net(x).mean().backward()
                optimizer.step()
        assert "after 2 real steps" in s.explain()
        optimizers[0].step()
        assert s.should_stop
    assert steps == [0, 1, 0, 1], "no step begins after the last one"
    assert_torch_unchanged(before)


def models_in_turn(num_models: int = 3, **options: Any) -> tuple[list[torch.Tensor], list[float]]:
    """Return the weights of models that one block trains one after the other, 6 steps each, and
    how far each model has moved.
    """
    weights, moved = [], []
    with session(**options):
        torch.manual_seed(0)
        for _ in range(num_models):
            net = torch.nn.Linear(3, 1)
            optimizer = torch.optim.Adam(net.parameters())
            before = net.weight.detach().clone()
            for _ in range(2):
                for (x,) in DataLoader(TensorDataset(torch.randn(6, 3)), 2, shuffle=True):
                    optimizer.zero_grad()
                    net(x).square().mean().backward()
                    optimizer.step()
            weights.append(net.weight.detach().clone())
            moved.append((net.weight - before).abs().max().item())
    return weights, moved


def test_models_that_the_loop_trains_after_the_last_step_make_none(tmp_path: Path) -> None:
    whole, _ = models_in_turn()
    there = {"checkpoint": str(tmp_path)}
    with pytest.warns(
        UserWarning, match="^the training had ended, by max_steps or max_time, before"
    ):
        cut, moved = models_in_turn(max_steps=4, **there)
    assert moved[0] > 0.0 == moved[1] == moved[2]
    resumed, _ = models_in_turn(**there)
    assert all(map(torch.equal, resumed, whole)) and not torch.equal(cut[0], whole[0])


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}])
def test_windows_count_once(options: dict[str, Any]) -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with session(max_steps=2, **options):
        count = 0
        for (x,) in DataLoader(TensorDataset(torch.ones(9, 1))):
            net(x).mean().backward()
            optimizer.step()
            count += 1
    assert count == 2 * options.get("accumulate_grad_batches", 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("02:00:00", 7200),
        ("1:12:00:30", 129630),
        ("05:30", 330),
        (timedelta(minutes=2), 120),
        (1.5, 1.5),
    ],
)
def test_times(given: Any, expected: float) -> None:
    assert seconds(given) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_time": "soon"}, "it must be a string such as '02:00:00'"),
        ({"max_time": 0}, "more than 0 seconds"),
        ({"max_time": True}, "it must be a string"),
        ({"max_time": "25:61:00"}, "61 minutes, but at most 59 fit .* 93660 .* write '26:01:00'"),
        ({"max_time": "00:00:60"}, "60 seconds, but at most 59 fit there"),
        ({"max_time": "1:24:00:00"}, "24 hours, but at most 23 fit .* write '48:00:00'"),
        ({"max_steps": 0}, "1 step or more"),
        ({"max_steps": 2.0}, "a number of optimizer steps"),
        ({"stopping_threshold": 1.0}, "stopping_threshold=1.0 without early_stop"),
        ({"early_stop": "x", "divergence_threshold": "1"}, "a number, or None"),
        ({"early_stop": "x", "early_stop_strict": 1}, "True or False"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
    with session(max_steps=-1, max_time=None):
        pass


# When values are judged ------------------------------------------------------------------------


def train(s: Any, epochs: int, log: Any, loss: float = 0.0) -> list[bool]:
    net = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(net.bias, loss)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    stops = []
    for epoch in range(epochs):
        for batch, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(3, 1)))):
            net(x).mean().backward()
            optimizer.step()
            log("in", epoch, batch)
        log("after", epoch, 0)
        stops.append(s.should_stop)
    return stops


def test_one_value_for_each_training_pass() -> None:
    with session(early_stop="loss", patience=2) as s:
        assert train(s, 1, lambda place, *_: place == "in" and s.log("loss", 1.0)) == [True]
    with session(early_stop="loss", patience=2, check_on_train_epoch_end=True) as s:
        found = train(s, 4, lambda place, *_: place == "in" and s.log("loss", 1.0))
        assert found[:2] == [False, False] and found[-1]
    with session(early_stop="loss", patience=2, check_on_train_epoch_end=True) as s:
        found = train(s, 4, lambda place, *_: place == "after" and s.log("loss", 1.0))
        assert found == [False, False, True, True]


@pytest.mark.parametrize("loss", [-9.0, 9.0])
@pytest.mark.parametrize("once", [False, True])
def test_automatic_values_do_not_count_beside_those_of_the_loop(loss: float, once: bool) -> None:
    """The end of the first pass is a log point, before the loop logs its value."""
    values = iter([3.0, 2.0, 3.0, 2.5, 9.0])
    with session(early_stop="loss", patience=2, check_on_train_epoch_end=once) as s:
        found = train(s, 5, lambda at, *_: at == "after" and s.log("loss", next(values)), loss)
    assert found == [False, False, False, True, True]


def test_a_name_that_may_be_missing() -> None:
    def evaluate(place: str, *_: int) -> None:
        if place == "after":
            with torch.no_grad():
                list(DataLoader(TensorDataset(torch.ones(2, 1))))
            s.log("other", 1.0)

    with pytest.raises(UsageError, match="monitored, but not logged"), session(early_stop="x") as s:
        train(s, 3, evaluate)
    with session(early_stop="x", early_stop_strict=False) as s:
        assert train(s, 3, evaluate) == [False] * 3


RANKS = """
import json, sys, torch
from torchbus import session
from torch.utils.data import DataLoader, TensorDataset
def run(ranks, when, value, **options):
    # each rank logs its own value: the mean over ranks decides
    with session(strategy="ddp", devices=ranks, launch="fork", early_stop="x", **options) as s:
        torch.manual_seed(0)
        loader = DataLoader(TensorDataset(torch.ones(4 * ranks, 1)), batch_size=1)
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        count, off = 0, s.rank - (ranks - 1) / 2
        for epoch in s.epochs(6):
            for batch, in loader:
                net(batch).mean().backward()
                optimizer.step()
                count += 1
                if when == "step":
                    s.log("x", value * count + off)
            if when == "epoch":
                s.log("x", value * (epoch + 1) + off)
        every = s.all_gather_object((count, s.should_stop))
        assert every == [(count, s.should_stop)] * ranks, every
        return every[0]
print(json.dumps([run(ranks, *case, **options)
      for *case, options in json.loads(sys.argv[1]) for ranks in (1, 2, 3)]))
"""


def test_ranks_judge_as_one_process() -> None:
    cases: list[Any] = [
        ("epoch", -1.0, {"stopping_threshold": -2.5}),  # -3 in the third epoch
        ("epoch", 1.0, {"divergence_threshold": 1.5, "patience": 9}),
        ("step", 1.0, {"check_on_train_epoch_end": True, "patience": 2}),
        ("never", 1.0, {"early_stop_strict": False}),
    ]
    result = fork_script(RANKS, json.dumps(cases))
    assert result.ok(), result
    found = json.loads(result.stdout)
    groups = [found[start : start + 3] for start in range(0, len(found), 3)]
    assert all(one == group[0] for group in groups for one in group), groups
    assert [group[0] for group in groups][::3] == [[12, True], [24, False]]
    assert groups[1][0] == [8, True] and groups[2][0][1]


def endless(s: Any) -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(3, 1)))
    while True:
        for (x,) in loader:
            net(x).mean().backward()
            optimizer.step()
            s.log("loss", 1.0)


def by_next(s: Any) -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(3, 1)))
    batches = iter(loader)
    while True:
        try:
            (x,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            (x,) = next(batches)
        net(x).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "loop", "words"),
    [
        ({"max_steps": 4}, endless, "by max_steps or max_time, .* 100000 passes without a batch"),
        ({"early_stop": "loss"}, endless, "by early_stop='loss', .* passes without a batch"),
        ({"max_steps": 4}, by_next, r"next\(...\) has found no batch. Leave it with `if s.should_"),
    ],
)
def test_loops_that_would_go_on_without_batches(
    options: dict[str, Any], loop: Any, words: str
) -> None:
    before = torch_state()
    with pytest.raises(UsageError, match=words), session(**options) as s:
        loop(s)
    assert_torch_unchanged(before)


WHY = """
    import time
    import torch
    from torchbus import session
    def run(steps, log=None, wait_s=0.0, **options):
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with session(strategy="ddp", devices=2, launch="fork", **options) as s:
            for step in range(steps):
                net(torch.rand(4, 3)).sum().backward()
                optimizer.step()
                time.sleep(wait_s)
                if log is not None:
                    s.log("val_loss", log[step])
                if s.should_stop:
                    break
    run(9, [3.0, 2.0, 2.5, 2.0], early_stop="val_loss", patience=2)
    run(9, [1.0, 3.0, 2.0, 1.0], early_stop="val_loss", patience=2, early_stop_mode="max")
    run(9, [float("nan")] * 2, early_stop="val_loss", patience=2)
    run(9, [3.0, 0.5], early_stop="val_loss", stopping_threshold=1.0)
    run(9, [3.0, 50.0], early_stop="val_loss", divergence_threshold=10.0)
    run(9, max_steps=4)
    run(2000, max_time=0.2, wait_s=0.01)
    run(2, [3.0, 2.0], early_stop="val_loss", max_steps=5)
"""


def test_rank_0_says_why_the_loop_ends() -> None:
    result = fork_script(WHY).ok()
    lines = [line for line in result.stderr.splitlines() if line.startswith("torchbus: ")]
    *others, of_time = lines
    early = "torchbus: early stopping: 'val_loss'"
    assert others == [
        f"{early} has not improved 2 times in a row, best 2 at step 2",
        f"{early} has not improved 2 times in a row, best 3 at step 2",
        f"{early} has not improved 2 times in a row",
        f"{early} is 0.5, better than 1",
        f"{early} is 50, worse than 10",
        "torchbus: max_steps=4: the loop ends after step 4",
    ]
    assert re.fullmatch(r"torchbus: max_time=0.2 s: the loop ends after step \d+", of_time)
