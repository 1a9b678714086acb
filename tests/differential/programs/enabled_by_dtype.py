"""The scaler is on for float16 only; a disabled one does nothing."""

import torch
from torch import nn


def train(loader, dtype="float16", grad_clip=1.0):
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
    ctx = torch.amp.autocast(device_type="cuda", dtype=ptdtype)
    for x, y in loader:
        with ctx:
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
