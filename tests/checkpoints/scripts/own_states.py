import json
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session

warnings.simplefilter("ignore")
DATA = torch.randn(61, 16, generator=torch.Generator().manual_seed(1))


def train(s, path, save_at, by_hand, summed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    num_batches = 0
    if not save_at:
        s.load(path)
    for epoch in s.epochs(3):
        for number, x in enumerate(
            DataLoader(DATA if summed else DATA[:40], batch_size=3 if summed else 2, shuffle=True)
        ):
            opens = by_hand and number % 4 < 3
            with s.accumulating(opens):
                loss = (model(x) - x).square()
                (loss.sum() / 48 if summed else loss.mean()).backward()
            if not opens:
                optimizer.step()
                optimizer.zero_grad()
            num_batches += 1
            if num_batches == save_at:
                s.save(path)
    return model.state_dict()["0.weight"].clone()


def run(name, save_at, by_hand, summed, **options):
    with session(
        "checkpoint",
        "accumulate",
        accelerator="cpu",
        launch="fork",
        **{"strategy": "ddp", "devices": 2} | options,
    ) as s:
        return train(s, name, save_at, by_hand, summed)


def apart(save_at, by_hand=False, summed=False, **options):
    name = f"{sorted(options.items())}{by_hand}{summed}{save_at}"
    return float(
        (run(name, save_at, by_hand, summed, **options) - run(name, 0, by_hand, summed, **options))
        .abs()
        .max()
    )


print(json.dumps(eval(sys.argv[1])))
