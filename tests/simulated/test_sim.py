"""Loops of users on the simulated accelerator, with two ranks, against one process on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import torchbus_simulator as accelerator
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
REASON = accelerator.missing()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(400),  # the first test may have to build the device
]
EVERYTHING = {
    "plugins": ["log", "progress"],
    "throughput_every": 2,
    "tokens": 0,
    "flops": True,
    "precision": "bf16-mixed",
    "gradient_clip_val": 1.0,
    "accumulate_grad_batches": 2,
}
OTHERS = ("ddp_sharded", "dp")
STEADY = 6
"""Batches after which nothing is new: three steps of two batches."""
LEARNING = 10
"""Steps in which ranks under fsdp compare what the terms of a loss count."""


def waits_of(**options: Any) -> tuple[list[list[str]], bool, float]:
    """The waits of each step, whether the ranks are equal, and the distance to one process."""
    result = fork_script(SCRIPTS / "sim_steady.py", json.dumps(options), timeout_s=380)
    assert result.ok(), result
    steps, equal, distance = result.stdout.splitlines()
    return json.loads(steps), equal == "True", float(distance)


def test_a_steady_step_with_every_feature_never_waits() -> None:
    steps, equal, distance = waits_of(**EVERYTHING)
    assert steps[STEADY:] == [[]] * (len(steps) - STEADY)
    assert equal and distance < 0.1  # bfloat16 against float32


@pytest.mark.slow
def test_a_loop_that_reads_its_loss_waits_for_that_alone() -> None:
    steps, equal, distance = waits_of(reads=True)
    assert [len(step) for step in steps[3:]] == [1] * (len(steps) - 3)
    assert all("item at sim_steady.py" in step[0] for step in steps[3:])
    assert equal and distance < 2e-6


@pytest.mark.slow
def test_the_loss_scaler_reads_one_number_in_each_step() -> None:
    """As torch's GradScaler, which skips a step by the host."""
    steps, equal, distance = waits_of(precision="16-mixed")
    assert [len(step) for step in steps[STEADY:]] == [1] * (len(steps) - STEADY)
    assert all("item at scaling.py" in step[0] for step in steps[STEADY:])
    assert equal and distance < 0.01  # float16 against float32


@pytest.mark.slow
def test_fsdp_waits_for_nothing_as_fully_shard_by_hand(tmp_path: Path) -> None:
    def waits(how: str) -> Any:
        result = fork_script(SCRIPTS / "sim_fsdp.py", how, tmp_path / "store", timeout_s=380)
        assert result.ok(), result
        return json.loads(result.stdout.splitlines()[-1])

    assert waits("session")[LEARNING:] == waits("hand")[LEARNING:] == [[]] * 14


@pytest.mark.slow
def test_digits_equal_one_process_on_the_cpu() -> None:
    pytest.importorskip("sklearn")
    result = fork_script(SCRIPTS / "sim_digits.py", EXAMPLES, timeout_s=380)
    assert result.ok(), result
    placed, compared = result.stdout.splitlines()
    distance, same_accuracy = compared.split()
    assert placed == "sim:0 True"
    assert float(distance) < 1e-4 and same_accuracy == "True"


@pytest.mark.parametrize(
    "strategy", ["fsdp", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_other_strategies_are_exact(strategy: str) -> None:
    result = fork_script(
        SCRIPTS / "sim_loops.py", "to", json.dumps({"strategy": strategy}), timeout_s=380
    )
    assert result.ok(), result
    assert result.stdout.splitlines()[-1] == "True True"


WAYS = [
    pytest.param("first", marks=[]),
    *(pytest.param(way, marks=pytest.mark.slow) for way in ("to", "method", "default")),
]


@pytest.mark.parametrize("way", [*WAYS, "nothing"])
def test_however_a_loop_names_its_device(way: str) -> None:
    result = fork_script(SCRIPTS / "sim_loops.py", way, '{"strategy": "ddp"}', timeout_s=380)
    assert result.ok(), result
    assert result.stdout.splitlines() == ["sim:0 simccl True", "True True"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "told"), [([1, 2], "sim:0 simccl True"), ([2], "sim:2 alone True")]
)
def test_the_devices_that_a_list_names(devices: list[int], told: str) -> None:
    """Each of several ranks sees only its own, as number 0."""
    options = json.dumps({"strategy": "ddp", "devices": devices})
    result = fork_script(SCRIPTS / "sim_loops.py", "to", options, timeout_s=380)
    assert result.ok(), result
    assert result.stdout.splitlines() == [told, "True True"]


def test_a_full_device_gives_a_smaller_batch() -> None:
    result = fork_script(SCRIPTS / "sim_memory.py", timeout_s=380)
    assert result.ok(), result
    assert result.stdout.splitlines() == ["444 True True", "True", "0 True"]


KINDS = [
    pytest.param({"strategy": "ddp", "precision": "bf16-mixed"}, marks=pytest.mark.slow),
    {"strategy": "ddp", "precision": "16-mixed"},
    pytest.param({"strategy": "fsdp", "sharded_save": True}, marks=pytest.mark.slow),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", KINDS)
def test_a_resumed_loop_draws_the_numbers_of_the_device_again(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Also if each rank writes its shards with torch.distributed.checkpoint."""

    def run(folder: str, cut: int) -> Any:
        words = (tmp_path / folder, cut, json.dumps(options))
        return fork_script(SCRIPTS / "sim_resume.py", *words, timeout_s=280)

    whole = run("whole", 0)
    assert whole.ok(), whole
    assert "['sim:0', 'sim:0'] sim:0" in whole.stdout
    shards = [path.name for path in (tmp_path / "whole").rglob("part-*")]
    assert bool(shards) == ("sharded_save" in options)
    assert run("cut", 4).status == 3
    resumed = run("cut", 0)
    assert resumed.ok() and resumed.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]


REFUSED = """\
accelerator='tpu': torch
accelerator='smi' is unknown (did you mean 'sim'
accelerator='xpu', but torch sees no GPU: use accelerator='cpu'
devices=[0, 3]: there is no sim device 3; torch sees 3 sim devices
devices=4, but torch sees 3 sim devices: ask for at most 3
backend='nccl'
backend='gloo' does not serve sim: use backend='simccl', or leave it out
prefetch=2: it must be 0 or 1
launch="fork", but this process has called backward() while torch sees an accelerator
sim:0 sim:2 sim:1 cpu cpu
[0, 1, 2]
launch="fork", but sim is already initialised in this process: move the first .sim()"""


def test_what_is_refused_before_anything_starts() -> None:
    result = fork_script(SCRIPTS / "sim_refused.py", timeout_s=380)
    assert result.ok(), result
    lines = result.stdout.splitlines()
    assert [
        line.startswith(words) for line, words in zip(lines, REFUSED.splitlines(), strict=True)
    ] == [True] * len(lines), lines
    assert 'the first line that uses it is line 40: x = torch.ones(3).to("sim")' in lines[-1]


@pytest.mark.parametrize(
    ("way", "found"),
    [
        ("stops", "rank 0 has waited 4 s (timeout_s) in a collective on its device: rank 1 is"),
        ("breaks", "rank 1 ended its loop after 1 backward calls, while rank 0 waits in a"),
    ],
)
def test_a_rank_that_waits_for_its_device_waits_for_the_rank_that_has_begun_less(
    way: str, found: str
) -> None:
    result = fork_script(SCRIPTS / "sim_hang.py", way, timeout_s=380)
    assert result.ok(1) and f"RanksDiverged: {found}" in result.stderr


@pytest.mark.parametrize("by", ["range", "epochs"])
def test_tensors_of_a_loop_that_resumes_are_on_the_device_again(tmp_path: Path, by: str) -> None:
    source = (SCRIPTS / "sim_resumed.py").read_text()
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
    assert fork_script(source, "11", by, cwd=killed).status != 0
    resumed = fork_script(source, "-1", by, cwd=killed).ok().stdout
    assert resumed == fork_script(source, "-1", by, cwd=whole).ok().stdout
    assert resumed.startswith("sim:0 ")
