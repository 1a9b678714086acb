# shows: which of two scalers is used is decided for every batch anew, and is the same until its update
import torch


def train(model, optimizer, loader):
    on, off = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda", enabled=False)
    for number, batch in enumerate(loader):
        scaler = on if number < 5 else off
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=number < 5):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
