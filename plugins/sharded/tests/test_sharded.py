"""Two ranks, divided, against one process that knows nothing of it."""

from __future__ import annotations

from typing import Any

import pytest
from torchbus.testing import Result, fork_script

HEAD = """
import copy, json, torch
from torch import nn
from torch.nn import functional as F
from torchbus import session
from torchbus.testing.models import ConvNet, Transformer
torch.set_default_dtype(torch.float64)
found = {}

class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))

MODELS = {"mlp": Mlp, "convolutional net": lambda: ConvNet(2), "transformer": lambda: Transformer(2, layers=2)}

def data():
    g = torch.Generator().manual_seed(1)
    return list(zip(torch.randn(24, 6, generator=g).split(8), torch.randn(24, 2, generator=g).split(8)))

def steps(model, optimizer, mine, clip=0.5):
    printed = []
    for x, y in data():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        printed += [loss.item(), float(norm)]
    return printed

def train(make, mine):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    printed = steps(model, optimizer, mine)
    model.eval()
    with torch.no_grad():
        printed.append(float(model(data()[0][0]).sum()))
    values = {name: value.clone() for name, value in model.state_dict().items()}
    return torch.cat([torch.tensor(printed), *(value.reshape(-1) for value in values.values())]), model, optimizer

def opened(strategy, **options):
    if strategy == "ddp_sharded, gradients too":
        strategy, options["shard_gradients"] = "ddp_sharded", True
    return session(strategy=strategy, devices=2, accelerator="cpu", launch="fork", replace_sampler=False, **options)

def part(s):
    return slice(4 * s.rank, 4 * s.rank + 4)
"""
GRADIENTS = "ddp_sharded, gradients too"
NUMBERS = HEAD + """
for strategy in STRATEGIES:
    for name, make in MODELS.items():
        alone, *_ = train(make, slice(None))
        with opened(strategy) as s:
            ours, *_ = train(make, part(s))
            same = all(ours.equal(other) for other in s.all_gather(ours))
        found[f"{strategy} {name}"] = [float((ours - alone).abs().max() / alone.abs().max()), same]
print(json.dumps(found))
"""


def facts(source: str, **replaced: str) -> dict[str, Any]:
    return dict(fork_script("\n".join(f"{name} = {value}" for name, value in replaced.items()) + source, timeout_s=115).json())


@pytest.fixture(scope="module", params=["fsdp", "ddp_sharded", GRADIENTS])
def numbers(request) -> dict[str, Any]:
    return facts(NUMBERS, STRATEGIES=repr([request.param]))


def test_the_numbers_of_one_process(numbers):
    """Losses, norms of clipping, evaluation, parameters: an MLP, a convolutional net, a transformer."""
    assert len(numbers) == 3
    assert all(difference < 1e-9 and ranks_agree for difference, ranks_agree in numbers.values()), numbers


BEFORE = HEAD + """
torch.manual_seed(0)
model, alone = Mlp(), Mlp()
alone.load_state_dict(model.state_dict())
optimizer, lone = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.optim.AdamW(alone.parameters(), lr=1e-2)
steps(model, optimizer, slice(None)), steps(alone, lone, slice(None))  # states before the block
steps(alone, lone, slice(None))
names = list(alone.state_dict())
with opened(STRATEGY) as s:
    steps(model, optimizer, part(s))
    state = model.state_dict()
    found["before"] = max(float((state[n] - alone.state_dict()[n]).abs().max()) for n in names)
    found["plain tensors"] = all(type(v) is torch.Tensor for v in state.values()) and list(state) == names
    saved = {n: v.clone() for n, v in state.items()}
    steps(model, optimizer, part(s))
    model.load_state_dict(saved)
    found["loaded"] = all(v.equal(saved[n]) for n, v in model.state_dict().items())
    whole = sum(p.numel() for p in alone.parameters())
    own = sum(v.to_local().numel() if hasattr(v, "to_local") else v.numel() for s_ in optimizer.state.values() for k, v in s_.items() if k != "step")
    kept = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters()]
    memory = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    found["part of the gradients"] = sum(memory.values()) / (8 * whole)
    found["part of the state"] = own / (2 * whole)
    if STRATEGY == "ddp_sharded":
        entire = optimizer.state_dict()["state"]
        found["whole state"] = len(entire) == len(names) and not any(v.is_meta for e in entire.values() for v in e.values())
    try:
        copy.deepcopy(model)
        found["deepcopy"] = "copied"
    except Exception as error:
        found["deepcopy"] = str(error)
    found["explain"] = s.explain()
    last = {n: v.clone() for n, v in model.state_dict().items()}
found["state after"] = len(optimizer.state)
found["whole after"] = [
    type(model) is Mlp, all(type(p) is nn.Parameter and p.equal(last[n]) for n, p in model.named_parameters()),
    all(v.shape in (p.shape, ()) and type(v) is torch.Tensor for p in model.parameters() for v in optimizer.state[p].values()),
    copy.deepcopy(model) is not model,
]
with opened(STRATEGY) as s:
    steps(model, optimizer, part(s))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def fsdp() -> dict[str, Any]:
    return facts(BEFORE, STRATEGY="'fsdp'")


@pytest.fixture(scope="module")
def sharded() -> dict[str, Any]:
    return facts(BEFORE, STRATEGY="'ddp_sharded'")


@pytest.fixture(scope="module")
def gradients() -> dict[str, Any]:
    return facts(BEFORE, STRATEGY=repr(GRADIENTS))


def test_ddp_sharded_divides_gradients_where_it_is_asked_to(sharded, gradients):
    assert sharded["part of the gradients"] == 1.0 and 0.4 < gradients["part of the gradients"] < 0.6 and 0.4 < gradients["part of the state"] < 0.6
    assert gradients["before"] < 1e-12 and gradients["plain tensors"] and gradients["loaded"] and gradients["whole after"] == [True] * 4
    assert "parameters are whole from forward to the end of backward" in " ".join(gradients["explain"].split())


def test_an_optimizer_that_was_made_and_used_before_goes_on(fsdp, sharded):
    assert fsdp["before"] < 1e-12 and sharded["before"] < 1e-12


def test_each_rank_keeps_about_half_of_the_state(fsdp, sharded):
    assert 0.4 < fsdp["part of the state"] < 0.6 and 0.3 < sharded["part of the state"] < 0.7


def test_what_is_saved_and_loaded_is_whole(fsdp, sharded):
    assert fsdp["plain tensors"] and fsdp["loaded"] and sharded["loaded"] and sharded["whole state"] and sharded["state after"] == 6


def test_after_the_block_model_and_optimizer_are_whole_and_a_second_one_can_follow(fsdp, sharded):
    assert fsdp["whole after"] == sharded["whole after"] == [True] * 4 and fsdp["state after"] == 6


def test_copies_are_refused_by_fsdp_and_made_by_ddp_sharded(fsdp, sharded):
    assert "copy.deepcopy of Mlp under strategy='fsdp'" in fsdp["deepcopy"] and sharded["deepcopy"] == "copied"


def test_explain_says_what_is_divided(fsdp, sharded):
    assert "model: Mlp, 418 parameters in 6 tensors: divided in 1 unit; each rank keeps 1/2 of it" in " ".join(fsdp["explain"].split())
    assert "this rank keeps the state of" in " ".join(sharded["explain"].split())


def test_explain_lists_what_is_replaced(fsdp):
    told = " ".join(fsdp["explain"].split())
    names = ("item", "normal_", "numpy", "tolist", "__format__", "__getitem__", "__setitem__", "data", "__deepcopy__")
    assert ", ".join(f"DTensor.{name}" for name in names) in told
    assert "torch.autograd.grad, torch.optim.adamw.adamw" in told


def fails(body: str, options: str = "") -> Result:
    return fork_script(HEAD + f"with opened('fsdp'{options}) as s:\n    {body}\n")


def test_create_graph_is_refused():
    result = fails("m = Mlp(); o = torch.optim.SGD(m.parameters(), 0.1); m(torch.ones(2, 6)).mean().backward(create_graph=True)")
    assert result.ok(1) and "backward(create_graph=True) under strategy='fsdp'" in result.stderr


def test_training_a_model_that_is_not_divided_is_refused():
    result = fails("m = Mlp(); m(torch.ones(2, 6)).mean().backward()")
    assert result.ok(1) and "Mlp got gradients, but was called before any optimizer had its parameters" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "optimizer"), [("fsdp", "LBFGS"), ("ddp_sharded", "LBFGS"), ("fsdp", "Adafactor")])
def test_optimizers_that_are_refused(strategy, optimizer):
    words = {"LBFGS": "all parameters together", "Adafactor": "whole rows and columns"}[optimizer]
    result = fork_script(HEAD + f"with opened('{strategy}') as s:\n    m = Mlp(); torch.optim.{optimizer}(m.parameters())\n")
    assert result.ok(1) and f"strategy='{strategy}' with {optimizer}: its step looks at {words}" in result.stderr


@pytest.mark.slow
def test_other_methods_that_are_named():
    body = "Mlp.loss = lambda self, x: self(x).square().mean(); m = Mlp(); o = torch.optim.SGD(m.parameters(), 0.1); "
    body += "m.loss(torch.ones(2, 6)).backward()"
    assert fails(body, ", forward_methods=('loss',)").ok()


def test_a_part_that_is_called_before_the_whole_is_refused():
    made = "m = nn.DataParallel(nn.Sequential(Mlp(), nn.ConstantPad1d((0, 4), 0.0), Mlp()))"
    body = f"{made}; o = torch.optim.SGD(m.parameters(), 0.1); x = torch.ones(2, 6)"
    result = fails(f"{body}; m.module(x); m(x)")
    assert "a part of a model was called alone before the model that its optimizer has" in result.stderr
