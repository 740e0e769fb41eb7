"""An actor-critic trained on recorded transitions: no forward(), only .pi(), .v() and .loss()."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 10)
        self.fc_pi = nn.Linear(10, 2)
        self.fc_v = nn.Linear(10, 1)

    def pi(self, x, softmax_dim=1):
        return F.softmax(self.fc_pi(torch.tanh(self.fc1(x))), dim=softmax_dim)

    def v(self, x):
        return self.fc_v(torch.tanh(self.fc1(x)))

    def loss(self, s, a, r, s_prime, gamma=0.9):
        td_target = r + gamma * self.v(s_prime)
        delta = td_target - self.v(s)
        pi_a = self.pi(s).gather(1, a)
        actor = -torch.log(pi_a) * delta.detach()
        critic = F.smooth_l1_loss(self.v(s), td_target.detach(), reduction="none")
        return (actor + critic).mean()


def recorded_transitions(n):
    g = torch.Generator().manual_seed(17)
    s = torch.randn(n, 4, generator=g)
    a = torch.randint(0, 2, (n, 1), generator=g)
    r = torch.randn(n, 1, generator=g)
    return TensorDataset(s, a, r, s + 0.1 * torch.randn(n, 4, generator=g))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(recorded_transitions(50), batch_size=args.batch_size, shuffle=True)
    for epoch in range(2):
        for batch in loader:
            loss = model.loss(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"# of episode :{epoch}, loss : {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
