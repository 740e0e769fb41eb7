"""Loops that do odd things with their gradients: on N ranks, against one process.

Called with a JSON dict: strategy, devices, accumulate, batch, loops (names; all), sizes, losses;
``plain``: the one process accumulates nothing, and has batches of a window's size.
All loops run in one session. Prints for each what it was apart, and what was said; or the error.
"""

import json
import sys
import warnings
from contextlib import nullcontext

import odd.clearing
import odd.leaving_out
import odd.several  # noqa: F401
import torch
from odd.table import LOOPS, Bad
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_num_threads(1)
asked = json.loads(sys.argv[1])
RANKS, ACCUMULATE = asked["devices"], asked.get("accumulate", 1)
WHOLE = asked.get("batch") == "global"
g = torch.Generator().manual_seed(5)
X = torch.randn(64, 4, generator=g, dtype=torch.float64)
Y = torch.randint(0, 3, (64, 2), generator=g)
Y[torch.rand(64, 2, generator=g) < 0.3] = -100
T = torch.randn(64, 6, generator=g, dtype=torch.float64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 6)

    def forward(self, x, fail=False):
        hidden = torch.tanh(self.first(x))
        if fail == "forward":
            raise Bad
        if fail == "backward":
            hidden.register_hook(fails)
        return self.second(hidden)


def fails(gradient):
    raise Bad


def mean(z, y, t):
    return (z - t).square().mean()


def tokens(z, y, t):
    return F.cross_entropy(z.view(-1, 3), y.view(-1))


class Run:
    """What a loop needs."""

    def __init__(self, s, batch, size, loss):
        torch.manual_seed(0)
        self.s, self.size, self.batch, self.loss_of = s, size, batch, loss
        self.model = Net().double()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.5, weight_decay=0.01)
        self.loader = self.new_loader()
        self.printed = []

    def another(self, **options):
        """Another model, and its optimizer."""
        model = Net().double()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, **options)

    def new_loader(self):
        return DataLoader(
            TensorDataset(X[: self.size], Y[: self.size], T[: self.size]), batch_size=self.batch
        )

    def loss(self, model, b, **options):
        x, y, t = b
        return self.loss_of(model(x, **options), y, t)

    def back(self, loss, **options):
        loss.backward(**options)
        if not options:
            self.printed.append(loss.item())

    def epochs(self, new=False):
        for _ in range(2):
            if new:
                self.loader = self.new_loader()
            yield from enumerate(self.loader)

    def no_sync(self, condition=True):
        return self.s.accumulating(condition) if self.s is not None else nullcontext()


def all_tokens(z, y, t):
    """No target is ignored: each sample counts two."""
    return F.cross_entropy(z.view(-1, 3), y.clamp(min=0).view(-1))


LOSSES = {"mean": mean, "tokens": tokens, "all_tokens": all_tokens}


def train(s, name, batch, size, loss):
    run = Run(s, batch, size, LOSSES[loss])
    LOOPS[name](run)
    models = [run.model, *([run.extra] if hasattr(run, "extra") else [])]
    return run, models


def values(models):
    state = [p for m in models for p in m.state_dict().values()]
    return torch.cat(
        [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().reshape(-1) for p in state]
    )


def session_of(ranks, accumulate):
    options = {"accumulate_grad_batches": accumulate} if accumulate > 1 else {}
    if ranks > 1:
        options |= {"strategy": asked["strategy"], "devices": ranks, "launch": "fork"}
        options |= {"accelerator": "cpu"} | ({"batch": "global"} if WHOLE else {})
    return session(**options) if options else nullcontext()


def all_of(cases, ranks, batch, accumulate):
    """Each case's parameters, printed losses and warnings, and the error that ended the last."""
    found = {}
    try:
        with session_of(ranks, accumulate) as s:
            for name, size, loss in cases:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    run, models = train(s, name, batch, size, loss)
                    if accumulate > 1:
                        next(iter(run.new_loader()))  # what is left of a window is stepped
                texts = [str(one.message) for one in said]
                printed = torch.tensor(run.printed, dtype=torch.float64)
                found[name, size, loss] = (values(models), printed, texts)
                del run, models
    except Exception as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


def in_sessions(cases, *how):
    """As many as it takes: an error ends one."""
    found, left = {}, list(cases)
    while left:
        new, error = all_of(left, *how)
        found |= new
        left = left[len(new) :]
        if error:
            found[left.pop(0)] = error
    return found


def compare(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one if isinstance(one, str) else other
    (a, p, _), (b, q, said) = one, other
    losses = (p - q).abs().max().item() if ACCUMULATE == 1 and len(p) and len(p) == len(q) else 0.0
    return [(a - b).abs().max().item(), losses, said]


CASES = [
    (name, size, loss)
    for loss in asked.get("losses", ["tokens"])
    for name in asked.get("loops") or LOOPS
    for size in asked.get("sizes", [29])
    if name not in asked.get("but", [])
]
BATCH = 4
whole_batch = BATCH if WHOLE else BATCH * RANKS
if asked.get("plain"):
    alone = in_sessions(CASES, 1, whole_batch * ACCUMULATE, 1)
else:
    alone = in_sessions(CASES, 1, whole_batch, ACCUMULATE)
fit = [case for case in CASES if not isinstance(alone[case], str)]
together = in_sessions(fit, RANKS, BATCH, ACCUMULATE)
for case in CASES:
    print(json.dumps([*case, compare(alone[case], together.get(case, ""))]), flush=True)
