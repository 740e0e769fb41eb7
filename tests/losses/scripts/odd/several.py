"""Several backwards, models and optimizers."""

import torch
from torch import nn

from odd.table import loop


@loop
def retain_twice(r):
    for _i, b in r.epochs():
        r.opt.zero_grad()
        loss = r.loss(r.model, b)
        r.back(loss, retain_graph=True)
        r.back(loss, retain_graph=True)
        r.back(0.5 * loss)
        r.opt.step()


@loop
def two_losses_one_graph(r):
    for _i, b in r.epochs():
        r.opt.zero_grad()
        z = r.model(b[0])
        r.back(r.loss_of(z, *b[1:]), retain_graph=True)
        r.back(0.1 * z.square().mean())
        r.opt.step()


@loop
def two_models(r):
    other, opt = r.another(momentum=0.9)
    for _i, b in r.epochs():
        for m, o in ((r.model, r.opt), (other, opt)):
            o.zero_grad()
            r.back(r.loss(m, b))
            o.step()
    r.extra = other


@loop
def two_models_backwards_first(r):
    other, opt = r.another(momentum=0.9)
    for _i, b in r.epochs():
        r.opt.zero_grad()
        opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.back(r.loss(other, b))
        r.opt.step()
        opt.step()
    r.extra = other


@loop
def alternating_models(r):
    other, opt = r.another(momentum=0.9)
    for i, b in r.epochs():
        m, o = ((r.model, r.opt), (other, opt))[i % 2]
        o.zero_grad()
        r.back(r.loss(m, b))
        o.step()
    r.extra = other


@loop
def one_reaches_the_other(r):
    """A GAN's shape: the second loss goes through the first model, whose gradient is cleared before
    its own backward.
    """
    other = nn.Linear(4, 4).double()
    opt = torch.optim.SGD(other.parameters(), lr=0.1)
    for _i, (x, y, t) in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss_of(r.model(other(x).detach()), y, t))
        r.opt.step()
        opt.zero_grad()
        r.back(-0.1 * r.loss_of(r.model(other(x)), y, t))
        opt.step()
    r.extra = other


@loop
def uneven_optimizers(r):
    """Two optimizers of one model, one of which steps at every second batch."""
    r.opt = torch.optim.SGD(r.model.first.parameters(), lr=0.2, momentum=0.5)
    opt = torch.optim.SGD(r.model.second.parameters(), lr=0.1)
    for i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()
        if i % 2:
            opt.step()
            opt.zero_grad()


@loop
def two_optimizers_one_model(r):
    opt = torch.optim.SGD(r.model.second.parameters(), lr=0.1)
    for _i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()
        opt.step()


@loop
def freeze_and_thaw(r):
    for i, b in r.epochs():
        r.model.first.requires_grad_(i % 3 != 1)
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def clip(r):
    for _i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        nn.utils.clip_grad_norm_(r.model.parameters(), 0.3)
        r.opt.step()


@loop
def closure(r):
    for _i, b in r.epochs():

        def again(b=b):
            r.opt.zero_grad()
            loss = r.loss(r.model, b)
            r.back(loss)
            return loss

        r.opt.step(again)


@loop
def sam(r):
    """A step there and back around a second backward."""
    for _i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        with torch.no_grad():
            moves = [0.05 * p.grad for p in r.model.parameters()]
            for p, m in zip(r.model.parameters(), moves, strict=True):
                p.add_(m)
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        with torch.no_grad():
            for p, m in zip(r.model.parameters(), moves, strict=True):
                p.sub_(m)
        r.opt.step()


@loop
def leaves_early(r):
    for _ in range(3):
        for i, b in enumerate(r.loader):
            r.opt.zero_grad()
            r.back(r.loss(r.model, b))
            r.opt.step()
            if i == 1:
                break


@loop
def grad_of_inputs_first(r):
    """autograd.grad for inputs, then a backward."""
    for _i, (x, y, t) in r.epochs():
        x = x.clone().requires_grad_()
        (gx,) = torch.autograd.grad(r.loss_of(r.model(x), y, t), x)
        r.opt.zero_grad()
        r.back(r.loss_of(r.model((x + 0.1 * gx.sign()).detach()), y, t))
        r.opt.step()


@loop
def evaluates_in_between(r):
    for _i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()
        r.model.eval()
        with torch.no_grad():
            sum(r.loss(r.model, c) for c in r.loader)
        r.model.train()


@loop
def assigned(r):
    for _i, b in r.epochs():
        gs = torch.autograd.grad(r.loss(r.model, b), list(r.model.parameters()))
        for p, gr in zip(r.model.parameters(), gs, strict=True):
            p.grad = gr
        r.opt.step()
