"""The scaler is made by a base class, the loop stands in the derived one."""

import torch
from torch import nn


class Base:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.grad_scaler = torch.amp.GradScaler("cuda")

    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 12.0)


class Segmentation(Base):
    def train(self, loader):
        for image, mask in loader:
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda"):
                logits = self.model(image)
                loss = nn.functional.cross_entropy(logits, mask)
            self.grad_scaler.scale(loss).backward()
            self.grad_scaler.unscale_(self.optimizer)
            self.clip()
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
