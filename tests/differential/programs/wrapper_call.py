"""A class with `__call__` does everything from the backward on, as in many vision repositories."""

import torch
from torch import nn


class LossScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, parameters, max_norm=1.0, update_grad=True):
        self._scaler.scale(loss).backward()
        norm = None
        if update_grad:
            self._scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(parameters, max_norm)
            self._scaler.step(optimizer)
            self._scaler.update()
        return norm

    def state_dict(self):
        return self._scaler.state_dict()


def train_one_epoch(model, loader, optimizer, accumulate):
    loss_scaler = LossScaler()
    optimizer.zero_grad()
    for i, (images, labels) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss = loss / accumulate
        loss_scaler(loss, optimizer, model.parameters(), update_grad=(i + 1) % accumulate == 0)
        if (i + 1) % accumulate == 0:
            optimizer.zero_grad()
