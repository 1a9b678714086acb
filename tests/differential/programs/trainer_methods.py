"""Forward, backward and the step are methods of their own."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(6, 6).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def forward_loss(self, x, y):
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(self.model(x), y)
        return loss

    def optimize(self):
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = self.forward_loss(x, y)
            self.scaler.scale(loss).backward()
            self.optimize()
