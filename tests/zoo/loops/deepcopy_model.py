"""The best weights and the best model kept in memory with copy.deepcopy; training restarts from the
copy.
"""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_model(model, loaders, optimizer, num_epochs):
    best_wts = copy.deepcopy(model.state_dict())
    best_loss = float("inf")
    for epoch in range(num_epochs):
        for phase in ("train", "val"):
            model.train(phase == "train")
            running_loss = 0.0
            for inputs, labels in loaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = nn.functional.mse_loss(model(inputs), labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
            epoch_loss = running_loss / len(loaders[phase].dataset)
            if phase == "val":
                print(f"epoch {epoch} val {epoch_loss:.5f}")
            if phase == "val" and epoch_loss < best_loss:
                best_loss, best_wts = epoch_loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_wts)
    return best_loss


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(35)
x = torch.randn(72, 3, generator=g)
sets = {"train": TensorDataset(x[:50], x[:50].exp()), "val": TensorDataset(x[50:], x[50:].exp())}
loaders = {
    k: DataLoader(v, batch_size=args.batch_size, shuffle=k == "train") for k, v in sets.items()
}

teacher = nn.Sequential(nn.Linear(3, 8), nn.ELU(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
best_loss = train_model(teacher, loaders, optimizer, 2)
student = copy.deepcopy(teacher)
student_optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
student_loss = train_model(student, loaders, student_optimizer, 2)
