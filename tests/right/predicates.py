# shows: functions that only compute an answer are called while a step is under way
import torch


def is_last(number, window):
    if window == 1:
        return True
    return (number + 1) % window == 0


def train(model, loader, optimizer, window):
    scaler = torch.amp.GradScaler("cuda")
    is_small = lambda norm: norm < 100.0  # noqa: E731
    for number, batch in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(batch).mean() / window
        scaler.scale(loss).backward()
        if is_last(number, window) or number + 1 == len(loader):
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not is_small(norm):
                print("large")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
