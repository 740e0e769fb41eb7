"""What a loop prints of its loss: parts_of_a_loss.py RANKS STRATEGY"""

import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

RANKS, STRATEGY = int(sys.argv[1]), sys.argv[2]


def printed(s, step):
    # what one epoch prints, with a ragged last batch
    torch.manual_seed(0)
    net = s.adopt(torch.nn.Linear(3, 1))
    learned = [s.adopt(torch.nn.Parameter(torch.zeros(2)))] if step is of_learned_weights else []
    optimizer = torch.optim.SGD([*net.parameters(), *learned], lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    found = []
    for x, y in DataLoader(
        TensorDataset(torch.randn(20, 3), torch.randn(20, 1)), batch_size=6 // RANKS
    ):
        optimizer.zero_grad()
        error = net(x) - y
        b = of_positives(error) if step is of_unlike_counts else error.abs().mean()
        a = error if step in OF_SAMPLES else error.square().mean()
        found.append([one.item() for one in step(scaler, a, b, *learned)])
        optimizer.step()
    return found


def of_positives(error):
    chosen = error > 0
    return (error.abs() * chosen).sum() / chosen.sum().clamp(min=1)


def plain(scaler, a, b):
    a.backward()
    return [a]


def of_scaler(scaler, a, b):
    scaler.scale(a).backward()
    return [a]


def divided(scaler, a, b):
    (a / 4).backward()
    return [a]


def scaled_and_divided(scaler, a, b):
    a = a / 4
    scaler.scale(a).backward()
    return [a]


def of_sum(scaler, a, b):
    total = a + 0.1 * b
    scaler.scale(total / 2).backward()
    return [a, b, total]


def of_dict(scaler, a, b):
    losses = {"a": a, "b": b, "both": a - b}
    sum(losses.values()).backward()
    return list(losses.values())


def of_stack(scaler, a, b):
    losses = [a, b]
    torch.stack(losses).sum().backward()
    return losses


def in_a_helper(scaler, a, b):
    def update(loss):
        scaler.scale(loss).backward()

    total = a + b
    update(total)
    return [a, b, total]


def of_a_factor_of_its_own(scaler, a, b):
    (a * torch.tensor(0.25)).backward()
    return [a]


def of_learned_weights(scaler, a, b, logs):
    loss = torch.exp(-logs[0]) * a + logs[0] + b / (2 * logs[1].exp()) + logs.sum()
    loss.backward()
    return [a, b, loss]


class Trainer:
    def update(self, a, b):
        self.losses = {"a": a, "b": b}
        self.loss = a + 0.5 * b
        self.loss.backward()
        return [*self.losses.values(), self.loss]


def of_attributes(scaler, a, b):
    return Trainer().update(a, b)


def of_unlike_counts(scaler, a, b):
    loss = 2 * a + b
    loss.backward()
    return [a, b, loss]


def of_a_mean(scaler, a, b):
    losses = {"a": a, "b": b}
    sum(losses.values()).mean().backward()
    return list(losses.values())


def of_one_element(scaler, a, b):
    first, second = torch.zeros(1), torch.zeros(1)
    first += a
    second += b
    second *= 0.05
    loss = (first + second) * 2
    loss.backward()
    return [first, second, loss]


def sum_over_samples(scaler, error, b):
    total = error.square().sum()
    (total / len(error)).backward()
    return [total]


def sums_over_samples(scaler, error, b):
    first, second = error.square().sum(), -0.5 * (error.abs() + 1).sum()
    total = first + second
    (total / len(error)).backward()
    return [first, second, total]


OF_SAMPLES = (sum_over_samples, sums_over_samples)


def kept(scaler, a, b):
    scaler.scale(a).backward(retain_graph=True)
    return [a * 0]


def view(scaler, a, b):
    two = torch.stack([a, b])
    first, second = two.unbind()
    (first + second).backward()
    return [first * 0]


STEPS = [
    of_unlike_counts,  # in the first backwards, where ranks compare the counts of terms
    plain,
    of_scaler,
    divided,
    scaled_and_divided,
    of_sum,
    of_dict,
    of_stack,
    in_a_helper,
    of_a_factor_of_its_own,
    of_attributes,
    of_a_mean,
    of_one_element,
    sum_over_samples,
    sums_over_samples,
    kept,
    view,
]
STEPS += [of_learned_weights] if STRATEGY == "ddp" else []  # used outside of a forward
with session(
    strategy=STRATEGY if RANKS > 1 else None,
    devices=RANKS,
    launch="fork" if RANKS > 1 else "auto",
    accelerator="cpu",
) as s:
    print(json.dumps({step.__name__: printed(s, step) for step in STEPS}))
