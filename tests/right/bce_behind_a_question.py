# shows: a loss asks whether a region is open, and leaves it where one is
import torch
import torch.nn.functional as F


def bce(probability, target):
    if torch.is_autocast_enabled("cuda"):
        with torch.autocast("cuda", enabled=False):
            return F.binary_cross_entropy(probability.float(), target.float())
    return F.binary_cross_entropy(probability, target)


def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = bce(model(x).sigmoid(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
