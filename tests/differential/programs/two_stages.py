"""The head is trained first, then the whole model, with one scaler."""

import torch
from torch import nn


def fit(model, optimizer, scaler, loader):
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


def main(model, loader):
    scaler = torch.amp.GradScaler("cuda")
    fit(model, torch.optim.SGD(model.head.parameters(), lr=0.1), scaler, loader)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.01), scaler, loader)
