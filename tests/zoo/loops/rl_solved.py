"""Actor and critic that play until the running reward of this process's own episodes is high
enough.
"""

from itertools import count

import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    """Walk right to the end; a step costs nothing, an episode ends after twelve."""

    def reset(self):
        self.place, self.time = 0, 0
        return torch.tensor([0.0, 0.0])

    def step(self, action):
        self.place, self.time = max(0, self.place + (1 if action else -1)), self.time + 1
        return (
            torch.tensor([self.place / 4, self.time / 12]),
            float(self.place >= 4),
            self.place >= 4 or self.time >= 12,
        )


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine, self.action_head, self.value_head = (
            nn.Linear(2, 16),
            nn.Linear(16, 2),
            nn.Linear(16, 1),
        )
        self.saved_actions, self.rewards = [], []

    def forward(self, x):
        x = torch.relu(self.affine(x))
        return torch.softmax(self.action_head(x), -1), self.value_head(x)


torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
env, model = Corridor(), Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
running_reward = 0.2
for episode in count(1):
    state, done, ep_reward = env.reset(), False, 0.0
    while not done:
        probs, value = model(state)
        m = Categorical(probs)
        action = m.sample()
        model.saved_actions.append((m.log_prob(action), value))
        state, reward, done = env.step(action.item())
        model.rewards.append(reward)
        ep_reward += reward
    running_reward = 0.05 * ep_reward + 0.95 * running_reward
    R, returns = 0.0, []
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    losses = [
        -log_prob * (R - value.item()) + (value - R).pow(2).sum()
        for (log_prob, value), R in zip(model.saved_actions, returns, strict=True)
    ]
    optimizer.zero_grad()
    loss = torch.stack(losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:], model.saved_actions[:]
    if running_reward > 0.6:
        break
print(f"Solved after {episode} episodes")
