"""DataLoaders with an ``__iter__`` of their own: torchdata's is divided and goes on from its state, others are divided or refused."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader
from torchbus.testing import fork_script

HEAD = """
import itertools, json, warnings, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchbus import session
from torchbus.errors import Unsupported
warnings.filterwarnings("ignore", message=".*set_vital.*")
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.arange(53.0))

def train(loader, stop=None, seen=None):
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen = [] if seen is None else seen
    for (x,) in loader:
        optimizer.zero_grad()
        (model(x[:, None]) - 1).square().mean().backward()
        optimizer.step()
        seen.append(x.tolist())
        if len(seen) == stop:
            break
    return seen, model.weight.item()

def ranks(**options): return session(strategy="ddp", devices=2, launch="fork", **options)
found = {}
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stateful_loader_is_divided_and_goes_on_from_its_state(workers: int) -> None:
    found = fork_script(HEAD + f"""
from torchdata.stateful_dataloader import StatefulDataLoader

def make(batch_size=4, seed=5, **options):
    options = {{"num_workers": {workers}, "shuffle": True, "generator": torch.Generator().manual_seed(seed)}} | options
    return StatefulDataLoader(data, batch_size, **options)

found["alone"] = train(make(8))
with ranks() as s:
    found["divided"] = [s.all_gather_object(one) for one in train(make())]
    loader = make()
    found["length"] = len(loader)
    with torch.no_grad():
        found["whole"] = sum(len(x) for (x,) in loader)
with ranks(batch="global") as s:
    found["global"] = train(make(8))[1]
for every in (1, 3):
    with ranks() as s:
        loader = make(snapshot_every_n_steps=every)
        found["first"] = train(loader, stop=4)[0]
        state = loader.state_dict()
        begun = [s.all_gather_object(found["first"])]
    with ranks() as s:
        loader = make(seed=9, snapshot_every_n_steps=every)  # another order, but for the state
        loader.load_state_dict(state)
        found[f"gone on {{every}}"] = begun + [s.all_gather_object(train(loader)[0])]
    with ranks() as s:
        loader = make(seed=9, snapshot_every_n_steps=every)
        loader.load_state_dict(state)
        loader.state_dict()  # makes an iterator, before the first pass
        found[f"asked before {{every}}"] = begun + [s.all_gather_object(train(loader)[0])]
alone = make(8)
train(alone, stop=2)
state = alone.state_dict()
with ranks(batch="global") as s:
    loader = make(8, seed=9)
    loader.load_state_dict(state)
    found["from one process"] = s.all_gather_object(train(loader)[0])
print(json.dumps(found))
""").json()
    order, weight = found["alone"]
    seen, weights = found["divided"]
    assert [one + other for one, other in zip(*seen, strict=True)] == order
    assert weights == pytest.approx([weight] * 2, abs=1e-15)
    assert found["length"] == 7 and found["whole"] == 53 and found["global"] == pytest.approx(weight, abs=1e-15)
    for name in ("gone on", "asked before"):
        for every in (1, 3):
            first, rest = found[f"{name} {every}"]
            assert [one + other for one, other in zip(*first, strict=True)] + [one + other for one, other in zip(*rest, strict=True)] == order
    if not workers:
        assert [one + other for one, other in zip(*found["from one process"], strict=True)] == order[2:]


def test_a_stateful_loader_of_a_stream() -> None:
    found = fork_script(HEAD + """
from torchdata.stateful_dataloader import StatefulDataLoader

class Stream(IterableDataset):
    def __iter__(self): return iter([(torch.tensor(float(i)),) for i in range(21)])

found["alone"] = train(StatefulDataLoader(Stream(), 8))
with ranks() as s:
    found["divided"] = [s.all_gather_object(one) for one in train(StatefulDataLoader(Stream(), 4))]
print(json.dumps(found))
""").json()
    assert [one + other for one, other in zip(*found["divided"][0], strict=True)] == found["alone"][0]
    assert found["divided"][1] == pytest.approx([found["alone"][1]] * 2, abs=1e-15)


def test_other_subclasses() -> None:
    found = fork_script(HEAD + """
def own(kind): return kind(data, 4)

class Generates(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch

class Bypasses(DataLoader):
    def __iter__(self):
        for indices in self.batch_sampler:
            yield self.collate_fn([self.dataset[i] for i in indices])

class ByItself(Bypasses):
    def __iter__(self): return iter(list(Bypasses.__iter__(self)))

class Repeats(DataLoader):  # as timm's MultiEpochsDataLoader
    def __init__(self, *args):
        super().__init__(*args)
        self.iterator = super().__iter__()
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

class OfOthers(DataLoader):
    def __iter__(self):
        for batch in DataLoader(self.dataset, 4):
            yield batch

def attempt(make, **options):
    with ranks(**options) as s:
        try:
            seen = train(make())[0]
            return s.all_gather_object(sorted(sum(seen, [])))
        except Unsupported as error:
            return str(error)

def later():
    class Later(DataLoader):
        def __iter__(self):
            return iter([[torch.ones(2)]])
    class LaterStill(Generates): pass
    found["still"] = len(list(LaterStill(data, 4)))
    return Later(data, 4)

found |= {kind.__name__: attempt(lambda: own(kind)) for kind in (Generates, Bypasses, ByItself, OfOthers, Repeats)}
found["later"] = attempt(later)
found["off"] = attempt(lambda: own(Bypasses), replace_sampler=False)
with ranks() as s, torch.no_grad():
    found["evaluated"] = len(list(own(Bypasses)))
found["clean"] = ["__init_subclass__" in vars(DataLoader), Bypasses.__iter__.__module__, len(list(own(Bypasses)))]
print(json.dumps(found))
""").json()
    every = [float(number) for number in range(53)]
    for name in ("Generates", "OfOthers", "Repeats"):
        assert sorted(found[name][0] + found[name][1]) == every, name
    for name in ("Bypasses", "ByItself", "later"):
        assert "has an __iter__ of its own" in found[name] and "super().__iter__()" in found[name], found[name]
    assert found["off"] == [every, every]
    assert found["evaluated"] == 14 and found["still"] == 7
    assert found["clean"] == [False, "__main__", 14]


def test_torch_is_as_it_was() -> None:
    class Made(DataLoader):
        pass

    assert "__init_subclass__" not in vars(DataLoader) and "__iter__" not in vars(Made)
