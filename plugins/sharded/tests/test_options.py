"""Options of fsdp, and states that are saved and loaded, each on ranks of its own against one process."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from torchbus.testing import Result, fork_script, start, write_script

HEAD = """
import json, torch
from torch import nn
from torchbus import session
torch.set_default_dtype(torch.float64)
found = {}

class Block(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 6), nn.Tanh())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        found["computed in"] = str(self.out.weight.dtype)
        return self.out(self.blocks(x))

def made(optimizer=torch.optim.Adam):
    torch.manual_seed(0)
    model = Net()
    return model, optimizer(model.parameters(), lr=1e-2)

def steps(model, optimizer, mine, count=3):
    g = torch.Generator().manual_seed(1)
    for x in torch.randn(count, 8, 6, generator=g):
        optimizer.zero_grad()
        (model(x[mine]) - x[mine][:, :2]).square().mean().backward()
        optimizer.step()
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()])

def apart(ours, alone):
    return float((ours - alone).abs().max() / alone.abs().max())

def opened(**options):
    return session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", replace_sampler=False, **options)

def part(s):
    each = 8 // s.world_size
    return slice(each * s.rank, each * s.rank + each)
"""
STATES = HEAD + """
alone, lone = made()
steps(alone, lone, slice(None))
expected = steps(alone, lone, slice(None))
with opened() as s:
    model, optimizer = made()
    steps(model, optimizer, part(s))
    weights, state = {n: v.clone() for n, v in model.state_dict().items()}, optimizer.state_dict()
    found["whole"] = all(v.shape in (p.shape, ()) and type(v) is torch.Tensor
                         for p, e in zip(model.parameters(), state["state"].values()) for v in e.values())
    model, optimizer = made()
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    found["goes on"] = apart(steps(model, optimizer, part(s)), expected)
    first = optimizer.state[next(iter(optimizer.state))]["exp_avg"]
    found["loaded in parts"] = first.to_local().numel() / first.numel()
with opened(mixed_precision="bf16") as s:
    model, optimizer = made()
    steps(model, optimizer, part(s))
    found["bf16"] = [apart(steps(model, optimizer, part(s)), expected), found["computed in"], str(next(model.parameters()).dtype)]
    weight = torch.cat([p.detach().full_tensor().reshape(-1) for p in model.parameters()])
    found["alike"] = all(weight.equal(other) for other in s.all_gather(weight))
alone, lone = made(torch.optim.SGD)
total = steps(alone, lone, slice(None))
with opened(loss_reduction="sum") as s:
    model, optimizer = made(torch.optim.SGD)
    found["the sum of means over two ranks is twice the mean"] = apart(steps(model, optimizer, part(s), 1), total)
    model, optimizer = made(torch.optim.SGD)
    optimizer.param_groups[0]["lr"] /= 2
    found["sum"] = apart(steps(model, optimizer, part(s)), total)
with opened() as s:
    model, optimizer = made()
    torch.set_default_dtype(torch.float32)
    loss = model(torch.full((2, 6), 0.1 + s.rank, dtype=torch.float64)).mean()
    mean = s.reduce(loss.detach().clone())
    loss.backward()
    found["loss"] = [str(loss.dtype), float(loss - mean)]
    torch.set_default_dtype(torch.float64)
kept = Net()
holder = {"model": kept, "optimizer": torch.optim.SGD(kept.parameters(), lr=1.0)}
def later(s):
    kept(torch.ones(2, 6)).mean().backward()
    return type(next(kept.parameters()).grad).__name__
def inside():
    with opened() as s:
        return later(s)
found["made before"] = inside()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    return dict(fork_script(STATES, timeout_s=110).json())


def test_an_optimizers_state_dict_is_whole_and_may_be_loaded(states):
    assert states["whole"] and states["goes on"] < 1e-12 and states["loaded in parts"] == 0.5


def test_mixed_precision_computes_in_16_bits_and_keeps_parameters_whole(states):
    difference, computed_in, kept = states["bf16"]
    assert 1e-9 < difference < 5e-2 and (computed_in, kept) == ("torch.bfloat16", "torch.float64") and states["alike"]


def test_sums_are_added_over_ranks(states):
    assert states["sum"] < 1e-9 < states["the sum of means over two ranks is twice the mean"]


def test_the_loss_is_the_mean_of_all_ranks_in_its_own_precision(states):
    dtype, difference = states["loss"]
    assert dtype == "torch.float64" and abs(difference) < 1e-15


def test_a_model_made_with_its_optimizer_before_the_block_is_divided_wherever_it_is_kept(states):
    assert states["made before"] == "DTensor"


HYBRID = HEAD + """
with session(strategy="fsdp", accelerator="cpu", hybrid=True, replace_sampler=False) as s:
    model, optimizer = made()
    ours = steps(model, optimizer, part(s))
    others = s.all_gather(ours)
    weight = model.out.weight
    kept = weight.to_local().numel() / weight.numel(), [type(one).__name__ for one in weight.placements]
if s.is_main:
    alone, lone = made()
    print(json.dumps([apart(ours, steps(alone, lone, slice(None))), all(ours.equal(other) for other in others), *kept]))
"""


SLOW = HEAD + """
import time

class Slow(Net):
    def modules(self):
        if waits.pop("before it gathers", False):
            time.sleep(4)
        return super().modules()

waits = {}
with session(strategy="fsdp", accelerator="cpu", hybrid=True, replace_sampler=False) as s:
    model = Slow()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), part(s))
    waits["before it gathers"] = s.is_main
print(json.dumps("before it gathers" in waits))
"""


def on_two_nodes(tmp_path: Path, source: str) -> list[Result]:
    """Two ranks on each."""
    script = str(write_script(tmp_path, source))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with contextlib.ExitStack() as stack:
        running = []
        for rank in range(4):
            place = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": rank // 2}
            env = {**{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            running.append(stack.enter_context(start([sys.executable, script], env=env)))
        results = [one.wait(110) for one in running]
    assert all(result.ok() for result in results)
    return results


@pytest.mark.slow
def test_a_node_that_gathers_late_is_waited_for(tmp_path: Path):
    """The other has come to its end, and has no part in what this one gathers."""
    assert not any(result.json() for result in on_two_nodes(tmp_path, SLOW))


@pytest.mark.slow
def test_hybrid_divides_in_a_node_and_replicates_over_nodes(tmp_path: Path):
    results = on_two_nodes(tmp_path, HYBRID)
    difference, alike, kept, placements = results[0].json()
    assert difference < 1e-9 and alike and kept == 0.5 and placements == ["Replicate", "Shard"]


REFUSED = {
    "cpu_offload": ("made()", ", cpu_offload=True", "cpu_offload=True needs GPUs: on CPU the parts are in host memory as it is"),
    "functional_call": (
        "m, o = made(); torch.func.functional_call(m, {n: p.detach().full_tensor() for n, p in m.named_parameters()}, torch.ones(2, 6))",
        "",
        "functional_call of Net with other weights under strategy='fsdp'",
    ),
    "old dict": (
        "net = Net(); table = {p: 1 for p in net.parameters()}; torch.optim.SGD(net.parameters(), lr=0.1); [table[p] for p in net.parameters()]",
        "",
        "a dict has no entry for a parameter of a model that strategy='fsdp' has divided",
    ),
    "old list": (
        "m = Net(); old = list(m.parameters()); o = torch.optim.SGD(old, 0.1); nn.utils.clip_grad_norm_(old, 1.0)",
        "",
        "a list of parameters that was made before its model was divided",
    ),
    "one rank evaluates": (
        "m, o = made(); m(torch.ones(2, 6)) if s.rank else m.state_dict()",
        "",
        "rank 0 at the state_dict of Net, after 0 optimizer steps; rank 1 at the forward of Net, model 1 (training), after 0 optimizer steps",
    ),
    "other parts": (
        "m, o = made(); m.blocks[s.rank](torch.ones(2, 6))",
        "",
        "rank 0 at part blocks.0 of the forward of Net, model 1 (training), after 0 optimizer steps; rank 1 at part blocks.1",
    ),
    "weights outside forward": ("m, o = made(); m.out.weight.square().sum() + torch.ones(2)", "", "computes with parts of parameters or gradients"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    body, options, words = REFUSED[case]
    result = fork_script(HEAD + f"with opened({options.removeprefix(', ')}) as s:\n    {body}\n", timeout_s=60)
    assert result.ok(1) and words in result.stderr
