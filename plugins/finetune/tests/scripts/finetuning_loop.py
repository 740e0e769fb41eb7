"""A loop over a model with a backbone, with a hook to unfreeze by hand."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.ModuleDict(
            {
                "layer1": torch.nn.Linear(6, 8),
                "norm": torch.nn.BatchNorm1d(8),
                "layer2": torch.nn.Linear(8, 8),
            }
        )
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        parts = self.backbone
        return self.head(torch.tanh(parts["layer2"](torch.tanh(parts["norm"](parts["layer1"](x))))))


def make(only_head=False):
    torch.manual_seed(0)
    model = Net().double()
    trained = model.head.parameters() if only_head else model.parameters()
    return model, torch.optim.AdamW(trained, lr=0.05, weight_decay=0.1)


def loader():
    torch.manual_seed(3)
    x = torch.randn(48, 6, dtype=torch.float64)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=8)


def train(model, optimizer, before_step=lambda step: None, scheduler=None, epochs=range(2)):
    """Twelve steps. ``before_step`` is called before each forward with the number of the step."""
    step = 0
    for _ in epochs:
        model.train()
        for x, y in loader():
            before_step(step)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            step += 1
    return {name: value.clone() for name, value in model.state_dict().items()}
