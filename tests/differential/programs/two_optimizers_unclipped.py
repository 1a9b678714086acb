"""Two optimizers step one after the other without a clip."""

import torch
from torch import nn


class Autoencoder:
    def __init__(self):
        self.down = nn.Linear(20, 5).cuda()
        self.up = nn.Linear(5, 20).cuda()
        self.down_optimizer = torch.optim.Adam(self.down.parameters(), lr=1e-3)
        self.up_optimizer = torch.optim.Adam(self.up.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x in loader:
            self.down_optimizer.zero_grad()
            self.up_optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(self.up(self.down(x)), x)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.down_optimizer)
            self.scaler.step(self.up_optimizer)
            self.scaler.update()
