"""What is right: several objects that are called step parts of the model before one update."""

import torch


class Step:
    def __init__(self, m, scaler):
        self.m, self.scaler, self.opt = m, scaler, torch.optim.Adam(m.parameters())

    def __call__(self, loss):
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)


class T:
    def __init__(self, m, n):
        self.m = m
        self.scaler = torch.amp.GradScaler()
        self.g, self.d = Step(m, self.scaler), Step(n, self.scaler)
        self.opts = {"wm": Step(m, self.scaler)}

    def train(self, loader):
        for b in loader:
            with torch.autocast("cuda"):
                l = self.m(b)
            self.g(l)
            self.d(l)
            self.opts["wm"](l)
            self.scaler.update()
