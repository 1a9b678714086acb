"""Whether a window ends is decided early and used twice."""

import torch
from torch import nn


def train(loader, model, optimizer, accumulate):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        is_last_micro = (i + 1) % accumulate == 0
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
            loss = loss / accumulate
        scaler.scale(loss).backward()
        if is_last_micro:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if is_last_micro:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
