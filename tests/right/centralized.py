"""What is right: the mean of a gradient is taken off it."""

import torch


def train(m, loader):
    opt = torch.optim.Adam(m.parameters())
    scaler = torch.amp.GradScaler()
    for b in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = m(b)
        scaler.scale(loss).backward()
        for p in m.parameters():
            if p.grad.dim() > 1:
                p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True))
        scaler.step(opt)
        scaler.update()
