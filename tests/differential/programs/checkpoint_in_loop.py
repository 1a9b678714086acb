"""The checkpoint is written where the training is."""

import torch
from torch import nn


def train(loader, out_dir, epochs):
    model = nn.Linear(32, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        state = {"epoch": epoch}
        state["weights"] = model.state_dict()
        state["optimizer"] = optimizer.state_dict()
        state["amp"] = scaler.state_dict()
        torch.save(state, f"{out_dir}/{epoch}.pt")
