# shows: an optimizer of the project's own steps through the scaler that it was given
import torch


class ScaledOptimizer(torch.optim.Optimizer):
    def __init__(self, base, scaler):
        self.base = base
        self.scaler = scaler
        self.param_groups = base.param_groups

    def step(self, closure=None):
        self.scaler.step(self.base)
        self.scaler.update()

    def zero_grad(self, set_to_none=True):
        self.base.zero_grad(set_to_none=set_to_none)


def train(model, loader):
    scaler = torch.amp.GradScaler("cuda")
    optimizer = ScaledOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), scaler)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        optimizer.step()
