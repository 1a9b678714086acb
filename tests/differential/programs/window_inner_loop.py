"""The micro-batches of a step are an inner loop, and one step comes after it."""

import torch
from torch import nn

micro_batches = 5


def train(get_batch, steps):
    model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(steps):
        for _ in range(micro_batches):
            tokens, following = get_batch()
            with torch.autocast("cuda", dtype=torch.float16):
                logits = model(tokens)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten()) / micro_batches
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
