"""Without a scaler the loop trains in fp32."""

import torch
from torch import nn


def train_epoch(model, optimizer, loader, scaler=None, max_norm=1.0):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=scaler is not None):
            loss = nn.functional.cross_entropy(model(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
