import torch
from torchbus import session


@session(strategy="fsdp", launch="spawn", devices=2, accelerator="cpu")
def train(net, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    return net.state_dict()["weight"].clone()


def make(seed):
    torch.manual_seed(seed)
    net = torch.nn.Linear(4, 2)
    return net, torch.optim.Adam(net.parameters(), lr=0.1)


if __name__ == "__main__":
    other, its_optimizer = make(1)
    net, optimizer = make(0)
    before = other.weight.detach().clone()
    alone, lone = make(0)
    for _ in range(6):
        lone.zero_grad()
        alone(torch.ones(2, 4)).square().mean().backward()
        lone.step()
    train(net, optimizer)
    print(
        torch.allclose(train(net, optimizer), alone.weight, atol=1e-6),
        torch.equal(other.weight, before),
        type(other.weight).__name__,
    )
