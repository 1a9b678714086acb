"""All optimizers are unscaled in a loop before one clip."""

import torch
from torch import nn


def train(loader):
    body = nn.Linear(8, 8).cuda()
    head = nn.Linear(8, 2).cuda()
    model = nn.Sequential(body, head)
    optimizers = [torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.SGD(head.parameters(), lr=0.01)]
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
