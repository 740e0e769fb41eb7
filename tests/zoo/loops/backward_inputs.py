"""Two losses over one graph, each sent to its own half of the model with backward(inputs=...)."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(50, 4, generator=torch.Generator().manual_seed(54))
loader = DataLoader(TensorDataset(x, x.roll(1, 1)), batch_size=args.batch_size, shuffle=True)
encoder, critic = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*encoder.parameters(), *critic.parameters()], lr=1e-2)
for epoch in range(3):
    for source, target in loader:
        optimizer.zero_grad()
        code = encoder(source).tanh()
        score = critic(code)
        task_loss = nn.functional.mse_loss(code, target) - 0.1 * score.mean()
        critic_loss = (score - target.mean(1, keepdim=True)).square().mean()
        task_loss.backward(inputs=list(encoder.parameters()), retain_graph=True)
        critic_loss.backward(inputs=list(critic.parameters()))
        optimizer.step()
    print(f"epoch {epoch} done")
