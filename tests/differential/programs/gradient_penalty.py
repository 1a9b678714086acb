"""A penalty on the gradient's norm, which is unscaled by hand."""

import torch
from torch import nn


def train(loader):
    model = nn.Linear(9, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        inverse = 1.0 / scaler.get_scale()
        gradients = [g * inverse for g in scaled]
        with torch.autocast("cuda"):
            norm = sum(g.square().sum() for g in gradients).sqrt()
            loss = loss + 0.1 * norm
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
