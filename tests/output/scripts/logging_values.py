import torch
import torch.distributed as dist
from logging_head import Hears, loop, tell
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchmetrics import MeanMetric

hears, metric, counts = Hears(), MeanMetric(), {}


def counted(function, name):
    def call(*args, **kwargs):
        counts[name] = counts.get(name, 0) + 1
        return function(*args, **kwargs)

    return call


with session(devices=2, launch="fork", logger=hears, autolog=False) as s:
    nine = DataLoader(TensorDataset(torch.arange(9.0)), batch_size=2)
    for x in loop(nine, epochs=2):
        s.log("nine", x.mean(), on_epoch=True)
        s.log("most", x.max(), on_epoch=True, reduce="max")
        s.log("all", x.sum(), on_epoch=True, reduce="sum")
        s.log("step", x.mean(), sync_dist=True)
        s.log("own", float(s.rank))
        metric.update(x)
        s.log("metric", metric)
    with torch.no_grad():
        for (x,) in nine:
            s.log("evaluated", x.mean(), on_epoch=True)
        if s.is_main:
            for (x,) in DataLoader(
                TensorDataset(torch.arange(9.0)), batch_size=2
            ):  # rank 0 alone: no log point
                s.log("alone", x.mean(), on_epoch=True, sync_dist=False)
    # rank 0 has four samples of mean 5, rank 1 three of mean 6: 38 / 7
    s.log("unequal", 5.0 + s.rank, on_epoch=True, batch_size=4 - s.rank)
    s.log_dict(
        {f"m{number}": torch.tensor(float(number + s.rank)) for number in range(50)}, sync_dist=True
    )
    for name in (
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "broadcast",
        "all_gather_into_tensor",
    ):
        setattr(dist, name, counted(getattr(dist, name), name))
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2)
    before = dict(counts)
    for plugin_name, plugin in s._context.bus.plugins():
        if plugin_name == "log.points":
            plugin.reach_point()
    counts = {name: count - before.get(name, 0) for name, count in counts.items()}
    tell(s, hears, counts=counts)
