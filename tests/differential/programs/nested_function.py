"""The step is a function inside the training function, and is called through a timer."""

import time

import torch
from torch import nn


def main(loader):
    model = nn.Linear(10, 10).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:

        def train_step(x=x, y=y):
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        start = time.perf_counter()
        train_step()
        print(time.perf_counter() - start)
