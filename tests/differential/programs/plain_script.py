"""A script without clipping: everything at module level."""

import torch
from data import loader
from torch import nn

model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
criterion = nn.CrossEntropyLoss()

for _ in range(10):
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            outputs = model(inputs.cuda())
            loss = criterion(outputs, targets.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
