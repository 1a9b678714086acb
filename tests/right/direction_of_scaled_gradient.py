# shows: a normalised gradient has no scale
import torch
from torch import autograd, nn


def direction(model, x, scaler):
    x = x.requires_grad_()
    with torch.autocast("cuda"):
        e = model(x).sum()
    (g,) = autograd.grad(scaler.scale(e), x, create_graph=True)
    return nn.functional.normalize(g.flatten(1), dim=1)


def train(D, loader, opt):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        opt.zero_grad()
        loss = (direction(D, x, scaler) * x.flatten(1)).sum(1).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
