import json
import sys

import torch
from exact_head import (
    DataLoader,
    F,
    Transformer,
    difference,
    mean_squares,
    mlp,
    next_token,
    nn,
    numbers,
    pipeline,
    state_of,
    tokens,
)

ranks, options = int(sys.argv[1]), json.loads(sys.argv[2])


def train(make, data, loss_of, epochs=2, sums=1, freeze=(), clip=0.5):
    torch.manual_seed(0)
    model = make()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(freeze or "-"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    loader, printed = DataLoader(data, batch_size=8, shuffle=True), []  # the last batch has seven
    for epoch in range(epochs):
        for step, (x, y) in enumerate(loader):
            loss = loss_of(model, x, y)
            loss.backward()
            if (step + 1) % sums == 0:
                printed.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
                optimizer.step()
                optimizer.zero_grad()
            printed.append(loss.item())
        model.eval()
        with torch.no_grad():
            printed.append(sum(float(loss_of(model, x, y)) for x, y in loader))
        model.train()
    return torch.cat([torch.tensor(printed), state_of(model, optimizer)])


def twice(model, x, y):
    return mean_squares(model, x, y) + model(x.flip(1)).square().mean()


def contrastive(model, x, y):
    z = F.normalize(model(x), dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(x)).flip(0))


def input_noise(model, x, y):
    return mean_squares(model, x + 0.1 * torch.randn_like(x), y)


def gan(*_):
    torch.manual_seed(0)
    g, d = mlp(), nn.Sequential(*mlp()[:4], nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 1))
    d[0] = nn.Linear(4, 16)
    for_g = torch.optim.Adam(g.parameters(), lr=1e-2)
    for_d = torch.optim.SGD(d.parameters(), lr=1e-2, momentum=0.9)
    printed = []
    for x, y in DataLoader(numbers(), batch_size=8, shuffle=True):
        for_d.zero_grad()
        fake = g(x)
        of_d = F.softplus(-d(y)).mean() + F.softplus(d(fake.detach())).mean()
        of_d.backward()
        for_d.step()
        for_g.zero_grad()
        of_g = F.softplus(-d(fake)).mean()
        of_g.backward()
        for_g.step()
        printed += [of_d.item(), of_g.item()]
    return torch.cat([torch.tensor(printed), state_of(g, d, for_g, for_d)])


CASES = {
    "sequential": (mlp, numbers(), mean_squares),
    "transformer": (Transformer, tokens(), next_token),
    "sum over samples": (mlp, numbers(), lambda m, x, y: F.mse_loss(m(x), y, reduction="sum")),
    "pairs of samples": (mlp, numbers(), contrastive),
    "two forwards": (mlp, numbers(), twice),
    "noise of the loop": (mlp, numbers(), input_noise),
    "accumulation": (mlp, numbers(), mean_squares, 2, 2),
    "frozen first layers": (mlp, numbers(), mean_squares, 2, 1, "0"),
    "frozen embedding": (Transformer, tokens(), next_token, 1, 1, "embedding"),
}
runs = {name: (lambda arguments=arguments: train(*arguments)) for name, arguments in CASES.items()}
runs["gan"] = gan
alone = {name: run() for name, run in runs.items()}
found, apart = {}, "stages" in options  # with parts of the data, a new model waits for the last
for names in [[name] for name in runs] if apart else [[*runs]]:
    with pipeline(ranks, **options) as s:
        for name in names:
            ours = runs[name]()
            same = all(ours.equal(other) for other in s.all_gather(ours))
            found[name] = [difference(alone[name], ours), same]
print(json.dumps(found))
