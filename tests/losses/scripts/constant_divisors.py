import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
asked = json.loads(sys.argv[1])
CONSTANT = 8 if asked.get("batch") == "global" else 4
g = torch.Generator().manual_seed(1)
x, y = torch.randn(32, 3, generator=g), (torch.rand(32, generator=g) > 0.4).long()


def constant(errors, mask, size):
    return errors.sum() / size


def masked(errors, mask, size):
    return errors[mask].sum() / mask.sum().clamp(min=1)


def expected(loss, samples, window):
    size = 8 if asked["devices"] == 2 else 4
    batches = list(zip(x[:samples].split(size), y[:samples].bool().split(size)))
    for start in range(0, len(batches), window):
        part = batches[start : start + window]
        rows, mask = (torch.cat(both) for both in zip(*part))
        weight = torch.ones(1, 3, requires_grad=True)
        loss((rows @ weight.T).squeeze(1).square(), mask, size * len(part)).backward()
        yield weight.grad[0]


def steps(s, loss):
    net, found = torch.nn.Linear(3, 1, bias=False), []
    torch.nn.init.ones_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    note = optimizer.register_step_pre_hook(
        lambda *_: found.append(whole(net.weight.grad)[0].clone())
    )
    for samples, _ in asked["epochs"]:
        for rows, labels in DataLoader(TensorDataset(x[:samples], y[:samples]), CONSTANT):
            optimizer.zero_grad()
            loss(net(rows).squeeze(1).square(), labels.bool(), CONSTANT).backward()
            optimizer.step()
    note.remove()
    return found


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


apart = {}
for loss in (constant, masked):
    windows = {epoch: window for epoch, (_, window) in enumerate(asked["epochs"])}
    ways = (
        {"strategy": asked["strategy"], "devices": 2, "launch": "fork", "accelerator": "cpu"}
        if asked["devices"] == 2
        else {}
    )
    with session(
        **ways, accumulate_grad_batches=windows, batch=asked.get("batch", "per_device")
    ) as s:
        found = steps(s, loss)
    of_one = [
        gradient
        for samples, window in asked["epochs"]
        for gradient in expected(loss, samples, window)
    ]
    assert len(found) == len(of_one) > len(asked["epochs"])
    apart[loss.__name__] = max(float((a - b).abs().max()) for a, b in zip(found, of_one))
print(json.dumps(apart))
