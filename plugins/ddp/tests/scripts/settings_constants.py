import json

import numpy as np
import torch
from settings_head import F, plain, train

state = {"k": 0.0}


def began(s, out, target, step):
    one, two = F.cross_entropy(out, target), out.square().mean()
    loss = one - state["k"] * two
    state["k"] += 0.1 * (one - two).item()
    return loss


def mixup(s, out, target, step):
    lam = np.random.beta(1.0, 1.0)
    return lam * F.cross_entropy(out, target) + (1 - lam) * F.cross_entropy(out, target.flip(0))


def tokens(s, out, target, step):
    counted = target != 0
    return F.cross_entropy(out, target, reduction="none")[counted].sum() / max(
        counted.sum().item(), 1
    )


def smooth(s, out, target, step):
    return F.cross_entropy(out, target, label_smoothing=[0.1, 0.3][s.is_main])


def factor(s, out, target, step):
    return F.cross_entropy(out, target) + [0.4, 0.3][s.is_main] * out.square().mean()


def classes(s, out, target, step):
    return F.cross_entropy(out, target, weight=torch.tensor([1.0, 2.0, [3.0, 4.5][s.is_main]]))


def beta(s, out, target, step):
    return F.smooth_l1_loss(out, torch.zeros_like(out), beta=[0.5, 0.7][s.is_main])


def same(s, out, target, step):
    return 0.3 * F.cross_entropy(out, target) / (1 + step) + 0.01 * out.square().sum() / 12


def whole(s, out, target, step):
    return F.cross_entropy(out, target) / [2, 3][s.is_main]


cases = {
    "began": began,
    "mixup": mixup,
    "tokens": tokens,
    "smooth": smooth,
    "factor": factor,
    "classes": classes,
    "beta": beta,
    "same": same,
    "whole": whole,
}


def scaled(s, out, target, step):
    loss = F.cross_entropy(out, target)
    return loss / loss.detach()


def by_rows(s, out, target, step):
    return (len(out) / 8) * F.cross_entropy(out, target) + 0.1 / len(out) * out.square().sum()


found = {name: train(plain, loss) for name, loss in cases.items()}
uneven = {"devices": 3, "batch": "global", "batch_size": 8}
for loss in (scaled, factor, by_rows, tokens, same):
    found[f"uneven {loss.__name__}"] = train(plain, loss, **uneven)
print(json.dumps(found))
