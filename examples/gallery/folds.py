"""A study over cross-validation: optuna chooses, and each trial trains on four folds of the digits.

::

    python examples/gallery/folds.py
"""

from __future__ import annotations

import math

import optuna
import torch
from pictures import scatter
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

FOLDS, TRIALS, EPOCHS = 4, 8, 3
PIXELS, DIGITS = (torch.tensor(one) for one in load_digits(return_X_y=True))
IMAGES = PIXELS.float() / 16


def accuracy_of(fold: tuple[Tensor, Tensor], lr: float, width: int) -> float:
    """Train on the rows of a fold, and count on those that it leaves out."""
    inside, outside = fold
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(EPOCHS):
        data = TensorDataset(IMAGES[inside], DIGITS[inside])
        for images, digits in DataLoader(data, batch_size=64, shuffle=True):
            loss = nn.functional.cross_entropy(model(images), digits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = model(IMAGES[outside]).argmax(1) == DIGITS[outside]
    return float(right.float().mean())


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    width = trial.suggest_int("width", 8, 64, log=True)
    split = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(IMAGES, DIGITS)
    found = []
    for number, rows in enumerate(split):
        inside, outside = map(torch.tensor, rows)
        found.append(accuracy_of((inside, outside), lr, width))
        trial.report(sum(found) / len(found), number)
        if trial.should_prune():
            raise optuna.TrialPruned
    return sum(found) / len(found)


def main() -> None:
    torch.manual_seed(0)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    study.optimize(objective, n_trials=TRIALS)
    best, ended = study.best_trial, [one for one in study.trials if one.value is not None]
    told = ", ".join(f"{name} {value:.3g}" for name, value in best.params.items())
    print(f"best of {len(ended)} trials over {FOLDS} folds: {best.value:.3f}, with {told}")
    points = [[math.log(one.params["lr"]), float(one.value or 0.0)] for one in ended]
    scatter(torch.tensor(points), [int(one.number == best.number) for one in ended], "folds.png")


if __name__ == "__main__":
    with session(strategy="ddp", devices=2, batch="global"):
        main()
