import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 6), nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.out(torch.relu(self.hidden(x)))


g = torch.Generator().manual_seed(1)
x, x_test = torch.randn(27, 4, generator=g), torch.randn(10, 4, generator=g)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)
test_loader = DataLoader(TensorDataset(x_test, (x_test[:, 0] > 0).long()), batch_size=4)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
for epoch in range(2):
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in test_loader)
    print(f"epoch {epoch} loss {loss.item():.6f} correct {correct}/{len(test_loader.dataset)}")
    torch.save(model.state_dict(), "model.pt")
