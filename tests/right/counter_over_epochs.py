"""What is right: the window is counted over epochs, so that none is dropped at the end of one."""

import torch


def train(m, loader, accum, epochs):
    opt = torch.optim.AdamW(m.parameters())
    scaler = torch.amp.GradScaler()
    micro = 0
    for e in range(epochs):
        for b in loader:
            with torch.autocast("cuda"):
                loss = m(b) / accum
            scaler.scale(loss).backward()
            micro += 1
            if micro % accum:
                continue
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
