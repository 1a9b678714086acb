"""A window also ends with the last batch."""

import torch
from torch import nn


class Config:
    accumulate = 8
    max_norm = 2.0


def run(config, loader, net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)
    for step, batch in enumerate(loader):
        with torch.autocast("cuda"):
            prediction = net(batch["image"])
            loss = nn.functional.l1_loss(prediction, batch["target"])
            loss = loss / config.accumulate
        scaler.scale(loss).backward()
        if (step + 1) % config.accumulate == 0 or step + 1 == len(loader):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), config.max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
