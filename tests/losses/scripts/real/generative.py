"""GANs, diffusion, autoencoders, flows."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from real.table import loop, mlp, numbers


def real_and_latent(r):
    return TensorDataset(numbers(r.size, 6), numbers(r.size, 3, seed=8))


@loop
def dcgan(r):
    """The tutorial: labels made in the loop, two backwards before the discriminator's step."""
    G, D = mlp(3, 8, 6), nn.Sequential(mlp(6, 8, 1), nn.Sigmoid())
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-3)
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-3)
    criterion = nn.BCELoss()
    for _ in range(2):
        for real, z in r.loader(real_and_latent(r), shuffle=True):
            D.zero_grad()
            label = torch.full((real.size(0),), 1.0)
            loss_real = criterion(D(real).view(-1), label)
            loss_real.backward()
            fake = G(z)
            label.fill_(0.0)
            loss_fake = criterion(D(fake.detach()).view(-1), label)
            loss_fake.backward()
            opt_d.step()
            G.zero_grad()
            label.fill_(1.0)
            loss_g = criterion(D(fake).view(-1), label)
            loss_g.backward()
            opt_g.step()
            r.log(loss_real)
            r.log(loss_fake)
            r.log(loss_g)
    return [G, D]


@loop
def lazy_r1(r):
    """StyleGAN: a penalty on real samples in every second iteration, by a backward of its own."""
    G, D = mlp(3, 8, 6), mlp(6, 8, 1)
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, eps=1e-3)
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, eps=1e-3)
    for i, (real, z) in enumerate(r.loader(real_and_latent(r))):
        opt_d.zero_grad(set_to_none=True)
        loss = F.softplus(D(G(z).detach())).mean() + F.softplus(-D(real)).mean()
        loss.backward()
        r.log(loss)
        if i % 2 == 0:
            x = real.detach().requires_grad_(True)
            (grads,) = torch.autograd.grad(D(x).sum(), x, create_graph=True)
            penalty = 10.0 * grads.square().sum(1).mean()
            penalty.backward()
            r.log(penalty)
        opt_d.step()
        D.requires_grad_(False)
        opt_g.zero_grad(set_to_none=True)
        loss = F.softplus(-D(G(z))).mean()
        loss.backward()
        opt_g.step()
        D.requires_grad_(True)
        r.log(loss)
    return [G, D]


@loop
def wgan_n_critic(r):
    """The generator steps in every third iteration; weights are clipped by hand."""
    G, D = mlp(3, 8, 6), mlp(6, 8, 1)
    opt_d = torch.optim.RMSprop(D.parameters(), lr=5e-3, eps=1e-2)
    opt_g = torch.optim.RMSprop(G.parameters(), lr=5e-3, eps=1e-2)
    for _ in range(2):
        for i, (real, z) in enumerate(r.loader(real_and_latent(r))):
            opt_d.zero_grad()
            loss_d = -torch.mean(D(real)) + torch.mean(D(G(z).detach()))
            loss_d.backward()
            opt_d.step()
            for p in D.parameters():
                p.data.clamp_(-0.3, 0.3)
            r.log(loss_d)
            if i % 3 == 0:
                opt_g.zero_grad()
                loss_g = -torch.mean(D(G(z)))
                loss_g.backward()
                opt_g.step()
                r.log(loss_g)
    return [G, D]


@loop
def diffusion(r):
    """Weights of each sample by its time step, an average of the weights."""
    model = mlp(7, 16, 6)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    betas = torch.linspace(1e-2, 0.3, 10)
    bars = (1 - betas).cumprod(0)
    steps = torch.arange(r.size) * 7 % 10
    data = TensorDataset(numbers(r.size, 6), numbers(r.size, 6, seed=8), steps)
    for _ in range(2):
        for x, noise, t in r.loader(data, shuffle=True):
            bar = bars[t][:, None]
            seen = bar.sqrt() * x + (1 - bar).sqrt() * noise
            out = model(torch.cat([seen, t[:, None] / 10], 1))
            snr = bars[t] / (1 - bars[t])
            weight = torch.stack([snr, 5 * torch.ones_like(snr)], 1).min(1)[0] / snr
            loss = (F.mse_loss(out, noise, reduction="none").mean(1) * weight).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            ema.update_parameters(model)
            r.log(loss)
    return [model, ema]


@loop
def beta_vae(r):
    """Sums over everything, divided by the batch."""
    encoder, decoder = mlp(6, 8, 4), mlp(2, 8, 6)
    opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2, eps=1e-3)
    data = TensorDataset(numbers(r.size, 6), numbers(r.size, 2, seed=8))
    for epoch in range(2):
        for x, noise in r.loader(data, shuffle=True):
            mu, log_var = encoder(x).chunk(2, 1)
            out = decoder(mu + noise * (0.5 * log_var).exp())
            recon = F.mse_loss(out, x, reduction="sum") / x.shape[0]
            kld = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp()) / x.shape[0]
            loss = recon + (0.1 + 0.2 * epoch) * kld
            opt.zero_grad()
            loss.backward()
            opt.step()
            r.log(loss)
            r.log(loss)
    return [encoder, decoder]


@loop
def flow(r):
    """Bits per dimension."""
    net = mlp(3, 8, 6)
    opt = torch.optim.Adamax(net.parameters(), lr=1e-2, eps=1e-3)
    for (x,) in r.loader(TensorDataset(numbers(r.size, 6)), shuffle=True):
        a, b = x.chunk(2, 1)
        shift, log_scale = net(a).chunk(2, 1)
        z = torch.cat([a, b * log_scale.tanh().exp() + shift], 1)
        log_p = -0.5 * (z.square() + math.log(2 * math.pi)).sum(1) + log_scale.tanh().sum(1)
        loss = -log_p.mean() / (math.log(2) * 6)
        opt.zero_grad()
        loss.backward()
        opt.step()
        r.log(loss)
    return [net]


@loop
def distillation(r):
    teacher, student = mlp(6, 8, 4), mlp(6, 5, 4)
    teacher.eval()
    for p in teacher.parameters():
        p.requires_grad = False
    opt = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    labels = torch.arange(r.size) % 4
    for _ in range(2):
        student.train()
        for x, y in r.loader(TensorDataset(numbers(r.size, 6), labels), shuffle=True):
            with torch.no_grad():
                soft = F.softmax(teacher(x) / 4, dim=1)
            out = student(x)
            kd = F.kl_div(F.log_softmax(out / 4, 1), soft, reduction="batchmean") * 16
            loss = 0.7 * kd + 0.3 * F.cross_entropy(out, y, label_smoothing=0.1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            r.log(loss)
    return [student]


@loop
def byol(r):
    """A target network that follows the online one."""
    online, predictor = mlp(6, 8, 4), mlp(4, 8, 4)
    target = copy.deepcopy(online)
    opt = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.1)
    data = TensorDataset(numbers(r.size, 6), numbers(r.size, 6, seed=8))
    for _ in range(2):
        for a, b in r.loader(data, shuffle=True):
            b = a + 0.1 * b
            p1, p2 = predictor(online(a)), predictor(online(b))
            with torch.no_grad():
                t1, t2 = target(a), target(b)
            cos = nn.functional.cosine_similarity
            loss = (2 - 2 * cos(p1, t2, dim=-1) + 2 - 2 * cos(p2, t1, dim=-1)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            for p, q in zip(online.parameters(), target.parameters()):
                q.data = q.data * 0.9 + p.data * 0.1
            r.log(loss)
    return [online, predictor, target]
