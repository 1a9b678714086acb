"""The halves of a GAN have a scaler each."""

import torch
from torch import nn


def train(loader, noise):
    generator = nn.Linear(16, 64).cuda()
    critic = nn.Linear(64, 1).cuda()
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
    opt_d = torch.optim.Adam(critic.parameters(), lr=4e-4)
    scaler_g = torch.amp.GradScaler("cuda")
    scaler_d = torch.amp.GradScaler("cuda")
    for real in loader:
        opt_d.zero_grad()
        with torch.autocast("cuda"):
            fake = generator(noise(len(real))).detach()
            loss_d = nn.functional.softplus(critic(fake)).mean() + nn.functional.softplus(-critic(real)).mean()
        scaler_d.scale(loss_d).backward()
        scaler_d.unscale_(opt_d)
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        scaler_d.step(opt_d)
        scaler_d.update()

        opt_g.zero_grad()
        with torch.autocast("cuda"):
            loss_g = nn.functional.softplus(-critic(generator(noise(len(real))))).mean()
        scaler_g.scale(loss_g).backward()
        scaler_g.unscale_(opt_g)
        nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        scaler_g.step(opt_g)
        scaler_g.update()
