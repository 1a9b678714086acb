"""Three ifs in a row with the same flag."""

import torch
from torch import nn


class Learner:
    def __init__(self, use_amp):
        self.use_amp = use_amp
        self.model = nn.Linear(10, 3).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def learn(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", enabled=self.use_amp):
                loss = nn.functional.cross_entropy(self.model(x), y)
            if self.use_amp:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if self.use_amp:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if self.use_amp:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
