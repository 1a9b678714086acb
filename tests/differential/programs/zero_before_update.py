"""Step, clear, update: the order of the last two does not matter."""

import torch
from torch import nn


def loop(loader):
    net = nn.GRU(8, 16, batch_first=True).cuda()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    grad_scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.amp.autocast("cuda"):
            states, _ = net(x)
            loss = nn.functional.mse_loss(states, y)
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        grad_scaler.step(opt)
        opt.zero_grad()
        grad_scaler.update()
