"""The loss comes from a function that knows nothing of AMP, and the checkpoint from a record."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Progress:
    epoch: int
    states: dict


def compute_loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def main(model, loader, path):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = compute_loss(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        states = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        }
        progress = Progress(epoch, states)
        torch.save(progress.states, path)
