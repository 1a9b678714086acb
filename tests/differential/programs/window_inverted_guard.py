"""Batches inside of a window leave early; what stands below is the end of one."""

import torch
from torch import nn


def train(loader, accumulate=4):
    model = nn.Linear(12, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y) / accumulate
        scaler.scale(loss).backward()
        if (i + 1) % accumulate != 0:
            continue
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
