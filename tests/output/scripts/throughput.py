"""A loop on several ranks; rank 0 prints, as JSON, what the session told of its speed.

Arguments: options of the session, and the way in which the loop runs, both as JSON.
"""

import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_testing.recorder import RecordingLogger

NAMES = ("samples_per_sec", "tokens_per_sec", "flops_per_sec", "mfu")


def data(samples=41):
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 5, (samples, 6), generator=generator).double()
    return TensorDataset(x, x.sum(1, keepdim=True))


def words(batch):
    """Tokens that are no padding."""
    return int((batch[0] > 0).sum())


def train(batch_size, after_step, epochs=2, window=1):
    """Return the model. ``window``: batches of each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(epochs):
        for number, (x, y) in enumerate(DataLoader(data(), batch_size=batch_size), 1):
            torch.nn.functional.mse_loss(model(x), y).backward()
            if number % window == 0:
                optimizer.step()
                optimizer.zero_grad()
                after_step()
        with torch.no_grad():
            for x, _ in DataLoader(data(9), batch_size=batch_size):
                model(x)
    return model


def main():
    options, way = (json.loads(one) for one in sys.argv[1:])
    hears, windows = RecordingLogger(), []
    measured = way.pop("measured", True)
    if way.pop("logs", True) and measured:
        options["logger"] = hears
    more = {"throughput_every": 2, "tokens": words, "flops": True, "peak_flops": 1e9}
    leaves_at = way.pop("leaves_at", None)
    with session(launch="fork", **options, **(more if measured else {})) as s:

        def after_step():
            if measured:
                s.barrier()
                last = s.throughput()
                if last is not None and (not windows or last.step > windows[-1].step):
                    windows.append(last)
                    if last.step == leaves_at and s.rank == 1:
                        raise ZeroDivisionError("rank 1 has had enough")

        model = train(4, after_step, **way)
        bits = {name: value.tolist() for name, value in model.state_dict().items()}
        devices = s.all_gather_object([one.device.samples_per_sec for one in windows])
    logged = {name: hears.of(f"throughput/{name}") for name in NAMES} if measured else {}
    found = {
        "windows": [[one.step, one.samples, one.tokens, one.ranks] for one in windows],
        "rates": [[getattr(one, name) for name in NAMES] for one in windows],
        "operations": [(one.device.flops_per_sec or 0) * one.seconds for one in windows],
        "devices": devices,
        "logged": logged,
        "names": sorted({name for line in hears.lines for name in line[2]}),
        "bits": bits,
    }
    print("found", json.dumps(found))


if __name__ == "__main__":
    main()
