"""An actor, a critic, and a frozen reference model: one loss reaches two engines."""

import json
import sys

import torch
from deepspeed_head import batches, difference, flat, found, net, opened
from torch import nn
from torch.nn import functional as F


def ppo(size):
    torch.manual_seed(1)
    actor, critic = net((6, 16, 3)), net((6, 16, 1))
    reference = net((6, 16, 3)).requires_grad_(False)
    of_actor = torch.optim.AdamW(actor.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.9)
    for state, action in batches(size):
        with torch.no_grad():
            expected = reference(state)
        advantage = action.sum(1, keepdim=True) - critic(state)
        policy = (actor(state) * action).mean(1, keepdim=True) * advantage.detach()
        loss = F.mse_loss(actor(state), expected) - policy.mean() + advantage.square().mean()
        of_actor.zero_grad()
        of_critic.zero_grad()
        loss.backward()
        of_actor.step()
        of_critic.step()
    return nn.ModuleList([actor, critic]), reference


strategy, ranks = sys.argv[1], int(sys.argv[2])
alone, alone_reference = ppo(4 * ranks)
with opened(strategy, ranks) as s:
    trained, reference = ppo(4)
    text = " ".join(s.explain().split())
found["trained"] = difference(flat(alone), flat(trained))
found["reference"] = difference(flat(alone_reference), flat(reference))
found["moved"] = difference(flat(reference), flat(trained[0]))
found["explain"] = text
print(json.dumps(found))
