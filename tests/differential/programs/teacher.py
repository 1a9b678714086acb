"""An average of the weights is kept in fp32."""

import copy

import torch
from torch import nn


def train(loader, momentum=0.99):
    student = nn.Linear(24, 24).cuda()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    fp16_scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            with torch.no_grad():
                wanted = teacher(x)
            loss = nn.functional.mse_loss(student(x), wanted)
        fp16_scaler.scale(loss).backward()
        fp16_scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        fp16_scaler.step(optimizer)
        fp16_scaler.update()
        with torch.no_grad():
            for mine, theirs in zip(student.parameters(), teacher.parameters(), strict=True):
                theirs.mul_(momentum).add_(mine.detach(), alpha=1 - momentum)
