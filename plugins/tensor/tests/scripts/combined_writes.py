"""A forward that keeps its weights in bounds, in its own parameters and through ``data``."""

import json

import torch
from tensor_head import PLAN, Block, Mlp, differ, numbers, opened, state, train


class Bounded(Block):
    def forward(self, x):
        with torch.no_grad():
            self.up.weight.clamp_(-0.2, 0.2)
        self.down.weight.data.clamp_(-0.2, 0.2)
        self.down.bias.data.clamp_(-0.02, 0.02)
        return super().forward(x)


def make():
    model = Mlp()
    for block in model.blocks:
        block.__class__ = Bounded
    return model


alone, _, _ = train(make, numbers(), 8)
with opened(4, strategy="fsdp", tp=2, plan=PLAN):
    model, _, _ = train(make, numbers(), 4)
    found = differ(state(model), state(alone))
print(json.dumps(found))
