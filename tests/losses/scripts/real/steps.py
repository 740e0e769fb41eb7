"""Optimizers, averages, and gradients that the loop changes."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from real.table import loop, mlp, numbers, points, train_step


class Ema(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for ema, now in zip(self.module.state_dict().values(), model.state_dict().values()):
            ema.copy_(self.decay * ema + (1 - self.decay) * now)


@loop
def timm_like(r):
    model = mlp(6, 8, 8, 4)
    ema = Ema(model, 0.8)
    groups = [{"params": [p], "lr": 0.1 * 0.8**i} for i, p in enumerate(model.parameters())]
    opt = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loader, test = r.loader(points(r), shuffle=True, drop_last=True), r.loader(points(r))
    for _ in range(3):
        model.train()
        for x, y in loader:
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward(create_graph=False)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            opt.step()
            ema.update(model)
            r.log(loss)
        schedule.step()
        model.eval()
        with torch.no_grad():
            right = sum((ema.module(x).argmax(1) == y).sum() for x, y in test)
        r.log(right.double() / len(test.dataset))
    return [model, ema]


@loop
def unfreezing(r):
    """The head first; further layers in groups of their own, with fresh rates."""
    model = mlp(6, 8, 8, 4)
    for p in model[:-1].parameters():
        p.requires_grad = False
    opt = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), 1e-2, eps=1e-3)
    for epoch in range(3):
        if epoch:
            part = model[2 * (2 - epoch)]
            part.requires_grad_(True)
            opt.add_param_group({"params": part.parameters(), "lr": 1e-3})
        for x, y in r.loader(points(r), shuffle=True):
            train_step(r, opt, F.cross_entropy(model(x), y))
    return [model]


@loop
def adaptive_clipping(r):
    """NFNets: each gradient is clipped by hand, by the norm of its rows."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for x, y in r.loader(points(r), shuffle=True):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            most = p.detach().norm(dim=-1, keepdim=True).clamp_(min=1e-3) * 0.05
            norm = p.grad.detach().norm(dim=-1, keepdim=True)
            p.grad.detach().copy_(torch.where(norm > most, p.grad * (most / norm), p.grad))
        opt.step()
        r.log(loss)
    return [model]


@loop
def first_order_maml(r):
    """Gradients of ``autograd.grad``, added up by hand over the tasks of a batch."""
    model = mlp(3, 8, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(numbers(r.size, 6, 3), numbers(r.size, 6, 1, seed=2))
    for xs, ys in r.loader(data):
        opt.zero_grad()
        total = [torch.zeros_like(p) for p in model.parameters()]
        for x, y in zip(xs, ys):
            fast = copy.deepcopy(model)
            inner = F.mse_loss(fast(x[:3]), y[:3])
            grads = torch.autograd.grad(inner, list(fast.parameters()))
            with torch.no_grad():
                for p, g in zip(fast.parameters(), grads):
                    p.sub_(0.1 * g)
            outer = F.mse_loss(fast(x[3:]), y[3:])
            for t, g in zip(total, torch.autograd.grad(outer, list(fast.parameters()))):
                t.add_(g / len(xs))
        for p, t in zip(model.parameters(), total):
            p.grad = t
        opt.step()
    return [model]


class SAM(torch.optim.Optimizer):
    """davda54/sam."""

    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def _grad_norm(self):
        return torch.norm(
            torch.stack(
                [
                    p.grad.norm(p=2)
                    for g in self.param_groups
                    for p in g["params"]
                    if p.grad is not None
                ]
            )
        )


@loop
def sam_two_steps(r):
    model = mlp(6, 8, 4)
    opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for x, y in r.loader(points(r), shuffle=True):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        opt.second_step(zero_grad=True)
        r.log(loss)
    return [model]


@loop
def sam_closure(r):
    model = mlp(6, 8, 4)
    opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for x, y in r.loader(points(r), shuffle=True):

        def closure(x=x, y=y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = closure()
        opt.step(closure)
        opt.zero_grad()
        r.log(loss)
    return [model]


@loop
def lookahead(r):
    """Slow weights by hand, every third step."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    slow = [p.detach().clone() for p in model.parameters()]
    for i, (x, y) in enumerate(r.loader(points(r), shuffle=True)):
        train_step(r, opt, F.cross_entropy(model(x), y))
        if i % 3 == 2:
            with torch.no_grad():
                for p, s in zip(model.parameters(), slow):
                    s.add_(0.5 * (p - s))
                    p.copy_(s)
    return [model]


@loop
def lbfgs(r):
    model = mlp(6, 5, 1)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    for x, _ in r.loader(points(r)):

        def closure(x=x):
            opt.zero_grad()
            loss = F.mse_loss(model(x)[:, 0], x.sum(1).tanh())
            loss.backward()
            return loss

        r.log(opt.step(closure))
    return [model]
