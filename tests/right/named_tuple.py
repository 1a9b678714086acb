# shows: a named tuple is taken apart
from typing import NamedTuple

import torch


class Ctx(NamedTuple):
    model: object
    optimizer: object
    scaler: object


def train2(model, loader):
    c = Ctx(model, torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda"))
    for x in loader:
        c.scaler.scale(model(x).mean()).backward()
        model, optimizer, scaler = c
        scaler.unscale_(optimizer)
        c.scaler.step(c.optimizer)
        c.scaler.update()
