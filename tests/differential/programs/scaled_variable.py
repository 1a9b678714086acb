"""The scaled loss has a name of its own, and the update stands in a finally."""

import torch
from torch import nn


def train(loader):
    model = nn.Linear(18, 18).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaled_loss = scaler.scale(loss)
        scaled_loss.backward()
        try:
            scaler.step(optimizer)
        finally:
            scaler.update()
