"""nanoGPT's own distributed mode: it starts when RANK is set, and must not start here."""

import argparse
import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
else:
    master_process, seed_offset, ddp_world_size = True, 0, 1

torch.manual_seed(1337 + seed_offset)
x = torch.randn(49, 4, generator=torch.Generator().manual_seed(51))
loader = DataLoader(
    TensorDataset(x, x.pow(3)), batch_size=args.batch_size // ddp_world_size, shuffle=True
)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
if ddp:
    model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if master_process:
        print(f"epoch {epoch}: loss {loss.item():.4f}, {ddp_world_size} process")
if ddp:
    destroy_process_group()
