"""``load_best=True``: the weights with the best value, at the end of the block."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import prune
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint.disk.choice import automatic, best
from torchbus_checkpoint.errors import CheckpointError
from torchbus_testing.forking import fork_script

JUDGED = Path(__file__).parent / "scripts" / "judged.py"
LOOP = """
import json, sys, torch
from torchbus import session
from torch.utils.data import DataLoader
VALUES = [3.0, 1.0, 2.0, 5.0]
def run(model, weights, **options):
    with session(launch="fork", batch="global", monitor="val", load_best=True, **options) as s:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        data = torch.arange(24.0).reshape(12, 2) / 24
        for epoch in s.epochs(4):
            for x in DataLoader(data, batch_size=6):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            weights.append(s.all_gather_object(model[0].state_dict()["bias"].tolist()))
            s.log("val", VALUES[epoch])
for strategy, ranks, mode, keep in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    folder = f"{sys.argv[2]}/{strategy}{ranks}{mode}{keep}"
    found = []
    for again in range(2):
        weights = []
        run(model, weights, strategy=strategy, devices=ranks, checkpoint=folder, mode=mode, keep=keep)
        found.append([weights, model[0].bias.tolist()])
    print(json.dumps(found))
"""


def test_ranks_end_with_the_best_weights_also_of_a_run_that_is_over(tmp_path: Path) -> None:
    cases = [
        ("ddp", 1, "min", 1),
        ("ddp", 3, "min", 3),
        ("ddp", 2, "max", 1),
        ("fsdp", 2, "min", 2),
    ]
    result = fork_script(LOOP, json.dumps(cases), tmp_path)
    assert result.ok(), result
    folder = tmp_path / "ddp1min1" / "step-00000004"
    said = f"torchbus: loads the best weights, of {folder}: 'val' was 1\n"
    assert result.stderr.count(said) == 2 and result.stderr.count("best weights") == 2 * len(cases)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    for (strategy, _, mode, _), ((weights, first), (_, again)) in zip(cases, lines, strict=True):
        best = 1 if mode == "min" else 3
        assert again == first
        if strategy == "ddp":  # fsdp's state_dict has this rank's part
            assert first == pytest.approx(weights[best][0]) != pytest.approx(weights[4 - best][0])
    assert lines[3][0][1] == pytest.approx(lines[0][0][1], abs=1e-5), "fsdp is as exact as ddp"


EVERY_SECOND = [[step, True if step % 4 == 0 else None] for step in range(2, 19, 2)]
AFTER_EACH_VALUE = [[4, True], [6, None], [8, True], [12, True], [16, True], [18, None]]
OF_LOOPS: dict[tuple[str, int, int | None, int], list[list[object]]] = {
    ("after_each_epoch", 1, None, 12): [[6, True], [12, True], [18, True]],
    ("after_each_epoch", 2, None, 6): [[6, True], [12, True], [18, True]],
    ("after_each_epoch", 1, 4, 6): [
        *([4, None], [6, True], [8, None], [12, True], [16, None], [18, True])
    ],
    ("after_some_steps", 1, None, 8): AFTER_EACH_VALUE,
    ("after_some_steps", 2, 2, 6): EVERY_SECOND,
    ("after_a_pass_that_it_leaves", 1, 2, 8): EVERY_SECOND,
    ("after_a_pass_that_it_leaves", 2, None, 8): AFTER_EACH_VALUE,
    ("before_some_steps", 1, 2, 4): EVERY_SECOND,
    ("before_some_steps", 2, 2, 8): EVERY_SECOND,
    ("before_some_steps", 1, None, 12): [[6, None], [12, True], [18, None]],
    ("before_each_epoch", 1, None, 6): [[6, True], [12, True], [18, None]],
    ("before_some_steps_without_a_loader", 1, 2, 4): EVERY_SECOND,
    ("before_some_steps_without_a_loader", 2, 2, 8): EVERY_SECOND,
}


def test_a_value_is_of_the_weights_in_its_checkpoint(tmp_path: Path) -> None:
    """Wherever the loop evaluates; and a run that resumes there ends as if it had not stopped."""
    result = fork_script(JUDGED, json.dumps(list(OF_LOOPS)), cwd=tmp_path)
    assert result.ok(), result
    found = [json.loads(line) for line in result.stdout.splitlines()]
    for case, expected, (there, is_exact) in zip(OF_LOOPS, OF_LOOPS.values(), found, strict=True):
        assert there == expected, case
        assert is_exact, case
    told = result.stderr.count("no checkpoint has the weights of a value of 'val_loss'")
    assert told == 1, "step 8 of the loop that evaluates before some steps, once per epoch"


def test_a_loop_over_steps_is_refused_after_its_first_pass(tmp_path: Path) -> None:
    """At its begin, the pass belongs to a step, as that of a loop over epochs does."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(UsageError, match="can't hold the position of `for step in"),
        session(checkpoint=tmp_path) as s,
    ):
        loader = DataLoader(torch.ones(4, 1), batch_size=2)
        batches = iter(loader)
        for step in range(5):
            try:
                x = next(batches)
            except StopIteration:
                batches = iter(loader)
                x = next(batches)
            model(x).mean().backward()
            optimizer.step()
            assert s.global_step == step + 1 < 4


def train(s: Any) -> torch.nn.Module:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in s.epochs(2):
        for x in DataLoader(torch.ones(4, 1), batch_size=2):
            model(x).mean().backward()
            optimizer.step()
        s.log("other", float(epoch))
    return model


def test_a_new_loader_for_each_pass_of_a_loop_over_range(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    torch.manual_seed(0)
    model, weights = torch.nn.Linear(2, 1), []
    with session(strategy=None, checkpoint=str(tmp_path), monitor="val", load_best=True) as s:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for epoch in range(4):
            for x in DataLoader(torch.ones(4, 2), batch_size=2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            weights.append(model.weight.tolist())
            with torch.no_grad():
                for _ in DataLoader(torch.ones(4, 2), batch_size=2):
                    s.log("val", [3.0, 1.0, 2.0, 5.0][epoch], on_epoch=True)
    assert model.weight.tolist() == weights[1]
    assert not [one for one in recwarn if "no checkpoint has the weights" in str(one.message)]


def test_without_a_value(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="no checkpoint in .* has a value of 'val'"),
        pytest.warns(UserWarning, match="monitored, but not logged"),
        session(checkpoint=tmp_path, monitor="val", load_best=True) as s,
    ):
        train(s)


def test_an_error_leaves_the_weights(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyError),
        session(checkpoint=tmp_path, monitor="other", mode="min", load_best=True) as s,
    ):
        model = train(s)
        before = model.weight.clone()
        raise KeyError
    assert torch.equal(model.weight, before)


def prune_and_train(
    folder: Path, *, before: bool, in_block: bool, last: int = 3
) -> torch.nn.Module:
    """Prune after each epoch, and stop in epoch ``last``."""
    with session(strategy=None, checkpoint=folder, monitor="val", load_best=True, seed=0) as s:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if before:
            prune.identity(model, "weight")
        for epoch in s.epochs(3):
            for x in DataLoader(torch.ones(4, 4), batch_size=2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                if epoch == last:
                    raise KeyError
            prune.l1_unstructured(model, "weight", 1)
            s.log("val", float(epoch))
        if in_block:
            prune.remove(model, "weight")
    return model


def test_a_loop_that_prunes(tmp_path: Path) -> None:
    """The remedies are those of the message."""
    words = (
        r"weight_orig, and model of .* call prune\.identity\(.*before the loop, and prune\.remove"
    )
    with pytest.raises(CheckpointError, match=words):
        prune_and_train(tmp_path / "in block", before=True, in_block=True)
    for before in (False, True):
        with pytest.raises(KeyError):
            prune_and_train(tmp_path / f"{before}", before=before, in_block=False, last=1)
    with pytest.raises(CheckpointError, match=words):
        prune_and_train(tmp_path / "False", before=False, in_block=False)
    resumed = prune_and_train(tmp_path / "True", before=True, in_block=False)
    whole = prune_and_train(tmp_path / "whole", before=True, in_block=False)
    assert whole.weight_mask.sum() == 3, "the best one is that of the first epoch"
    prune.remove(whole, "weight")
    prune.remove(resumed, "weight")
    assert torch.equal(whole.weight, resumed.weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"load_best": True}, "load_best=True without monitor"),
        ({"load_best": 1, "monitor": "x", "checkpoint": "folder"}, "True or False"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)


def judged_epochs(s: Any) -> None:
    """Train, and print the epochs that run."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for epoch in s.epochs(4):
        for x in DataLoader(torch.ones(8, 2), batch_size=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        s.log("val", [3.0, 1.0, 2.0, 5.0][epoch])
        print(epoch)


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def best_one_tested(folder: Path, tested_as: str) -> tuple[Path, dict[str, bytes]]:
    """Return the best checkpoint, and all files before the test."""
    with session(strategy=None, checkpoint=folder, monitor="val") as s:
        judged_epochs(s)
        chosen, before = best(folder), contents(folder)
        assert chosen is not None and s.global_step == 8
        s.load(chosen)
        assert s.global_step == 4
        s.log(tested_as, 0.5)
    return chosen, before


@pytest.mark.parametrize("tested_as", ["test", "val"])
def test_a_test_with_the_best_checkpoint_changes_no_checkpoint(
    tmp_path: Path, capsys: Any, tested_as: str
) -> None:
    """So a run resumes from it elsewhere, and the run that is over from its last checkpoint."""
    for expected in (["0", "1", "2", "3"], []):
        chosen, before = best_one_tested(tmp_path / "c", tested_as)
        assert contents(tmp_path / "c") == before
        assert capsys.readouterr().out.split() == expected
    with session(strategy=None, monitor="val", checkpoint=tmp_path / "new", resume=chosen) as s:
        judged_epochs(s)
    assert capsys.readouterr().out.split() == ["2", "3"]


VALUES_OF_TWO = [1.0, 0.5, 4.0, 2.0, 3.0, 5.0]


def trainings(folder: Path, stop_at: int = 6, logged: int = 6, **options: Any) -> dict[str, Any]:
    """Train two models, one after the other. The earlier one lives on in a variable of the same
    name, and has the better values. Return the weights after each epoch, and those at the end.
    """
    weights: list[float] = []
    values = iter(VALUES_OF_TWO[:logged])

    def one(s: Any) -> torch.nn.Linear:
        torch.manual_seed(len(weights))
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            for x in DataLoader(torch.ones(4, 1), batch_size=2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            weights.append(model.weight.item())
            for value in itertools.islice(values, 1):
                s.log("val", value)
            if len(weights) > stop_at:
                raise KeyboardInterrupt
        return model

    with session(checkpoint=folder, monitor="val", **options) as s:
        for _ in range(2):
            model = one(s)
    return {"epochs": weights, "end": model.weight.item()}


@pytest.mark.parametrize("keep", [1, None])
def test_the_best_is_that_of_the_last_training(tmp_path: Path, keep: int | None) -> None:
    whole = trainings(tmp_path / "whole", load_best=True, keep=keep)
    assert whole["end"] == whole["epochs"][3], "of its first epoch"
    with pytest.raises(KeyboardInterrupt):
        trainings(tmp_path / "cut", stop_at=4, load_best=True, keep=keep)
    assert trainings(tmp_path / "cut", load_best=True, keep=keep)["end"] == whole["end"]
    of_first = best(tmp_path / "whole")
    assert of_first is not None and of_first.name == "step-00000004", "its models, and its value"


def test_a_last_training_without_a_value_is_named(tmp_path: Path) -> None:
    words = "has a value of 'val' after step 6, at which the newest model begins, so"
    with pytest.warns(UserWarning, match=words):
        trainings(tmp_path, logged=3, load_best=True)


def test_models_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    trainings(tmp_path, keep=None)
    last = automatic(tmp_path)[-1]
    files = {one.name for one in last.glob("model*.safetensors")}
    assert len(files) == 2, files
