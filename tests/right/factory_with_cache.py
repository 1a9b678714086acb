# shows: a factory that remembers its scaler
from functools import cache

import torch


@cache
def get_scaler():
    return torch.amp.GradScaler("cuda")


def train(model, opt, loader):
    for x in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        get_scaler().scale(loss).backward()
        get_scaler().step(opt)
        get_scaler().update()
