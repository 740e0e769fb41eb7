"""Shorter passes: how many batches a loop gets, which ones, and what a try leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.forking import fork_script
from torchbus_testing.state import assert_torch_unchanged, torch_state

LOOP = """
import json, sys, torch
from torchbus import session
from torch.utils.data import DataLoader, TensorDataset
seen = []
for ranks, options in json.loads(sys.argv[1]):
    with session(strategy="ddp", devices=ranks, launch="fork", **options) as s:
        torch.manual_seed(0)
        x = torch.arange(48.0).reshape(12, 4) / 48
        train = DataLoader(TensorDataset(x, x.sum(1)), batch_size=ranks and 6 // ranks, shuffle=True)
        test = DataLoader(TensorDataset(x), batch_size=2)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lengths, batches = [len(train)], []
        for epoch in range(2):
            model.train()
            for a, b in train:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(a)[:, 0], b).backward()
                optimizer.step()
                batches.append(len(a))
            model.eval()
            batches.append([len(a) for a, in test])
            lengths += [len(train), len(test)]
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
        everywhere = s.all_gather_object(weights)
    seen.append({"lengths": lengths, "batches": batches, "weights": weights, "same": everywhere.count(weights)})
print(json.dumps(seen))
"""


def test_ranks_compute_what_one_process_does() -> None:
    options = [{"limit_train_batches": 1, "limit_eval_batches": 0.5}, {"overfit_batches": 1}]
    asked = [(ranks, one) for one in options for ranks in (1, 2, 3)]
    result = fork_script(LOOP, json.dumps(asked))
    assert result.ok(), result
    found = json.loads(result.stdout)
    for (ranks, option), one in zip(asked, found, strict=True):
        evaluated = 3 if "limit_eval_batches" in option else 1
        assert one["lengths"] == [1, 1, evaluated, 1, evaluated]
        assert one["batches"] == [6 // ranks, [2] * evaluated] * 2
        assert one["same"] == ranks
    for first, *others in (found[:3], found[3:]):
        for other in others:
            assert other["weights"] == pytest.approx(first["weights"], abs=1e-6)


def test_the_summary_does_not_count_a_range_test(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchbus_scale")
    with session(fast_dev_run=2) as s:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(torch.ones(8, 1), batch_size=2)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        s.find_lr(step, optimizer, loader)
        for x in loader:
            step(x)
    out, error = capfd.readouterr()
    assert "training: the loader over Tensor, passes: 1, batches on rank 0: 2" in out + error


def batches(loader: DataLoader[Any], passes: int = 1) -> list[list[int]]:
    return [[int(x) for x in batch] for _ in range(passes) for batch in loader]


def ten(**options: Any) -> DataLoader[Any]:
    return DataLoader(range(10), batch_size=2, **options)  # type: ignore[arg-type]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


@pytest.mark.parametrize(
    ("limit", "expected"), [(2, 2), (9, 5), (0, 0), (0.5, 2), (1.0, 5), (None, 5)]
)
def test_an_int_is_a_number_and_a_float_a_part(limit: float | None, expected: int) -> None:
    before = torch_state()
    loader = ten()
    with session(limit_train_batches=limit):
        assert len(loader) == expected == len(batches(loader)) == len(iter(loader))
    assert len(loader) == 5 == len(batches(loader))
    assert_torch_unchanged(before)


def test_training_and_evaluation_have_their_own() -> None:
    model, data = torch.nn.Linear(1, 1), TensorDataset(torch.ones(10, 1))
    train, test = DataLoader(data), DataLoader(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(limit_train_batches=3, limit_eval_batches=4) as s:
        for (x,) in train:
            model(x).mean().backward()
            optimizer.step()
        model.eval()
        assert (len(list(test)), len(test)) == (4, 4)
        assert len(list(train)) == 3, "a loader that has trained trains in eval mode too"
        model.train()
        assert (len(test), len(train)) == (4, 3)
        with torch.no_grad():
            assert len(list(train)) == 4 == len(train)
        assert len(list(train)) == 3 == len(train)
        assert "limit_train_batches=3" in s.explain()


def test_workers_and_streams() -> None:
    with session(limit_train_batches=2):
        assert batches(ten(num_workers=1)) == [[0, 1], [2, 3]]
        assert batches(DataLoader(Stream(), batch_size=3)) == [[0, 1, 2], [3, 4, 5]]
    with (
        session(limit_train_batches=0.5),
        pytest.raises(UsageError, match=r"0\.5 with a loader over Stream, which has no length"),
    ):
        list(DataLoader(Stream()))
    with (
        session(limit_train_batches=0.1),
        pytest.raises(UsageError, match="a loader that has 5 batches is less than one"),
    ):
        list(ten())


def test_windows_of_accumulation_close_at_the_end() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps: list[object] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    with session(limit_train_batches=3, accumulate_grad_batches=2):
        for (x,) in DataLoader(TensorDataset(torch.ones(10, 1))):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    assert len(steps) == 2


def test_the_same_samples_in_each_pass() -> None:
    class Weird(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Any:
            return iter(torch.randperm(10).tolist())

    own = torch.Generator().manual_seed(3)
    with session(overfit_batches=2):
        for loader in (
            ten(shuffle=True),
            ten(shuffle=True, generator=own),
            ten(sampler=Weird()),
            DataLoader(range(10), batch_sampler=[[7, 1], [2, 2], [3]]),  # type: ignore[arg-type]
        ):
            first, second = batches(loader), batches(loader)
            assert first == second and len(first) == 2
        assert [[int(x)] for x in DataLoader(range(4), batch_size=None)] == [[0], [1]]  # type: ignore[arg-type]
    assert len({tuple(one) for one in batches(ten(shuffle=True), 4)}) > 5


DIVIDED = """
import json
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchbus import session

with session(strategy="ddp", devices=2, launch="fork", overfit_batches=2) as s, torch.no_grad():
    loader = DataLoader(range(12), 2, sampler=DistributedSampler(range(12)))
    share, passes = list(loader.sampler), []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        passes.append([x for batch in loader for x in batch.tolist()])
    print(json.dumps(s.all_gather_object([share[:4], *passes])))
"""


def test_the_same_samples_of_a_share_that_the_script_has_divided() -> None:
    result = fork_script(DIVIDED).ok()
    for share, first, second in json.loads(result.stdout):
        assert share == first == second
    assert "divided over the ranks" not in result.stderr  # a warning of what the session divides


def test_a_part_of_the_same_samples() -> None:
    with session(overfit_batches=0.4):
        loader = ten(shuffle=True)
        assert batches(loader) == batches(loader) and len(loader) == 2


def test_a_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = torch.nn.Linear(1, 1), TensorDataset(torch.ones(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logs, saved = tmp_path / "logs", tmp_path / "saved"
    with session(
        fast_dev_run=2, checkpoint=saved, logger="local", log_dir=logs, limit_eval_batches=0.1
    ) as s:
        train, test = DataLoader(data), DataLoader(data)
        epochs = []
        for epoch in s.epochs(5):
            epochs.append(epoch)
            for (x,) in train:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
                s.log("loss", loss)
            with torch.no_grad():
                assert len(list(test)) == 2
        assert epochs == [0]
        s.save(tmp_path / "own")
        s.load(None)  # best(saved)
        s.save_and_leave()
        assert "a try" in s.explain()
    assert not list(tmp_path.iterdir())
    said = capsys.readouterr().err
    assert "the loop ran to its end, with 2 real optimizer steps" in said
    assert "training: the loader over TensorDataset, passes: 1, batches on rank 0: 2" in said
    assert "evaluation: the loader over TensorDataset, passes: 1, batches on rank 0: 2" in said


def one_epoch(path: Path, *, tried: bool) -> None:
    with session("checkpoint", strategy=None, fast_dev_run=tried) as s:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(torch.ones(4, 1))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1, total_steps=len(loader))
        for x in loader:
            model(x).mean().backward()
            optimizer.step()
            schedule.step()
        s.load(path) if tried else s.save(path)
        assert s.global_step == 4


def test_a_try_with_the_checkpoint_of_a_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """It counts its own steps; and the schedule of its short passes is no edit of the script."""
    for tried in (False, True):
        one_epoch(tmp_path / "whole", tried=tried)
    assert "the loop ran to its end, with 1 real optimizer steps;" in capsys.readouterr().err
    assert not [one for one in recwarn if "sets total_steps" in str(one.message)]


FILES = """
import os, shutil, sys, torch
from pathlib import Path
from shutil import copyfile
from torchbus import session
from torch.utils.data import DataLoader, TensorDataset
os.chdir(sys.argv[1])
for name in ("best.pt", "copy.pt"):
    torch.save("real", name)
def train(s):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in s.epochs(1):
        for (x,) in DataLoader(TensorDataset(torch.ones(8, 1))):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    return model
for ranks in (1, 2):
    with session(strategy="ddp", devices=ranks, launch="fork", fast_dev_run=1, checkpoint="runs") as s:
        assert torch.load("best.pt") == "real"
        model = train(s)
        if s.rank == 0:
            torch.save("try", "best.pt")
        s.barrier()
        assert torch.load("best.pt") == "try"
        torch.save(model.state_dict(), "all.pt")
        torch.load("all.pt")
        s.save("runs/own")
        weights = model.weight.detach().clone()
        torch.nn.init.zeros_(model.weight)
        s.load("runs/own")
        assert torch.equal(model.weight, weights)
        for target in ("new.pt", Path("newer.pt")):
            torch.save("later", "last.pt")
            shutil.copy("last.pt", "runs")
            shutil.copyfile("last.pt", "copy.pt")
            copyfile("last.pt", "best.pt")
            os.replace("last.pt", target)
            assert os.path.getsize(target) and not os.path.exists("last.pt")
            for name in ("best.pt", "copy.pt", "runs/last.pt", target):
                with open(name, "rb") as file:
                    assert torch.load(file) == "later"
            s.barrier()
        Path("newer.pt").unlink()
        assert not Path("newer.pt").exists()
    assert torch.load("best.pt") == torch.load("copy.pt") == "real"
print(sorted(os.listdir()), os.listdir("runs"))
"""


def test_a_try_leaves_the_files_of_real_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "step00000001").mkdir(parents=True)
    result = fork_script(FILES, str(tmp_path))
    assert result.ok(), result
    assert result.stdout.strip() == "['best.pt', 'copy.pt', 'runs'] ['step00000001']"


def test_an_error_in_a_try_has_no_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), session(fast_dev_run=True):
        raise KeyError
    assert "ran to its end" not in capsys.readouterr().err


def test_switched_off() -> None:
    with session(fast_dev_run=False, overfit_batches=0.0):
        assert len(batches(ten())) == 5


def test_a_loader_with_an_iter_of_its_own() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter([1, 2, 3])

    data: Dataset[Any] = TensorDataset(torch.ones(3, 1))
    with (
        session(limit_train_batches=1),
        pytest.warns(UserWarning, match="limit_train_batches=1: Own defines its own __iter__"),
    ):
        assert len(list(Own(data))) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fast_dev_run": -1}, "1 batch or more"),
        ({"fast_dev_run": 0.5}, "True, False or a number"),
        ({"limit_train_batches": -1}, "an int is a number of batches"),
        ({"limit_eval_batches": 1.5}, r"from 0\.0 to 1\.0"),
        ({"overfit_batches": "2"}, "a number of batches, or a part"),
        ({"limit_train_batches": True}, "a number of batches, or a part"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
