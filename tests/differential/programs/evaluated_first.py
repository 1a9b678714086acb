"""One function evaluates and trains, as a flag tells it; the evaluation comes first."""

import torch
from torch import nn


def run_epoch(model, loader, optimizer, scaler, train):
    model.train(train)
    for x, y in loader:
        with torch.set_grad_enabled(train), torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(x), y)
        if train:
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


def main(model, batches, held_out):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    run_epoch(model, held_out, None, None, train=False)
    for _ in range(10):
        run_epoch(model, batches, optimizer, scaler, train=True)
        run_epoch(model, held_out, None, None, train=False)
