"""One epoch as a function, with a clipped norm; the objects come from the caller."""

import torch
from torch import nn


def train_epoch(model, optimizer, scaler, loader, device):
    model.train()
    total = 0.0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            outputs = model(inputs)
            loss = nn.functional.cross_entropy(outputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total / len(loader)
