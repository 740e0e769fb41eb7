"""pytorch/examples reinforce: an environment, episodes, one backward per episode, no
loader at all.
"""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="REINFORCE example")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--episodes", type=int, default=6)
parser.add_argument("--seed", type=int, default=543)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(args.seed)
random.seed(args.seed)


class Corridor:
    """Walk to the right end; the floor is slippery."""

    def reset(self):
        self.position, self.time = random.uniform(-1, 1), 0
        return self.observe()

    def observe(self):
        return torch.tensor([self.position, self.time / 10])

    def step(self, action):
        self.position += (0.3 if action else -0.3) + random.gauss(0, 0.1)
        self.time += 1
        return self.observe(), self.position, self.time == 10


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 8)
        self.affine2 = nn.Linear(8, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=-1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
env = Corridor()


def select_action(state):
    m = Categorical(policy(state))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R, returns = 0, []
    for r in reversed(policy.rewards):
        R = r + args.gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    optimizer.zero_grad()
    policy_loss = torch.stack(
        [-log_prob * R for log_prob, R in zip(policy.saved_log_probs, returns)]
    ).sum()
    policy_loss.backward()
    optimizer.step()
    policy.rewards.clear()
    policy.saved_log_probs.clear()


for i_episode in range(args.episodes):
    state, done, ep_reward = env.reset(), False, 0.0
    while not done:
        state, reward, done = env.step(select_action(state))
        policy.rewards.append(reward)
        ep_reward += reward
    finish_episode()
    print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}")
