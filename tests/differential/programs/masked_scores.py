"""Masked scores get the lowest number of their own type."""

import torch
from torch import nn


def train(loader):
    query = nn.Linear(16, 16).cuda()
    optimizer = torch.optim.AdamW(query.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for x, mask, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scores = query(x)
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            loss = nn.functional.cross_entropy(scores, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(query.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
