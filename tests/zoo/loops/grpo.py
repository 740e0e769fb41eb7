"""The shape of GRPO: a policy writes answers to prompts, each process fills a buffer, and a loader
over it is trained on for some epochs.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def write(policy, prompts, length=4):
    tokens = prompts
    for _ in range(length):
        logits = policy(tokens[:, -3:])
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(1), 1)], 1)
    return tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 7))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for iteration in range(3):
        prompts = torch.randint(0, 7, (12, 3))
        answers = write(policy, prompts)
        rewards = (answers[:, 3:] == 1).double().mean(1)
        advantages = rewards - rewards.mean()
        buffer = DataLoader(
            TensorDataset(answers, advantages), batch_size=args.batch_size, shuffle=True
        )
        for _ in range(2):
            for tokens, advantage in buffer:
                logs = policy(tokens[:, :3]).log_softmax(1).gather(1, tokens[:, 3:4]).squeeze(1)
                loss = -(advantage * logs).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"iteration {iteration} reward {rewards.mean().item():.5f}")
    return {"policy": policy, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
