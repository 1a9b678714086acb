"""What is right: a loss scaler is called, which computes no loss."""

import torch


def train(model, loader, loss_scaler, optimizer):
    for x in loader:
        with torch.cuda.amp.autocast():
            loss, _, _ = model(x)
        loss_value = loss.item()
        loss_scaler(loss, optimizer, parameters=model.parameters())
