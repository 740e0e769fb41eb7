import torch
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)


class Averaged(torch.optim.SGD):
    """Keeps the mean of all that a parameter was, which ``swap()`` puts in its place and takes away."""

    def step(self, closure=None):
        super().step(closure)
        self.update()

    @torch.no_grad()
    def update(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                count = state["count"] = state.get("count", 0) + 1
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter, 1 / count)

    @torch.no_grad()
    def swap(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if "mean" in self.state[parameter]:
                    mean = self.state[parameter]["mean"]
                    (
                        mean.copy_(parameter + mean),
                        parameter.copy_(mean - parameter),
                        mean.sub_(parameter),
                    )

    def largest(self):
        return max(float(state["mean"].abs().max()) for state in self.state.values())


def train(batch_size, after_epoch=lambda optimizer: None):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    optimizer = Averaged(net.parameters(), lr=0.3)
    optimizer.swap()
    printed = []
    for epoch in range(3):
        for x in DataLoader(DATA, batch_size=batch_size):
            optimizer.zero_grad()
            (net(x) - 1).square().mean().backward()
            optimizer.step()
        printed.append(optimizer.largest())
        optimizer.swap()
        printed.append(float(net(DATA).sum()))
        after_epoch(optimizer)
        if epoch < 2:
            optimizer.swap()
    return torch.cat(
        [torch.tensor(printed), net.weight.detach().reshape(-1), net.bias.detach()]
    ), optimizer


DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
