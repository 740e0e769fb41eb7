"""torchbus-throughput on several ranks: its counts against those of one plain process."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "throughput.py"
pytestmark = pytest.mark.timeout(200)


def told(way: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """What rank 0 of a session was told."""
    words = [json.dumps({"strategy": "ddp"} | options), json.dumps(way or {})]
    result = fork_script(SCRIPT, *words, timeout_s=120)
    assert result.ok(), result
    lines = [line.partition(" ")[::2] for line in result.stdout.splitlines()]
    found = dict(line for line in lines if line[0] in ("found", "throughput:"))
    return {"printed": found.get("throughput:"), **json.loads(found["found"])}


def plainly(ranks: int, every: int = 2, window: int = 1) -> list[list[int]]:
    """Step, samples and tokens of each window, counted in one process with the global batch."""
    loop = runpy.run_path(str(SCRIPT))
    batches = [
        [len(x), loop["words"]([x])]
        for _ in range(2)
        for x in loop["data"]().tensors[0].split(4 * ranks)
    ]
    per_epoch = len(batches) // 2
    steps, counted = [], [0, 0]
    for number, (samples, tokens) in enumerate(batches):
        counted = [counted[0] + samples, counted[1] + tokens]
        if (number % per_epoch + 1) % window == 0:
            steps.append(counted)
            counted = [0, 0]
    found = []
    for last in range(every, len(steps) + 1, every):
        sums = [sum(column) for column in zip(*steps[last - every : last], strict=True)]
        found.append([last, *sums])
    return found


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_counts_are_those_of_one_process(ranks: int) -> None:
    found = told(devices=ranks)
    # the first window is empty: it begins anew when the FLOPs of step 2 are counted
    assert found["windows"][1:] == [[*one, ranks] for one in plainly(ranks)[1:]]
    assert found["windows"][0] == [2, None, None, ranks]
    assert found["printed"] is None


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_windows_of_accumulation(ranks: int) -> None:
    found = told({"window": 2, "epochs": 2}, devices=ranks)
    assert found["windows"][1:] == [[*one, ranks] for one in plainly(ranks, window=2)[1:]]


def test_rates_are_sums_over_devices_and_logged() -> None:
    found = told(devices=3)
    for place, window in enumerate(found["windows"]):
        if place == 0:
            continue
        parts = [rank[place] for rank in found["devices"]]
        assert found["rates"][place][0] == pytest.approx(sum(parts))
        for name, value in zip(found["logged"], found["rates"][place], strict=True):
            assert dict(map(tuple, found["logged"][name]))[window[0]] == pytest.approx(value)
    names = ("flops_per_sec", "mfu", "samples_per_sec", "tokens_per_sec")
    expected = {f"throughput/{name}" for name in (*names, "steps_per_sec")}
    expected |= {f"throughput/device/{name}" for name in names}
    assert {name for name in found["names"] if name.startswith("throughput/")} == expected


def test_operations_are_those_of_this_ranks_samples() -> None:
    found = told(devices=2)
    per_sample = 2 * 2 * 6 * 5 + 3 * 2 * 5
    # 41 samples by 2 ranks with 4 each: rank 0 has 4, and of the last one 1
    samples = [8, 5, 8, 8, 5]
    assert found["operations"][1:] == pytest.approx([one * per_sample for one in samples])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_training_is_the_same_bit_for_bit(strategy: str) -> None:
    options = {"strategy": strategy, "devices": 2, "accelerator": "cpu"}
    with_it = told(model_summary=True, **options)
    without = told({"measured": False}, **options)
    assert with_it["bits"] == without["bits"]


def test_without_a_logger_rank_0_prints_a_line() -> None:
    found = told({"logs": False}, devices=2)
    tokens = sum(tokens for _, _, tokens in plainly(2, every=1))
    assert found["printed"].startswith("12 steps in ")
    assert "; 82 samples, " in found["printed"] and f"; {tokens} tokens, " in found["printed"]


def test_a_rank_that_fails_keeps_nobody() -> None:
    options = {"strategy": "ddp", "devices": 3}
    result = fork_script(SCRIPT, json.dumps(options), '{"leaves_at": 4}', timeout_s=60)
    assert result.ok(1) and "rank 1 has had enough" in result.stderr


GAN = """
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

with session(devices=2, launch="fork", throughput_every=2, flops=True) as s:
    torch.manual_seed(0)
    nets = [torch.nn.Linear(4, size).double() for size in (1, 4)]
    (d, of_d), (g, of_g) = [(net, torch.optim.SGD(net.parameters(), lr=0.1)) for net in nets]
    x = torch.randn(48, 4).double()
    for real, noise in DataLoader(TensorDataset(x, x.flip(0)), batch_size=4):
        of_d.zero_grad()
        fake = g(noise)
        (0.5 * (d(real).square().mean() + (d(fake.detach()) - 1).square().mean())).backward()
        of_d.step()
        of_g.zero_grad()
        (0.5 * (1 - d(fake)).square().mean()).backward()
        of_g.step()
    s.barrier()
    if s.is_main:
        time.sleep(1)  # the other rank leaves the block meanwhile
    last = s.throughput()
    s.print("found", last.step, last.samples, last.device.flops_per_sec * last.seconds / 8)
"""


def test_two_models_under_a_count() -> None:
    """The strategy reads the loss's graph while operations are counted."""
    result = fork_script(GAN, timeout_s=60)
    assert result.ok(), result
    step, samples, operations = result.stdout.splitlines()[0].split()[1:]
    d, g = 2 * 4, 2 * 4 * 4
    # G forward; D forward and the gradient of its weight twice; both again for G's step
    expected = g + 2 * 2 * d + 3 * d + g
    assert (step, samples) == ("6", "16") and float(operations) == pytest.approx(expected)
