"""What is right: the scaler is an attribute of the class."""

import torch


class Engine:
    scaler = torch.amp.GradScaler("cuda")

    def step(self, loss, opt):
        opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(opt)
        self.scaler.update()
