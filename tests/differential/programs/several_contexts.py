"""autocast beside another context in one statement."""

import torch
from torch import nn


def run_epoch(model, optimizer, scaler, loader, train):
    for x, y in loader:
        with torch.set_grad_enabled(train), torch.autocast("cuda"):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
        if train:
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
