"""A table of phases says what is done with the batches of each."""

import torch
from torch import nn


class Experiment:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cuda")
        self.phases = {"val": self.measure, "train": self.learn}

    def measure(self, x, y):
        with torch.no_grad(), torch.autocast("cuda"):
            nn.functional.cross_entropy(self.net(x), y)

    def learn(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(self.net(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_value_(self.net.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(self, loaders):
        for name in ("val", "train"):
            for x, y in loaders[name]:
                self.phases[name](x, y)
