"""The array of a large order is one for all ranks of a node, in memory that goes with them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from torchbus_sampler.orders.shared import SHARED_FROM
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import start, write_script

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="memory without a name needs Linux"
)

SAMPLES = SHARED_FROM + 5
LOOP = (SCRIPTS / "shared_orders_head.py").read_text()
SAMPLERS = {
    "random": "RandomSampler(range(N), generator=generator)",
    "subset": "SubsetRandomSampler(range(0, 2 * N, 2), generator)",
    "weighted": "WeightedRandomSampler([1.0, 2.0, 3.0], N, generator=generator)",
}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def expected(name: str, count: int) -> tuple[list[int], int]:
    """The first indices of torch's own sampler, and the sum of the generator's state behind its
    first draw.
    """
    names = {"N": SAMPLES, "generator": generator(), "RandomSampler": RandomSampler}
    names |= {
        "SubsetRandomSampler": SubsetRandomSampler,
        "WeightedRandomSampler": WeightedRandomSampler,
    }
    drawn = iter(eval(SAMPLERS[name], names))
    return [next(drawn) for _ in range(count)], int(names["generator"].get_state().sum())


def test_one_array_for_all_ranks() -> None:
    """Mapped to read on each, from one file; the generators stand behind the draws on all; gone
    when the pass is left.
    """
    found = fork_script(f"""{LOOP}
found = {{}}
with session(strategy="ddp", devices=3, launch="fork") as s:
    torch.manual_seed(7)
    found["common"] = steps(s, SubsetRandomSampler(range(0, 2 * N, 2)), 4)
    for name, make in {SAMPLERS!r}.items():
        generator = torch.Generator().manual_seed(5)
        found[name] = steps(s, eval(make), 4, generator), s.all_gather_object(memory())
    N = 10**12
    batches = iter(DataLoader(Large(), 4))
    batches.skip(5 * 10**10)
    found["skipped"] = s.all_gather_object(next(batches).flatten().tolist())
print(json.dumps(found))
""").json()
    for name in SAMPLERS:
        ranks, after = found[name]
        order, state = expected(name, 48)
        assert [index for step in range(4) for rank in ranks for index in rank[0][step]] == order
        assert [rank[2] for rank in ranks] == [state] * 3
        maps = [rank[1][0] for rank in ranks]
        assert [len(one) for one in maps] == [1, 1, 1] and len(
            {inode for one in maps for _, inode in one}
        ) == 1
        assert {permissions for one in maps for permissions, _ in one} == {"r--s"}
        # the one that has drawn keeps the file, for those who come later
        assert sorted(rank[1][1] for rank in ranks) == [1, 1, 2]
        assert after == [[[], 0]] * 3
    assert [index for rank in found["skipped"] for index in rank] == list(
        range(6 * 10**11, 6 * 10**11 + 12)
    )
    torch.manual_seed(7)
    torch.empty((), dtype=torch.int64).random_()  # the loader's own seed
    places = torch.randperm(SAMPLES)[:48].tolist()
    assert [
        index // 2 for step in range(4) for rank in found["common"] for index in rank[0][step]
    ] == places


def test_too_small() -> None:
    """A limit on the size of files is one on memory that is shared as a file."""
    found = fork_script(f"""{LOOP}
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught, session(strategy="ddp", devices=2, launch="fork") as s:
    warnings.simplefilter("always")
    generator = torch.Generator().manual_seed(5)
    ranks = steps(s, {SAMPLERS["random"]}, 4, generator)
print(json.dumps([ranks, [str(one.message) for one in caught]]))
""").json()
    ranks, warned = found
    order, state = expected("random", 32)
    assert [index for step in range(4) for rank in ranks for index in rank[0][step]] == order
    assert [rank[1:] for rank in ranks] == [[[[], 0], state]] * 2
    text = f"the order of {SAMPLES} samples does not fit into shared memory (File too large): each rank keeps its own copy, 0.0 GB"
    assert text in warned


def test_orders_that_differ() -> None:
    """Ranks that would draw other orders share nothing, and are told which backward it was."""
    found = fork_script(f"""{LOOP}
found = {{}}
for name, make in {SAMPLERS!r}.items():
    try:
        with session(strategy="ddp", devices=2, launch="fork") as s:
            generator = torch.Generator().manual_seed(s.rank)
            steps(s, eval(make), 4)
    except RanksDiverged as error:
        found[name] = str(error)
print(json.dumps(found))
""").json()
    assert sorted(found) == sorted(SAMPLERS)
    for text in found.values():
        assert "at backward call 1 the ranks do not have the same order of the data" in text


def test_nothing_is_left_of_ranks_that_are_killed(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        f"""{LOOP}
with session(strategy="ddp", devices=2, launch="fork") as s:
    weight = s.adopt(torch.nn.Parameter(torch.ones(1, dtype=torch.float64)))
    for batch in DataLoader(Large(), 4, shuffle=True):
        (weight * batch).mean().backward()
        print("mapped", memory()[0], os.getpid(), flush=True)
        s.all_gather_object(0)
        time.sleep(60)
""",
    )
    before = set(os.listdir("/dev/shm"))
    with start([sys.executable, str(script)], cwd=tmp_path) as running:
        inode = wait_for(running)
        assert holders(inode) != []
        running.send(signal.SIGKILL, group=True)
        running.wait()
    assert holders(inode) == [] and set(os.listdir("/dev/shm")) <= before


def wait_for(running: Any) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = re.search(r"mapped \[\('r--s', '(\d+)'\)\]", running._written()[0])
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(running._written())


def holders(inode: str) -> list[str]:
    """Processes that have mapped it."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = Path("/proc", process, "maps").read_text()
        except OSError:
            continue
        found += [
            process
            for line in maps.splitlines()
            if "torchbus-order" in line and line.split()[4] == inode
        ]
    return found
