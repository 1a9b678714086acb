"""The names of torch before 2.4."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast


def train(loader, model, optimizer):
    scaler = GradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with autocast():
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
