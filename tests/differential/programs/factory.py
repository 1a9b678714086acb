"""A factory makes model, optimizer and scaler."""

import torch
from torch import nn


def build(width):
    model = nn.Linear(width, width).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    return model, optimizer, scaler


def main(loader):
    model, optimizer, scaler = build(32)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
