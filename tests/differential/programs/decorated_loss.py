"""A decorator of the program's own opens the region around the forward pass."""

import functools

import torch
from torch import nn


def mixed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with torch.autocast("cuda"):
            return function(*args, **kwargs)

    return wrapper


@mixed
def compute_loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = compute_loss(model, x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
