import json

import torch
from forms_head import DATA, RANKS, Blocks, called, check, found, train
from torchbus import session
from torchbus.errors import Unsupported


def mask(net):
    net.head.weight.register_hook(lambda gradient: gradient * torch.tensor([[1.0], [0.0]]))


def twice(net):
    net.head.weight.register_hook(lambda gradient: None)
    net.head.weight.register_hook(lambda gradient: gradient * 2)
    net.head.weight.register_hook(lambda gradient: gradient.sign() * 0)


def removed(net):
    net.head.weight.register_hook(lambda gradient: gradient * 0).remove()


for hook in (mask, twice, removed):
    check(f"{hook.__name__}, before the optimizer", called, lambda net: None, hook)
    check(f"{hook.__name__}, after it", called, hook)


def accumulated(net):
    net.head.weight.register_post_accumulate_grad_hook(print)


handles = []


def until_now(net):
    def hook(gradient):
        handles.append(1)
        handle.remove()

    handle = net.head.weight.register_hook(hook)


check("removed by itself", called, lambda net: None, until_now)
found["calls of one that is removed"] = len(handles)

for when in ("before", "after"):
    try:
        with session(strategy="fsdp", devices=RANKS, accelerator="cpu", launch="fork"):
            train(called, 3, **{when: accumulated})
    except Unsupported as error:
        found[f"accumulated, {when}"] = str(error)

net = Blocks()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with session(strategy="fsdp", devices=RANKS, accelerator="cpu", launch="fork"):
    net.head.weight.register_hook(lambda gradient: handles.append("after the block"))
    net(DATA).mean().backward()
    handles.clear()
net(DATA).mean().backward()
found["after the block"] = handles
print(json.dumps(found))
