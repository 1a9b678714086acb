# shows: a scaler for each optimizer, in lists that comprehensions go through, alone and in pairs
import torch


def train_one_epoch(model, classifiers, optimizers, scalers, loader, criterion, mixed):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16, enabled=mixed):
            outputs = [c(model(x)) for c in classifiers]
            losses = [criterion(output, y) for output in outputs]
        if mixed:
            [s.scale(loss).backward() for s, loss in zip(scalers, losses)]
            [s.step(o) for s, o in zip(scalers, optimizers)]
            [s.update() for s in scalers]
        else:
            [loss.backward() for loss in losses]
            [o.step() for o in optimizers]
        [o.zero_grad() for o in optimizers]


def main(model, classifiers, loader, criterion, mixed):
    optimizers = [torch.optim.AdamW(c.parameters()) for c in classifiers]
    scalers = [torch.amp.GradScaler("cuda") if mixed else None for _ in optimizers]
    for _ in range(10):
        train_one_epoch(model, classifiers, optimizers, scalers, loader, criterion, mixed)
