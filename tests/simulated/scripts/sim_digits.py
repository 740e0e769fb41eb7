"""The digits example, on two ranks of the simulated accelerator and in one process on the CPU.

The argument: the folder of the examples.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

import torchbus_simulator as accelerator

sys.path.insert(0, sys.argv[1])
import digits

EPOCHS, BATCH, TRAIN = 2, 64, 1500


def train(device):
    """The parts of the example, on a device that it would not choose: it asks for CUDA."""
    torch.manual_seed(0)
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    data = TensorDataset((images / 16).float().view(-1, 1, 8, 8), labels)
    loader = DataLoader(torch.utils.data.Subset(data, range(TRAIN)), BATCH, shuffle=True)
    test_loader = DataLoader(torch.utils.data.Subset(data, range(TRAIN, len(data))), 256)
    model = digits.Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        digits.train(model, loader, nn.CrossEntropyLoss(), optimizer, device)
        accuracy = digits.evaluate(model, test_loader, device)
    return torch.cat([value.detach().flatten() for value in model.parameters()]), accuracy


accelerator.load(devices=2)
with session(strategy="ddp", devices=2, batch="global", launch="fork") as s:
    values, accuracy = train("sim")
    equal = all(torch.equal(values, other) for other in s.all_gather(values))
    s.print(values.device, equal)
    values = values.cpu()
if s.is_main:
    expected, of_one = train("cpu")
    print(float((expected - values).abs().max()), accuracy == of_one)
