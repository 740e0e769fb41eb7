import json

import torch
from options_head import Net, apart, found, made, opened, part, steps

alone, lone = made()
steps(alone, lone, slice(None))
expected = steps(alone, lone, slice(None))
with opened() as s:
    model, optimizer = made()
    steps(model, optimizer, part(s))
    weights, state = {n: v.clone() for n, v in model.state_dict().items()}, optimizer.state_dict()
    found["whole"] = all(
        v.shape in (p.shape, ()) and type(v) is torch.Tensor
        for p, e in zip(model.parameters(), state["state"].values(), strict=True)
        for v in e.values()
    )
    model, optimizer = made()
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    found["goes on"] = apart(steps(model, optimizer, part(s)), expected)
    first = optimizer.state[next(iter(optimizer.state))]["exp_avg"]
    found["loaded in parts"] = first.to_local().numel() / first.numel()
with opened(mixed_precision="bf16") as s:
    model, optimizer = made()
    steps(model, optimizer, part(s))
    found["bf16"] = [
        apart(steps(model, optimizer, part(s)), expected),
        found["computed in"],
        str(next(model.parameters()).dtype),
    ]
    weight = torch.cat([p.detach().full_tensor().reshape(-1) for p in model.parameters()])
    found["alike"] = all(weight.equal(other) for other in s.all_gather(weight))
alone, lone = made(torch.optim.SGD)
total = steps(alone, lone, slice(None))
with opened(loss_reduction="sum") as s:
    model, optimizer = made(torch.optim.SGD)
    found["the sum of means over two ranks is twice the mean"] = apart(
        steps(model, optimizer, part(s), 1), total
    )
    model, optimizer = made(torch.optim.SGD)
    optimizer.param_groups[0]["lr"] /= 2
    found["sum"] = apart(steps(model, optimizer, part(s)), total)
with opened() as s:
    model, optimizer = made()
    torch.set_default_dtype(torch.float32)
    loss = model(torch.full((2, 6), 0.1 + s.rank, dtype=torch.float64)).mean()
    mean = s.reduce(loss.detach().clone())
    loss.backward()
    found["loss"] = [str(loss.dtype), float(loss - mean)]
    torch.set_default_dtype(torch.float64)
kept = Net()
holder = {"model": kept, "optimizer": torch.optim.SGD(kept.parameters(), lr=1.0)}


def later(s):
    kept(torch.ones(2, 6)).mean().backward()
    return type(next(kept.parameters()).grad).__name__


def inside():
    with opened() as s:
        return later(s)


found["made before"] = inside()
print(json.dumps(found))
