"""What is left of the last window is stepped after the loop."""

import torch
from torch import nn


def train(loader, model, accumulate=8):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    optimizer.zero_grad()
    for step, (x, y) in enumerate(loader, start=1):
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(x), y) / accumulate
        scaler.scale(loss).backward()
        if step % accumulate == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    if step % accumulate != 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
