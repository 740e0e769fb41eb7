"""Each refusal of sequence_parallel and loss_parallel, in the words that the loop gets."""

import json

import torch
from auto_models import NanoBlock
from parallel_head import PLAN, Gpt, data
from tensor_head import GPT_PLAN, opened
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.nn import functional as F

found = {}
SEQUENCE, LOSS = {"sequence_parallel": True}, {"loss_parallel": True}


def step(model, loss_of=F.cross_entropy):
    torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(4).tensors
    loss_of(model(x).flatten(0, 1), y.flatten()).backward()


def refused(name, loop, **options):
    try:
        with opened(2, **options):
            loop()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    else:
        found[name] = "not refused"


class Called(Gpt):
    """Calls its blocks with a named argument."""

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x=x)
        return self.head(x)


class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(11, 4), nn.Linear(4, 8), nn.Linear(8, 12))


def fused():
    model = nn.Sequential(NanoBlock(), NanoBlock())
    torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4, 8)).mean().backward()


style = {**GPT_PLAN, "blocks.*.up": ColwiseParallel()}
refused("fused", fused, plan="auto", **SEQUENCE)
refused("flat", lambda: step(Flat()), plan={"1": "colwise", "2": "rowwise"}, **SEQUENCE)
refused("style", lambda: step(Gpt()), plan=style, **SEQUENCE)
refused("input", lambda: step(Called()), plan=GPT_PLAN, **SEQUENCE)
refused("no logits", lambda: step(Gpt()), plan=GPT_PLAN, **LOSS)
refused(
    "other loss",
    lambda: step(Gpt(), lambda x, y: F.nll_loss(F.log_softmax(x, -1), y)),
    plan=PLAN,
    **LOSS,
)
refused("type", lambda: step(Gpt()), plan=PLAN, sequence_parallel=1)
refused("loss type", lambda: step(Gpt()), plan=PLAN, loss_parallel="yes")
refused("cp", lambda: step(Gpt()), plan=PLAN, cp=2)
print(json.dumps(found))
