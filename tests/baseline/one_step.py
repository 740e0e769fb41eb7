"""One step in each session of the command line; prints who listens to what."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.plugin import hookimpl


class Reader:
    """Has the bus; is not itself a part of what is read."""

    @hookimpl
    def session_start(self, session):
        self.bus = session.bus


def listeners(reader):
    """By event, from the first that is called to the last; a wrapper stands where it begins."""
    bus = reader.bus
    names = {id(plugin): name for name, plugin in bus.plugins()}
    for event in bus.events():
        called = reversed(getattr(bus.hook, event).get_hookimpls())
        there = [names[id(one.plugin)] for one in called if one.plugin is not reader]
        if there:
            yield event, there


def one_step(options):
    reader, plugins = Reader(), options.pop("plugins", ())
    several = "strategy" in options
    options |= {"devices": 2, "accelerator": "cpu", "launch": "fork"} if several else {}
    with session(reader, *plugins, **options):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(8, 4)), 2):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return dict(listeners(reader))


print(json.dumps({name: one_step(one) for name, one in json.loads(sys.argv[1]).items()}))
