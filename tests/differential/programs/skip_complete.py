"""A bad batch is left out: update and zero_grad end it."""

import torch
from torch import nn


def train(loader, model, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            scaler.update()
            optimizer.zero_grad()
            continue
        scaler.step(optimizer)
        scaler.update()
