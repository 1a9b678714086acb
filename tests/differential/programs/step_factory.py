"""A function makes the function that does a step."""

import torch
from torch import nn


def make_step(model, optimizer, scaler):
    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def main(model, loader):
    optimizer = torch.optim.RMSprop(model.parameters())
    learn = make_step(model, optimizer, torch.amp.GradScaler("cuda"))
    for x, y in loader:
        learn(x, y)
