"""The scaler is reached through a property."""

import torch
from torch import nn


class Optimization:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self._grad_scaler = torch.amp.GradScaler("cuda")

    @property
    def scaler(self):
        return self._grad_scaler

    def train(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
