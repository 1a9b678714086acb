"""autocast with its arguments bound beforehand."""

from functools import partial

import torch
from torch import nn


def train(loader):
    amp_autocast = partial(torch.autocast, device_type="cuda", dtype=torch.float16)
    model = nn.Conv2d(3, 8, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with amp_autocast():
            loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss_scaler.scale(loss).backward()
        loss_scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        loss_scaler.step(optimizer)
        loss_scaler.update()
