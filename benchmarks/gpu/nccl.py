"""(f) Ranks that share one GPU over NCCL's sockets: numbers, collectives, waits, faults.

    python benchmarks/gpu/nccl.py [--gloo] [JOB ...]

A job is a function of this file, which its ranks run together. With ``--gloo`` they train on the
CPU, for machines without a GPU. Two processes share a GPU in time slices, so no times are compared:
what costs time over NCCL is the number of collectives, and the waits of the host.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import row
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

PART = "nccl"
DIVERGING = (
    "left_out",
    "called_twice",
    "other_model",
    "reduced_alone",
    "reduced_in_turn",
    "gathered_alone",
)
RANKS = {
    "strategies": 2,
    "precisions": 2,
    "uneven": 3,
    "collectives": 2,
    "values": 2,
    "checkpoints": 2,
    "raises": 2,
    "killed": 2,
    "frozen": 2,
    **dict.fromkeys(DIVERGING, 2),
}
FAULTS = ("raises", "killed", "frozen")
STEADY, SAMPLES, WIDTH, CLASSES = 8, 96, 16, 5
CPU = "--gloo" in sys.argv
DEVICE = torch.device("cpu") if CPU else torch.device("cuda", 0)
OPTIONS: dict[str, Any] = {"devices": 1, "accelerator": "cpu" if CPU else "gpu", "batch": "global"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make(optimizer: str = "AdamW") -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(3)]
    model = nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES)).to(DEVICE)
    return model, getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2)


def batches(samples: int = SAMPLES) -> Iterator[tuple[Tensor, Tensor]]:
    seeded = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 8, generator=seeded)
    y = torch.randint(CLASSES, (samples,), generator=seeded)
    order = torch.Generator().manual_seed(2)
    for one, other in DataLoader(TensorDataset(x, y), 12, shuffle=True, generator=order):
        yield one.to(DEVICE), other.to(DEVICE)


def parameters(model: nn.Module) -> Tensor:
    values = (value for value in model.state_dict().values())
    return torch.cat([whole(value).reshape(-1).float().cpu() for value in values])


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def train(
    window: int = 1,
    dtype: torch.dtype | None = None,
    samples: int = SAMPLES,
    optimizer: str = "AdamW",
) -> Tensor:
    """The loop that a session changes: a step every ``window`` batches, if it makes windows."""
    model, optimizer = make(optimizer)
    scaler = torch.amp.GradScaler(DEVICE.type) if dtype is torch.float16 else None
    for index, (x, y) in enumerate(batches(samples)):
        with torch.autocast(DEVICE.type, dtype) if dtype else nullcontext():
            loss = cross_entropy(model(x), y) / window
        (scaler.scale(loss) if scaler else loss).backward()
        if (index + 1) % window == 0:
            scaler.unscale_(optimizer) if scaler else None
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer) if scaler else optimizer.step()
            scaler.update() if scaler else None
            optimizer.zero_grad()
    return parameters(model)


def compare(name: str, expected: Tensor, **options: Any) -> None:
    """One row: the largest difference of a session's parameters from those of one process."""
    from torchbus import session
    from torchbus.errors import UsageError

    loop = {name: options.pop(name) for name in ("samples", "optimizer") if name in options}
    try:
        with session(**OPTIONS | options) as s:
            found, size, is_main = train(**loop), s.world_size, s.is_main
            backend = dist.get_backend()
    except UsageError as error:
        if os.environ["RANK"] == "0":
            print(f"{name}: refused: {error}")
        return
    if is_main:
        difference = float((found - expected).abs().max() / expected.abs().max())
        row(PART, f"{name}, {size} ranks over {backend}: from one process", difference, "")


def strategies() -> None:
    expected = train()
    for name in ("ddp", "ddp_sharded", "dp", "fsdp", "tp"):
        compare(name, expected, strategy=name)
    windows = train(window=2)
    for name in ("ddp", "ddp_sharded", "fsdp"):
        compare(
            f"{name}, accumulate_grad_batches=2",
            windows,
            strategy=name,
            accumulate_grad_batches=2,
        )
    compare("ddp, ema_decay=0.9", expected, strategy="ddp", ema_decay=0.9)


def precisions() -> None:
    """With SGD: Adam makes a rounding of a small gradient as large as a step."""
    by_hand = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    for precision, dtype in by_hand.items():
        if CPU and dtype is torch.float16:
            continue
        expected = train(dtype=dtype, optimizer="SGD")
        for name in ("ddp", "fsdp"):
            compare(
                f"{name}, {precision}",
                expected,
                strategy=name,
                precision=precision,
                optimizer="SGD",
            )
    overflow()


def overflow() -> None:
    """A gradient that is infinite on one rank alone: all ranks skip that step."""
    from torchbus import session

    if CPU:
        return
    with session(**OPTIONS, strategy="ddp", precision="16-mixed") as s:
        model, optimizer = make()
        for index, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            before = parameters(model)
            (loss * (float("inf") if index == 3 and s.rank == 1 else 1.0)).backward()
            optimizer.step()
            if index == 3:
                skipped = torch.equal(before, parameters(model))
        equal = torch.equal(*s.all_gather(parameters(model).to(DEVICE)))
        s.print(f"an overflow on rank 1: the step was skipped on all ranks: {skipped and equal}")
        assert skipped and equal


def uneven() -> None:
    expected = train(samples=92)
    for name in ("ddp", "fsdp", "dp", "ddp_sharded"):
        compare(f"{name}, an uneven last batch", expected, strategy=name, samples=92)


def collectives() -> None:
    from torchbus import session

    with group():
        by_hand = {"ddp": count(ddp_by_hand()), "fsdp": count(fsdp_by_hand(), True)}
    for name, (expected, _) in by_hand.items():
        with session(**OPTIONS | {"batch": "per_device"}, strategy=name) as s:
            calls, waits = count(make())
            if s.is_main:
                steady = f"in {STEADY} steady steps, 2 ranks"
                row(PART, f"{name}: collectives {steady}", calls, "", expected)
                row(PART, f"{name}: waits of the host {steady}", waits, "")


@contextmanager
def group() -> Iterator[None]:
    dist.init_process_group("gloo" if CPU else "nccl", device_id=None if CPU else DEVICE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def ddp_by_hand() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = DistributedDataParallel(make()[0])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def fsdp_by_hand() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make()[0]
    for block in model[1:4]:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def count(
    parts: tuple[nn.Module, torch.optim.Optimizer], reduce_loss: bool = False
) -> tuple[int, int]:
    """Collectives of all steady steps together, as the profiler sees them, and the host's waits.

    ``reduce_loss``: by hand, as a session reduces the loss under fsdp. Under ddp it is in a bucket.
    """
    model, optimizer = parts
    x, y = next(batches())

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            if reduce_loss:
                dist.all_reduce(loss.detach())
            optimizer.step()

    steps(2 * STEADY)
    waits = host_waits(lambda: steps(STEADY))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        steps(STEADY)
    calls = sum(one.count for one in seen.key_averages() if one.key.startswith("c10d::"))
    return calls, waits


def host_waits(run: Callable[[], None]) -> int:
    if CPU:
        run()
        return 0
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in caught)


def values() -> None:
    """What a loop reads: losses, logged means, gathered tensors, metrics, a batch size."""
    from torchbus import session

    with session("scale", **OPTIONS, strategy="ddp", logger=None) as s:
        model, optimizer = make()
        for x, y in batches():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            same = torch.equal(*s.all_gather(loss.detach()))
        check(s, "loss.item() is that of the whole batch on all ranks", same)
        mine = torch.arange(2 + s.rank, device=DEVICE)
        parts = [part.tolist() for part in s.all_gather(mine)]
        check(s, "s.all_gather of unequal sizes", parts == [[0, 1], [0, 1, 2]])
        total = s.reduce(torch.ones((), device=DEVICE), "sum")
        check(s, "s.reduce", float(total) == 2)
        check(s, "find_batch_size where one rank has less memory", batch_size(s, model) <= 20)
        whole_right = right(model)
    with session(**OPTIONS, strategy="ddp", shard_eval=True) as s:
        divided = s.reduce(right(model), "sum")
        check(s, "divided evaluation counts as undivided", int(divided) == int(whole_right))


def batch_size(s: Any, model: nn.Module) -> int:
    def attempt(size: int) -> None:
        cross_entropy(
            model(torch.zeros(size, 8, device=DEVICE)), torch.zeros(size).long().to(DEVICE)
        ).backward()
        if s.rank == 1 and size > 20:
            raise RuntimeError("CUDA out of memory.")

    return int(s.find_batch_size(attempt, 64))


@torch.no_grad()
def right(model: nn.Module) -> Tensor:
    model.eval()
    counts = [(model(x).argmax(1) == y).sum() for x, y in batches()]
    model.train()
    return torch.stack(counts).sum()


def check(s: Any, what: str, found: bool) -> None:
    s.print(f"{what}: {found}")
    assert found, what


def checkpoints() -> None:
    """A run saved in shards after some steps and resumed ends as the one that was not stopped."""
    from torchbus import session

    def run(s: Any, folder: str, stops: bool) -> Tensor | None:
        model, optimizer = make()
        for _ in s.epochs(2):
            for index, (x, y) in enumerate(batches()):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                if stops and index == 4:
                    s.save(folder)
                    return None
        return parameters(model)

    for name in ("ddp", "fsdp"):
        folder = Path(os.environ["KIT_FOLDER"], name)
        options = OPTIONS | {"strategy": name, "sharded_save": name == "fsdp"}
        with session(**options) as s:
            expected = run(s, "", False)
        with session(**options) as s:
            run(s, str(folder), True)
        new = Path(os.environ["KIT_FOLDER"], f"{name}-new")
        with session(**options, resume=str(folder), checkpoint=str(new)) as s:
            found = run(s, "", False)
            assert found is not None and expected is not None
            what = f"{name}: a resumed run is the one that was not stopped, bit for bit"
            check(s, what, torch.equal(found, expected))


def fail(how: Callable[[], None]) -> None:
    from torchbus import session

    with session(**OPTIONS, strategy="ddp", hang_timeout=5.0, timeout_s=20.0) as s:
        model, optimizer = make()
        for step in range(1000):
            for x, y in batches():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            if step == 2 and s.rank == 1:
                os.mknod(Path(os.environ["KIT_FOLDER"], "fails"))
                how()


def raises() -> None:
    def error() -> None:
        raise ValueError("a fault of the script")

    fail(error)


def killed() -> None:
    fail(lambda: os.kill(os.getpid(), signal.SIGKILL))


def frozen() -> None:
    """The rank's stream is busy for minutes, and its loop waits for it without end."""

    def freeze() -> None:
        if CPU:
            torch.linalg.svd(torch.randn(8000, 8000))
        for _ in range(600):
            torch.cuda._sleep(10**9)
        torch.cuda.synchronize()

    fail(freeze)


def diverge(odd: Callable[[Any, nn.Module, Tensor], None]) -> None:
    """Under fsdp, ranks that make other collectives than each other, after usual steps."""
    from torchbus import session

    with session(**OPTIONS, strategy="fsdp", hang_timeout=5.0, timeout_s=20.0) as s:
        (model, optimizer), (x, y) = make(), next(batches())
        for number in range(16):
            if number == 12:
                if s.is_main:
                    os.mknod(Path(os.environ["KIT_FOLDER"], "fails"))
                odd(s, model, x)
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        print("trained to the end")


def left_out() -> None:
    def odd(s: Any, model: nn.Module, x: Tensor) -> None:
        loss = model(x).mean()
        if s.is_main:
            loss.backward()

    diverge(odd)


def called_twice() -> None:
    diverge(lambda s, model, x: model(x) if s.is_main else None)


def other_model() -> None:
    other = make()[0]
    diverge(lambda s, model, x: model(x) if s.is_main else other(x))


def reduced_alone() -> None:
    diverge(lambda s, model, x: s.reduce(x.sum()) if s.is_main else None)


def reduced_in_turn() -> None:
    def odd(s: Any, model: nn.Module, x: Tensor) -> None:
        loss = model(x).mean()
        if s.is_main:
            s.reduce(x.sum())
        loss.backward()
        if not s.is_main:
            s.reduce(x.sum())

    diverge(odd)


def gathered_alone() -> None:
    diverge(lambda s, model, x: s.all_gather(x) if s.is_main else None)


def start(job: str) -> bool:
    """Run the ranks of a job; print the rows of rank 0, and what is wrong."""
    from torchbus_testing.environments import run_on_separate_hosts

    words = [__file__, "--job", job, *(["--gloo"] if CPU else [])]
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KIT_FOLDER"] = folder
        try:
            ended = run_on_separate_hosts(words, RANKS[job], 90)
        except TimeoutError as error:
            print(f"{job}: {error}", file=sys.stderr)
            return False
        fault = Path(folder, "fails")
        failed_s = time.time() - fault.stat().st_mtime if fault.exists() else 0.0
    print("".join(one.stdout for one in ended), end="")
    statuses = [one.status for one in ended]
    orphans = [process for one in ended for process in one.orphans]
    print(f"{job}: exit statuses {statuses}, {time.time() - begun:.1f} s, left: {orphans or 0}")
    if job in FAULTS:
        return report_fault(job, ended, failed_s) and not orphans
    if job in DIVERGING:
        return report_divergence(job, ended, failed_s) and not orphans
    if any(statuses):
        print("\n".join(one.stderr for one in ended)[-3000:], file=sys.stderr)
    return not any(statuses) and not orphans


def report_fault(job: str, ended: list[Any], seconds: float) -> bool:
    """A row: seconds from the fault to the end of the last rank. The others must name rank 1."""
    row(PART, f"rank 1 {job}: the last rank has ended, none with status 0", seconds, "s")
    print("\n".join(ended[0].stderr.splitlines()[:12]))
    return all(one.status for one in ended) and "rank 1" in ended[0].stderr


def report_divergence(job: str, ended: list[Any], seconds: float) -> bool:
    """A row: seconds from the divergence to the end of the last rank. An error must say it."""
    row(PART, f"fsdp, {job}: the last rank has ended, none with status 0", seconds, "s")
    print("\n".join(ended[0].stderr.splitlines()[:12]))
    return all(one.status for one in ended) and "RanksDiverged" in ended[0].stderr


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(RANKS)}")
    for name in ("small", "sim", "gloo"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--job", choices=RANKS)
    given = parser.parse_args()
    if given.job:
        globals()[given.job]()
    elif given.sim or not (CPU or torch.cuda.is_available()):
        print("NCCL needs a GPU of NVIDIA: with --gloo the ranks train on the CPU")
    else:
        ended_well = [start(job) for job in given.jobs or RANKS]
        sys.exit(not all(ended_well))


if __name__ == "__main__":
    main()
