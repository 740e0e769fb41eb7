"""Bounds, lines and samples, by numbers made up for the purpose."""

from __future__ import annotations

import json

import pytest
import torch

from torchbus_strategy.checks import rounding
from torchbus_verify.compare import output, samples
from torchbus_verify.compare.difference import distance
from torchbus_verify.record.writing import RankRecord, RecordWriter


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float32", torch.float32), ("float64", torch.float64)]
)
@pytest.mark.parametrize("terms", [10, 1000, 10_000])
def test_sums_in_another_order_stay_within_the_bound(dtype, kind, terms):
    values = torch.randn(
        200, terms, generator=torch.Generator().manual_seed(terms), dtype=torch.float64
    ).to(kind)
    one, other = torch.zeros(200, dtype=kind), torch.zeros(200, dtype=kind)
    for number in range(terms):
        one, other = one + values[:, number], other + values[:, -1 - number]
    size = values.double().norm(dim=1)
    assert 0 < ((one - other).abs() / size).max() < rounding.of_sums(rounding.unit(kind), terms)


def test_the_bound_is_tight_enough_for_a_lost_sample():
    assert (
        rounding.of_sums(rounding.unit(torch.float32), 10**5, 20) < 1e-2
        and rounding.of_sums(rounding.unit(), 10**6, 20) < 1e-10
    )


def test_nan_and_infinity_are_the_same_as_themselves():
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    assert distance(odd, odd.clone()) == 0.0
    assert distance(odd, torch.tensor([0.0, float("inf"), 1.0])) == float("inf")
    assert distance(torch.zeros(2), torch.zeros(2)) == 0.0 and distance(
        torch.tensor([1.0]), torch.tensor([1.5])
    ) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("loss 0.1234", "loss 0.1235", True),
        ("loss 0.1234", "loss 0.1239", False),
        ("8/60", "16/60", False),
        ("epoch 1 lr 1e-05", "epoch 1 lr 1e-05", True),
        ("epoch 1 done", "epoch 1 over", False),
        ("loss nan", "loss nan", True),
    ],
)
def test_lines(ours, theirs, same):
    assert output.alike(ours, theirs) is same


def test_numbers_of_ranks_that_add_up():
    line = output.LineDifference(0, "seen 4 of 60: 0.5", "seen 8 of 60: 0.5")
    assert output.sums(line, [["seen 4 of 60: 0.5"], ["seen 4 of 60: 0.5"]])
    assert not output.sums(line, [["seen 4 of 60: 0.5"], ["seen 5 of 60: 0.5"]])


def record(folder, *batches):
    """Batches of one pass, each of which feeds a backward."""
    writer = RecordWriter(folder, keep_tensors=False)
    for number, indices in enumerate(batches):
        writer.write(
            "batch", loader=0, of_pass=0, batch=number, dataset="D[9]", samples=indices, trains=True
        )
        writer.write("backward", number=number)
    writer.close()
    return RankRecord(folder)


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        (([[0, 1], [4]], [[2, 3], [5]]), ""),
        (
            ([[0, 1], [4]], [[2, 3], [2, 3]]),
            "pass 1, batch 2: unused: 5; used more than once, or from elsewhere: 2, 3",
        ),
        (
            ([[2, 3], [4, 5]], [[0, 1], [4, 5]]),
            "pass 1, batch 1: the same samples in another order",
        ),
        (
            ([[0, 1], [4, 5], [6]], [[2, 3], [4, 5]]),
            "rank 0 took 1 batches that the plain run did not take",
        ),
    ],
)
def test_samples(tmp_path, ranks, problem):
    plain = record(tmp_path / "plain", [0, 1, 2, 3], [4, 5])
    ours = [record(tmp_path / f"rank{number}", *batches) for number, batches in enumerate(ranks)]
    found = samples.compare(ours, plain).problems
    assert (problem in found[0]) if problem else not found


def test_every_rank_trained_on_everything(tmp_path):
    plain = record(tmp_path / "plain", [0, 1, 2, 3])
    assert samples.compare(
        [record(tmp_path / f"rank{one}", [0, 1, 2, 3]) for one in range(2)], plain
    ).twice == ("D[9]",)


def test_tensors_come_back_as_they_were(tmp_path):
    writer = RecordWriter(tmp_path, keep_tensors=True)
    large = torch.randn(3_000_000)
    given = {
        "half": torch.tensor([1.5, 2.0], dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "none": None,
        "large": large,
    }
    writer.write("step", tensors=writer.tensors(given))
    writer.close()
    back = RankRecord(tmp_path)
    found = back.tensors(back.of("step")[0]["tensors"])
    assert (
        found["half"].values().tolist() == [1.5, 2.0]
        and found["count"].values().tolist() == [7]
        and found["none"] is None
    )
    assert found["large"].is_thinned and found["large"].values()[-1] == pytest.approx(
        float(large.double().norm())
    )
    json.dumps(back.events)
