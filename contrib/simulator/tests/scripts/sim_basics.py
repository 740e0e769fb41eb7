"""Uses the simulated accelerator as a separate device, and prints its waits and limits."""

import torch
from torch import nn

import torchbus_simulator as accelerator

accelerator.load(devices=2)
print(torch.accelerator.current_accelerator(), torch.accelerator.device_count())
print("used already:", torch.sim.is_initialized())

torch.manual_seed(0)
x = torch.randn(3, 4)
there = x.to("sim")
print(there.device, there.is_cpu, torch.equal((there @ there.T).cpu(), x @ x.T))

for wrong in (lambda: there + x, lambda: there + x.to("sim:1"), lambda: there.numpy()):
    try:
        wrong()
        print("mixed")
    except (RuntimeError, TypeError) as error:
        print(str(error).splitlines()[0][:59])


def train(device, amp=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = x.to(device)
    with accelerator.host_waits() as waits:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=amp is not None):
                loss = model(data).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [p.detach().cpu() for p in model.parameters()], list(map(str, waits)), loss


for amp, near in ((None, 1e-6), (torch.bfloat16, 3e-2)):
    here, there, loss = train("cpu", amp), train("sim", amp), None
    same = all(
        torch.allclose(a, b, rtol=near, atol=near / 10)
        for a, b in zip(here[0], there[0], strict=True)
    )
    print("trains as the CPU:", same, there[1])

with accelerator.host_waits() as waits:
    value = there[2].item()
    if there[2] > 0:
        torch.nonzero(torch.ones(3, device="sim"))
    x.to("sim")
    x.pin_memory().to("sim", non_blocking=True)
    torch.ones(2, device="sim").to("cpu", non_blocking=True)
    torch.sim.synchronize()
print([wait.what for wait in waits], all("sim_basics.py" in str(wait) for wait in waits))

torch.manual_seed(1)
one, state = torch.rand(3, device="sim"), torch.sim.get_rng_state()
two = torch.nn.functional.dropout(torch.ones(50, device="sim"))
torch.sim.set_rng_state(state)
again = torch.nn.functional.dropout(torch.ones(50, device="sim"))
torch.manual_seed(1)
host = torch.rand(3)
print("random:", torch.equal(two, again), torch.equal(torch.rand(3, device="sim"), one))

accelerator.limit_memory(8, 0)
before = torch.sim.memory_allocated()
block = torch.empty(2**20, device="sim")
print(torch.sim.memory_allocated() - before)
try:
    torch.empty(2**20, device="sim")
except torch.OutOfMemoryError as error:
    print(str(error)[:60])
print(torch.sim.mem_get_info()[1])
del block
torch.empty(2**20, device="sim")
