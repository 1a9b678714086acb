"""Both halves use one scaler, which is updated once at the end."""

import torch
from torch import nn


class Speech:
    def __init__(self):
        self.net_g = nn.Linear(80, 256).cuda()
        self.net_d = nn.Linear(256, 1).cuda()
        self.optim_g = torch.optim.AdamW(self.net_g.parameters(), lr=2e-4)
        self.optim_d = torch.optim.AdamW(self.net_d.parameters(), lr=2e-4)
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, mel, wave):
        with torch.autocast("cuda"):
            made = self.net_g(mel)
            loss_disc = (self.net_d(made.detach()) ** 2).mean() + ((self.net_d(wave) - 1) ** 2).mean()
        self.optim_d.zero_grad()
        self.scaler.scale(loss_disc).backward()
        self.scaler.unscale_(self.optim_d)
        nn.utils.clip_grad_value_(self.net_d.parameters(), 1.0)
        self.scaler.step(self.optim_d)

        with torch.autocast("cuda"):
            loss_gen = ((self.net_d(made) - 1) ** 2).mean()
        self.optim_g.zero_grad()
        self.scaler.scale(loss_gen).backward()
        self.scaler.unscale_(self.optim_g)
        nn.utils.clip_grad_value_(self.net_g.parameters(), 1.0)
        self.scaler.step(self.optim_g)
        self.scaler.update()

    def fit(self, loader):
        for mel, wave in loader:
            self.step(mel, wave)
