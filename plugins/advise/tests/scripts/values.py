"""A loop that looks at the values of its losses."""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x = torch.randn(6, 4)
    losses = model(x[x[:, 0] > 0]).square()
    loss = losses.mean()
    if torch.isnan(loss) or torch.isinf(loss).any() or not torch.isfinite(loss).all():
        raise ArithmeticError("the loss is no number")
    loss.backward()
    optimizer.step()
    print(f"{loss:.3f}", loss.item(), losses.tolist()[0], losses.detach().numpy().mean())
    while loss.item() < 0.5:
        raise AssertionError("would take for ever")
