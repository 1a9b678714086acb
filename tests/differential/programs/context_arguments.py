"""The arguments of autocast are kept in a dictionary."""

import torch
from torch import nn


class Translation:
    def __init__(self, model):
        self.model = model
        self.amp = {"device_type": "cuda", "dtype": torch.float16}
        self.optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, loader):
        for source, target in loader:
            with torch.autocast(**self.amp):
                loss = nn.functional.cross_entropy(self.model(source), target)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
