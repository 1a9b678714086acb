"""What is right: norms are summed up and divided by the scale."""

import torch


def train(m, loader, log):
    opt = torch.optim.Adam(m.parameters())
    scaler = torch.amp.GradScaler()
    for b in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = m(b)
        scaler.scale(loss).backward()
        total = 0.0
        for p in m.parameters():
            total += p.grad.norm() ** 2
        log(total.sqrt() / scaler.get_scale())
        scaler.step(opt)
        scaler.update()
