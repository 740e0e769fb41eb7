"""Stops by a loss that it read before backward, so from its own samples; steps by hand, no loader,
no optimizer.
"""

from itertools import count

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)
W_target, b_target = torch.randn(3, 1) * 5, torch.randn(1) * 5


def get_batch(batch_size=32):
    random = torch.randn(batch_size)
    x = torch.cat([random.unsqueeze(1) ** i for i in range(1, 4)], 1)
    return x, x.mm(W_target) + b_target.item()


fc = torch.nn.Linear(3, 1)
for steps in count(1):
    batch_x, batch_y = get_batch()
    fc.zero_grad()
    output = F.smooth_l1_loss(fc(batch_x), batch_y)
    loss = output.item()
    output.backward()
    for param in fc.parameters():
        param.data.add_(-0.1 * param.grad)
    if loss < 1e-3:
        break
print(f"Loss: {loss:.6f} after {steps} batches")
