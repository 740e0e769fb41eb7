"""PPO on a pole that must not fall: each rank plays different games, and all learn from all.

::

    python examples/gallery/ppo.py

The physics are those of CartPole (Barto, Sutton and Anderson, 1983).
"""

from __future__ import annotations

import torch
from pictures import curve
from torch import Tensor, nn
from torch.distributions import Categorical
from torchbus import session

GAMES, LENGTH, DISCOUNT, LAMBDA, CLIP = 16, 128, 0.99, 0.95, 0.2
REWARD = 0.1  # for each tick
GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N, TICK_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


class Poles:
    """Games side by side. A state is (games, 4): place, speed, angle, angular speed."""

    def __init__(self) -> None:
        self.state = self.begun(GAMES)
        self.age = torch.zeros(GAMES)

    def begun(self, count: int) -> Tensor:
        return torch.rand(count, 4) * 0.1 - 0.05

    def play(self, right: Tensor) -> tuple[Tensor, Tensor]:
        """Push each cart. Returns which games are over, and how long these have lasted."""
        _, speed, angle, turn = self.state.unbind(1)
        force = FORCE_N * (2 * right - 1)
        total, moment = CART_KG + POLE_KG, POLE_KG * HALF_POLE_M
        pushed = (force + moment * turn**2 * angle.sin()) / total
        swing = (GRAVITY * angle.sin() - angle.cos() * pushed) / (
            HALF_POLE_M * (4 / 3 - POLE_KG * angle.cos() ** 2 / total)
        )
        pull = pushed - moment * swing * angle.cos() / total
        changes = torch.stack([speed, pull, turn, swing], 1)
        self.state, self.age = self.state + TICK_S * changes, self.age + 1
        over = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21) | (self.age >= 500)
        ages = self.age[over]
        self.state[over], self.age[over] = self.begun(int(over.sum())), 0.0
        return over, ages


class Player(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.action, self.value = (
            nn.Sequential(
                nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n)
            )
            for n in (2, 1)
        )

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.action(state), self.value(state).squeeze(-1)


@torch.no_grad()
def collect(player: Player, poles: Poles) -> tuple[list[Tensor], list[float]]:
    """Play on for a while: states, actions, their log-probabilities, advantages and returns."""
    rows, ages = [], []
    for _ in range(LENGTH):
        state = poles.state.clone()
        logits, value = player(state)
        chosen = Categorical(logits=logits)
        action = chosen.sample()
        over, lasted = poles.play(action.float())
        rows.append((state, action, chosen.log_prob(action), value, over.float()))
        ages += lasted.tolist()
    states, actions, logs, values, overs = map(torch.stack, zip(*rows, strict=True))
    after = player(poles.state)[1]
    advantages, carried = torch.zeros_like(values), torch.zeros(GAMES)
    for at in reversed(range(LENGTH)):
        surprise = REWARD + DISCOUNT * after * (1 - overs[at]) - values[at]
        carried = surprise + DISCOUNT * LAMBDA * (1 - overs[at]) * carried
        advantages[at], after = carried, values[at]
    played = [states, actions, logs, advantages, advantages + values]
    return [one.flatten(0, 1) for one in played], ages


def main(rounds: int = 30) -> None:
    torch.manual_seed(0)
    player, lasted = Player(), [20.0]
    optimizer = torch.optim.Adam(player.parameters(), lr=1e-3)
    torch.manual_seed(1 + s.rank)  # different games on each rank
    poles = Poles()
    for _ in range(rounds):
        played, ages = collect(player, poles)
        for _ in range(4):
            for rows in torch.randperm(GAMES * LENGTH).chunk(8):
                state, action, log, advantage, returns = (one[rows] for one in played)
                logits, value = player(state)
                chosen = Categorical(logits=logits)
                ratio = (chosen.log_prob(action) - log).exp()
                better = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                held = torch.min(ratio * better, ratio.clamp(1 - CLIP, 1 + CLIP) * better)
                loss = 0.5 * (value - returns).square().mean() - held.mean()
                loss = loss - 0.01 * chosen.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(player.parameters(), 0.5)
                optimizer.step()
        total, count = float(s.reduce(sum(ages), "sum")), float(s.reduce(float(len(ages)), "sum"))
        lasted.append(total / count if count else lasted[-1])
    print(f"a game lasts {lasted[1]:.0f} ticks at first, {lasted[-1]:.0f} at last, of 500 at most")
    curve(lasted, "ppo.png")


if __name__ == "__main__":
    with session(strategy="ddp", devices=2) as s:
        main()
