"""DeepSpeed's optimizer for CPUs in place of the loop's, which the config names, and one process.

Three arguments: the type, "python" or "compiled", and the strategy. The first of them puts the
operator's formula, written in Python, in the operator's place: compiling takes minutes.
"""

import json
import sys

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.op_builder.builder import OpBuilder
from deepspeed_head import adamw, difference, flat, found, groups, of_states, opened, train

PARAMS = {"Adam": {"adam_w_mode": False}}
kind, operator, strategy = sys.argv[1:]


class AdamInPython:
    def __init__(self):
        self.modes = {}

    def create_adam(self, key, lr, beta1, beta2, eps, decay, adamw_mode, should_log):
        self.modes[key] = adamw_mode

    def destroy_adam(self, key):
        del self.modes[key]

    def adam_update(self, key, step, lr, beta1, beta2, eps, decay, corrects, p, g, m, v):
        g = g if self.modes[key] else g + decay * p
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        one, two = 1 - beta1**step, 1 - beta2**step
        p.mul_(1 - lr * decay if self.modes[key] else 1.0)
        p.addcdiv_(m, (v / two).sqrt() + eps, value=-lr / one)


class Lion(torch.optim.Optimizer):
    """As its paper has it: https://arxiv.org/abs/2302.06675."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in [p for p in group["params"] if p.grad is not None]:
                kept = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(kept.lerp(p.grad, 1 - group["betas"][0]).sign(), alpha=-group["lr"])
                kept.lerp_(p.grad, 1 - group["betas"][1])


MAKERS = {
    "AdamW": adamw,
    "FusedAdam": adamw,
    "made in the loop": adamw,
    "Adam": lambda model: torch.optim.Adam(groups(model), lr=0.01),
    "Adagrad": lambda model: torch.optim.Adagrad(groups(model), lr=0.05),
    "Lion": lambda model: Lion(groups(model), lr=0.001),
}
if operator == "python":
    OpBuilder._loaded_ops["cpu_adam"] = AdamInPython()
whole, theirs, losses = train(8, MAKERS[kind], 0.5)
config = {"optimizer": {"type": kind, "params": PARAMS.get(kind, {})}}
if kind == "made in the loop":
    config = {}
    MAKERS[kind] = lambda model: DeepSpeedCPUAdam(groups(model), lr=0.01, weight_decay=0.01)
with opened(strategy, 2, config=config) as s:
    model, optimizer, printed = train(4, MAKERS[kind], 0.5)
    inside = torch.cat([v.reshape(-1) for v in model.state_dict().values()])
    found["parameters"] = difference(flat(whole), inside)
    found["states"] = of_states(theirs, optimizer)
    found["printed"] = max(abs(a - b) for a, b in zip(losses, printed, strict=True))
    found["explain"] = " ".join(s.explain().split())
found["after"] = [difference(flat(whole), flat(model)), of_states(theirs, optimizer)]
one, other = theirs.state_dict()["state"], optimizer.state_dict()["state"]
found["same_layout"] = all(
    {name: type(value) for name, value in entry.items()}
    == {name: type(value) for name, value in other[key].items()}
    for key, entry in one.items()
)
for optimizer_of_loop in (theirs, optimizer):
    optimizer_of_loop.step()
found["one step more"] = difference(flat(whole), flat(model))
print(json.dumps(found))
