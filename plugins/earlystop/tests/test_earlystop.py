"""When a loop ends, on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from torchbus_earlystop.plugin import EarlyStop
from torchbus_testing.forking import fork_script
from torchbus_testing.state import assert_torch_unchanged, torch_state


def stops_after(values: list[float], **options: Any) -> int | None:
    """Return the index of the value after which the loop should end."""
    with session("log", EarlyStop("loss", **options)) as s:
        for index, value in enumerate(values):
            s.log("loss", value)
            if s.should_stop:
                return index
    return None


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([3, 2, 1, 0], {"patience": 1}, None),
        ([3, 2, 2, 1], {"patience": 1}, 2),
        ([3, 2, 2.5, 1.9, 2, 2], {"patience": 2}, 5),
        ([1, 2, 3, 3, 3], {"patience": 2, "mode": "max"}, 4),
        ([1, 0.99, 0.98], {"patience": 2, "min_delta": 0.1}, 2),
        ([1, 0.95, 0.91, 0.89, 0.8], {"patience": 3, "min_delta": 0.1}, None),
        ([1, float("nan"), float("nan")], {"patience": 2}, 2),
        ([3, 2, 1, 0], {"stopping_threshold": 1.5}, 2),
        ([3, 2, 1.5, 1.5], {"stopping_threshold": 1.5}, None),
        ([1, 2, 3], {"stopping_threshold": 1.5, "mode": "max"}, 1),
        ([3, 4, 9, 1], {"divergence_threshold": 5}, 2),
        ([3, 4, 1], {"divergence_threshold": 3.5, "mode": "max"}, 0),
        ([3, float("nan")], {"divergence_threshold": 5, "stopping_threshold": 1}, None),
    ],
)
def test_when(values: list[float], options: dict[str, Any], expected: int | None) -> None:
    assert stops_after(values, **options) == expected


def train(s: Any, epochs: Any) -> list[int]:
    """Number of training batches, of validation batches, and of epochs."""
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.ones(6, 1))
    train_loader, test_loader = DataLoader(data, batch_size=2), DataLoader(data, batch_size=3)
    counts = [0, 0, 0]
    for epoch in epochs:
        counts[2] += 1
        for (x,) in train_loader:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
            counts[0] += 1
        with torch.no_grad():
            counts[1] += sum(1 for _ in test_loader)
        s.log("val_loss", [2.0, 1.0, 1.5, 3.0, 0.0][epoch])
    return counts


def test_a_plain_loop_goes_on_without_training() -> None:
    before = torch_state()
    with session("log", early_stop="val_loss", patience=2) as s:
        assert train(s, range(5)) == [12, 10, 5]
        assert "when val_loss is no better 2 times" in s.explain()
    assert_torch_unchanged(before)


@pytest.mark.parametrize("counted", [False, True])
def test_a_second_training_in_the_session_is_not_silent(counted: bool) -> None:
    with session("log", early_stop="val_loss", patience=1) as s:
        assert train(s, s.epochs(5) if counted else range(5))[0] == 9
        with pytest.warns(UserWarning, match="^the training had ended, by early_stop='val_loss', "):
            assert train(s, s.epochs(5) if counted else range(5))[0] == 0


@pytest.mark.parametrize("options", [{"early_stop": "val_loss", "patience": 1}, {"max_steps": 6}])
def test_a_loader_for_each_epoch(options: dict[str, Any]) -> None:
    """The loader is new, but the loop iterates it on a line that has trained before."""
    data, trained, evaluated = TensorDataset(torch.ones(6, 1)), [], []
    with session("log", **options) as s:
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def run(trains: bool) -> int:
            net.train(trains)
            batches = 0
            for (x,) in DataLoader(data, batch_size=2):
                batches += 1
                optimizer.zero_grad()
                if trains:
                    net(x).mean().backward()
                    optimizer.step()
            return batches

        for epoch in range(4):
            trained.append(run(True))
            evaluated.append(run(False))
            s.log("val_loss", float(epoch))
        assert s.should_stop
    assert (trained, evaluated) == ([3, 3, 0, 0], [3] * 4)


@pytest.mark.parametrize("options", [{"early_stop": "val_loss", "patience": 1}, {"max_steps": 4}])
def test_an_evaluation_on_the_training_data_after_the_end(options: dict[str, Any]) -> None:
    with session("log", **options) as s:
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=2)
        for epoch in range(3):
            for (x,) in loader:
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
            s.log("val_loss", float(epoch))
        assert s.should_stop
        with torch.no_grad():
            assert len(list(loader)) == 3
        net.eval()
        assert len(list(loader)) == 3


def test_the_end_is_that_of_all_ranks() -> None:
    result = fork_script("""
        import json
        from torchbus import session
        with session(early_stop="val", patience=2, strategy="ddp", devices=2, launch="fork") as s:
            ends = []
            for epoch in range(6):
                s.log("val", float(epoch if s.rank else -2 * epoch))  # rank 1 alone would stop, rank 0 never
                ends.append(s.should_stop)
            for epoch in range(2):
                s.log("val", 5.0 if s.rank else -9.0)
                ends.append(s.should_stop)
            both = s.all_gather_object(ends)
        print(json.dumps(both))
    """)
    assert result.ok()
    first, second = json.loads(result.stdout)
    assert first == second == [False] * 7 + [True]


def test_its_state() -> None:
    one = EarlyStop("loss", patience=2)
    with session("log", one) as s:
        s.log("loss", 1.0)
        s.log("loss", 2.0)
    two = EarlyStop("loss", patience=2)
    two.load_state_dict(one.state_dict())
    with session("log", two) as s:
        s.log("loss", 1.5)
        assert s.should_stop


def stopped(folder: Path, leaves: bool = False, **options: Any) -> list[float]:
    """Train in a function, and return the number of steps and the weights."""

    def main(s: Any) -> list[float]:
        torch.manual_seed(0)
        model, count = torch.nn.Linear(4, 1), 0
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        order = torch.Generator().manual_seed(5)
        loader = DataLoader(torch.randn(12, 4), batch_size=4, shuffle=True, generator=order)
        for epoch in s.epochs(8):
            for x in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                count += 1
            s.log("val", [3.0, 1.0, 2.0, 5.0, 4.0, 0.5, 7.0, 8.0][epoch])
            if leaves and s.should_stop:
                break
        return [count, *model.weight.flatten().tolist()]

    with session(strategy=None, early_stop="val", checkpoint=folder, **options) as s:
        return main(s)


@pytest.mark.parametrize(
    ("first", "then", "steps"),
    [
        ({"patience": 2}, {"patience": 4}, 12),
        ({"patience": 2, "every_n_epochs": 3}, {"patience": 4}, 12),
        ({"stopping_threshold": 1.5}, {"stopping_threshold": 0.7, "patience": 4}, 6),
        ({"divergence_threshold": 4.5}, {"divergence_threshold": 7.5, "patience": 9}, 12),
    ],
)
def test_a_run_that_it_ended_continues_with_more_patience(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], steps: int
) -> None:
    whole = stopped(tmp_path / "whole", **then)
    ended = stopped(tmp_path / "ended", **first)
    assert ended[0] == steps < whole[0]
    with pytest.warns(UserWarning, match="early_stop='val' had ended this run, so nothing was"):
        assert stopped(tmp_path / "ended", **first) == ended
    assert stopped(tmp_path / "ended", **then) == whole


def test_another_min_delta_only_does_not_continue_it(tmp_path: Path) -> None:
    ended = stopped(tmp_path, patience=2, min_delta=5.0)
    with pytest.warns(UserWarning, match=r"larger patience \(not by another min_delta only\)"):
        assert stopped(tmp_path, patience=2, min_delta=0.0) == ended
    assert stopped(tmp_path, patience=3, min_delta=0.0)[0] > ended[0]


def test_a_run_that_a_break_ended_says_so(tmp_path: Path) -> None:
    stopped(tmp_path, leaves=True, patience=2)
    with pytest.warns(
        UserWarning, match=r"if the loop over s.epochs\(...\) is not left by `break`"
    ):
        stopped(tmp_path, leaves=True, patience=4)


def test_the_verb_without_a_value_to_watch() -> None:
    """It would always be False: a loop that waits for it never ends."""
    with (
        session() as s,
        pytest.raises(
            UsageError,
            match=r"^s\.should_stop without early_stop=\.\.\.: it would always be the same\. Pass session",
        ),
    ):
        _ = s.should_stop
    with session(early_stop=None, patience=5) as s:  # switched off by the script
        assert s.should_stop is False


@pytest.mark.parametrize(
    "options", [{"patience": 3}, {"early_stop_mode": "max"}, {"min_delta": 0.0}]
)
def test_options_without_a_value_to_watch(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(
        UsageError, match=rf"^{name}={value!r} without early_stop=\.\.\.: it would do nothing"
    ):
        session(**options)


def test_the_mode_of_checkpoints_names_that_of_early_stopping() -> None:
    with pytest.raises(
        UsageError,
        match=r"^mode='max' without monitor=.* or early_stop_mode=\.\.\. for early_stop=",
    ):
        session(early_stop="val_acc", mode="max")


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"mode": "max"}, "Pass early_stop_mode='max'"),
        ({"mode": "max", "early_stop_mode": "min"}, "Pass mode='min'"),
        ({"early_stop_mode": "max"}, "Pass mode='max'"),
    ],
)
def test_one_value_in_two_modes(options: dict[str, Any], remedy: str, tmp_path: Path) -> None:
    """Early stopping would end a run that improves."""
    there = tmp_path / "run"
    with (
        pytest.raises(
            UsageError, match=rf"^early_stop='acc' with .*, and monitor='acc'.*{remedy}$"
        ),
        session(checkpoint=there, monitor="acc", early_stop="acc", devices=2, **options),
    ):
        raise AssertionError("the loop must not run")
    assert not there.exists()


def test_two_values_in_two_modes(tmp_path: Path) -> None:
    with session(checkpoint=tmp_path, monitor="acc", mode="max", early_stop="loss") as s:
        assert not s.should_stop


def test_an_object_without_a_value_to_watch() -> None:
    with pytest.raises(
        UsageError, match=r"^patience=3, mode='max' without monitor=\.\.\.: it would do nothing"
    ):
        EarlyStop(patience=3, mode="max")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"early_stop": 3}, "the name of a value"),
        ({"early_stop": "x", "patience": 0}, "at least one value"),
        ({"early_stop": "x", "patience": 1.5}, "a number of values"),
        ({"early_stop": "x", "min_delta": -1}, "0 or more"),
        ({"early_stop": "x", "early_stop_mode": "best"}, "'min' or 'max'"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
