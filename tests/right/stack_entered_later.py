"""What is right: a context is put on an ExitStack before that is entered."""

from contextlib import ExitStack

import torch


def train(model, loader, optimizer, scaler):
    for x in loader:
        stack = ExitStack()
        stack.enter_context(torch.autocast("cuda"))
        with stack:
            loss = model(x).sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
