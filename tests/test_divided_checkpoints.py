"""Checkpoints of models and optimizers whose tensors are divided over ranks: interrupted and resumed, they end as one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nodes import run_nodes
from torchbus.testing import Result, run_script, write_script

from torchbus_checkpoint.disk import folder

HEAD = """
import contextlib, itertools, json, os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
torch.set_default_dtype(torch.float64)
found, made = {}, itertools.count()

class Tail(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 1)  # more ranks than rows: some have an empty part
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hidden", torch.ones(2), persistent=False)

    def forward(self, x):
        self.seen += 1
        return self.out(x) * self.hidden.prod()

class PowerCut(Exception):
    pass

def train(stop_after=0, s=None):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(48, 3), torch.randn(48, 1)), 12, shuffle=True)
    body, tail = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5)), Tail()
    often, rarely = torch.optim.AdamW(body.parameters(), lr=0.05), torch.optim.SGD(tail.parameters(), lr=0.05, momentum=0.9)
    steps = 0
    for epoch in range(3):
        for x, y in loader:
            often.zero_grad()
            nn.functional.mse_loss(tail(body(x)), y).backward()
            norm = nn.utils.clip_grad_norm_(body.parameters(), 1.0)
            often.step()
            steps += 1
            next(made)
            if steps % 2 == 0:  # what the other steps have left is in the checkpoint
                rarely.step()
                rarely.zero_grad()
            if steps == stop_after:
                raise PowerCut
    values = [*body.state_dict().values(), *tail.state_dict().values()]
    moments = [value for one in (often, rarely) for entry in one.state_dict()["state"].values() for value in entry.values()]
    return torch.cat([value.double().reshape(-1) for value in values + moments])

def divided(strategy, ranks, folder, stop_after=0, **options):
    options = {"checkpoint": folder, "every_n_steps": 7, "batch": "global"} | options
    with contextlib.suppress(PowerCut), session(strategy=strategy, devices=ranks, accelerator="cpu", launch="fork", timeout_s=30, **options) as s:
        return train(stop_after, s)

def apart(ours, alone):
    return float((ours - alone).abs().max() / alone.abs().max())
"""


def ran(source: str, tmp_path: Path, **replaced: Any) -> Result:
    head = "".join(f"{name} = {value!r}\n" for name, value in replaced.items())
    return run_script(f"{head}import os\nos.chdir({str(tmp_path)!r})\n{HEAD}{source}\nprint(json.dumps(found))\n", timeout_s=110)


def facts(source: str, tmp_path: Path, **replaced: Any) -> dict[str, Any]:
    result = ran(source, tmp_path, **replaced)
    assert result.ok()
    return dict(json.loads(result.stdout.splitlines()[-1]))


RESUMED = """
alone = train()
divided(STRATEGY, BEFORE, "checkpoints", stop_after=8, **OPTIONS)
found["stopped"] = sorted(os.listdir("checkpoints"))
found["apart"] = apart(divided(STRATEGY, AFTER, "checkpoints", **OPTIONS), alone)
found["steps"] = next(made)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sharded_save", [False, True])
@pytest.mark.parametrize(("strategy", "before", "after"), [
    ("fsdp", 2, 2), ("fsdp", 2, 1), ("fsdp", 1, 2), ("fsdp", 2, 3), ("ddp_sharded", 2, 2), ("ddp", 2, 1),
])  # fmt: skip
def test_it_ends_as_one_process_does(tmp_path: Path, strategy: str, before: int, after: int, sharded_save: bool) -> None:
    options = {"sharded_save": sharded_save, "async_save": after == 2}
    found = facts(RESUMED, tmp_path, STRATEGY=strategy, BEFORE=before, AFTER=after, OPTIONS=options)
    assert found["stopped"] == ["step-00000007"] and found["steps"] == 12 + 8 + 5
    assert found["apart"] < 1e-9


HYBRID = """
import sys
alone = train()
before = next(made)
options = {"checkpoint": "checkpoints", "every_n_steps": 7, "batch": "global", "sharded_save": True, "async_save": True}
with contextlib.suppress(PowerCut), session(strategy="fsdp", hybrid=True, accelerator="cpu", timeout_s=30, **options) as s:
    found["apart"] = apart(train(int(sys.argv[1]), s), alone)
    found["steps"] = next(made) - before - 1
"""


@pytest.mark.slow
def test_in_parts_of_a_node_that_other_nodes_have_too(tmp_path: Path) -> None:
    """Two nodes of two ranks, stopped and resumed."""
    script = write_script(tmp_path, f"import os\nos.chdir({str(tmp_path)!r})\n{HEAD}{HYBRID}\nprint(json.dumps(found))\n")
    assert all(result.ok() for result in run_nodes([2, 2], script, "8"))
    results = run_nodes([2, 2], script, "0")
    assert all(result.ok() for result in results)
    found = results[0].json()
    assert found["apart"] < 1e-9 and found["steps"] == 5


ALIKE = """
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
alone = train()
ends = {}
for name, options in {"whole": {}, "parts": {"sharded_save": True, "async_save": True}}.items():
    divided("fsdp", 2, name, stop_after=8, **options)
    ends[name] = divided("fsdp", 2, name, **options)
    found[name] = apart(ends[name], alone)
found["ends alike"] = ends["whole"].equal(ends["parts"])
found["steps"] = next(made)
found["files"] = sorted(os.listdir("parts/step-00000007"))
dcp_to_torch_save("parts/step-00000007", "converted.pt")
def read(path):
    return torch.load(path, weights_only=True)
converted, whole = read("converted.pt"), read("whole/step-00000007/training.pt")["optimizers"]
for name in ("body", "tail"):
    weights = read(f"whole/step-00000007/model-{name}.pt")
    found[name] = [list(weights) == list(converted[f"model-{name}"]), all(map(torch.equal, weights.values(), converted[f"model-{name}"].values()))]
flat = {f"{number}/state/state/{index}/{key}": value for number, one in enumerate(whole)
        for index, entry in one["state"]["state"].items() for key, value in entry.items()}
flat |= {f"{number}/gradients/{index}": value for number, one in enumerate(whole) for index, value in enumerate(one["gradients"] or ())}
states = converted["optimizers"]
found["states"] = [len(flat), flat.keys() == states.keys(), all(value.equal(states[key]) for key, value in flat.items())]
"""


def test_in_parts_it_is_bit_for_bit_what_it_is_whole(tmp_path: Path) -> None:
    """At two ranks: what is saved, and how the resumed run ends; gradients that are still needed are saved, too."""
    found = facts(ALIKE, tmp_path)
    assert found["files"] == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json", "rank-0.pt", "rank-1.pt", "training.pt"]
    assert found["body"] == found["tail"] == [True, True]
    assert found["states"] == [4 * 3 + 2 + 2, True, True]
    assert found["whole"] < 1e-9 and found["ends alike"] and found["steps"] == 12 + 2 * (8 + 5)


GATHERS = """
from torch.distributed.tensor import DTensor
gather, count = DTensor.full_tensor, []
DTensor.full_tensor = lambda self, **options: count.append(self) or gather(self, **options)

def gathered(act):
    count.clear()
    act()
    return len(count)

for name, in_parts in {"whole": False, "in parts": True}.items():
    with session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", sharded_save=in_parts) as s:
        model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 1))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        parts = [value.to_local().clone() for value in [*model.parameters(), *(entry["exp_avg"] for entry in optimizer.state.values())]]
        mine = [gathered(lambda: s.save(name)), gathered(lambda: s.load(name))]
        again = [value.to_local() for value in [*model.parameters(), *(entry["exp_avg"] for entry in optimizer.state.values())]]
        same = all(map(torch.equal, parts, again)) and len(parts) == 8
        found[name] = s.all_gather_object([*mine, same])
"""


@pytest.mark.slow
def test_no_rank_gathers_anything_for_a_checkpoint_in_parts(tmp_path: Path) -> None:
    found = facts(GATHERS, tmp_path)
    assert found["in parts"] == [[0, 0, True]] * 2
    assert found["whole"] == [[12, 0, True]] * 2  # so that gathering would be seen: parameters and two moments of each


KILLED = """
import signal
from torchbus_checkpoint.disk import folder, parts
if WHERE == "among the parts":
    place, name, whom, which = parts.Files, "create_stream", 1, 2
else:
    place, name, whom, which = folder, "seal", 0, 2
original, calls = getattr(place, name), itertools.count(1)

def die(*args):
    if s.rank == whom and next(calls) == which:
        if WHERE == "among the parts":
            os.close(os.open(args[1], os.O_CREAT))  # half a file
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args)

setattr(place, name, die)
options = {"checkpoint": "checkpoints", "every_n_steps": 3, "batch": "global", "sharded_save": True}
s = session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", timeout_s=30, **options)
with s:
    train()
"""
AFTERWARDS = """
alone = train()
found["apart"] = apart(divided("fsdp", 2, "checkpoints", every_n_steps=3, sharded_save=True), alone)
found["steps"] = next(made)
found["left"] = sorted(os.listdir("checkpoints"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["among the parts", "before it has its name"])
def test_killed_while_it_writes(tmp_path: Path, where: str) -> None:
    """The second checkpoint is not there; the run goes on from the first one."""
    assert ran(KILLED, tmp_path, WHERE=where).status != 0
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert sorted(name.endswith(".partial") for name in names) == [False, True] and "step-00000003" in names
    assert [found.name for found in folder.found(tmp_path / "checkpoints")] == ["step-00000003"]
    found = facts(AFTERWARDS, tmp_path)
    assert found["apart"] < 1e-9 and found["steps"] == 12 + 9
    assert found["left"] == ["step-00000006", "step-00000009", "step-00000012"]
