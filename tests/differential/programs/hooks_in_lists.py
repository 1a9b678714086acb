"""What happens before and after the step stands in lists of functions."""

import torch
from torch import nn


class Loop:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
        self.before = [self.limit]
        self.after = []
        self.after.append(self.finish)

    def limit(self):
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def finish(self):
        self.scaler.update()

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            for action in self.before:
                action()
            self.scaler.step(self.optimizer)
            for action in self.after:
                action()
