# shows: the first epoch makes the scaler, and the others find it
import torch


def train(model, loader, optimizer, epochs):
    scaler = None
    for epoch in range(epochs):
        if epoch == 0:
            scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
