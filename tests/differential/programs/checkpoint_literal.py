"""A checkpoint as one dictionary, and the way back."""

import torch
from torch import nn


def save(path, model, optimizer, scaler, epoch):
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "epoch": epoch,
    }
    torch.save(checkpoint, path)


def main(loader, path, resume=False):
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    first = 0
    if resume:
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        first = checkpoint["epoch"] + 1
    for epoch in range(first, 10):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        save(path, model, optimizer, scaler, epoch)
