# shows: the scaler's state is saved and loaded with others that a method or a loop hands out
import os

import torch


class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=0.1)]
        self.amp = {"net": torch.amp.GradScaler("cuda")}

    def step(self, batch):
        scaler = self.amp["net"]
        self.optimizers[0].zero_grad()
        with torch.autocast("cuda"):
            loss = self.net(batch)
        scaler.scale(loss).backward()
        scaler.step(self.optimizers[0])
        scaler.update()

    def everything(self):
        yield from self.amp.values()

    def save(self):
        states = {"optimizers": [o.state_dict() for o in self.optimizers], "amp": []}
        for each in self.everything():
            states["amp"].append(each.state_dict())
        torch.save(states, "states.pt")


def restore(states, *objects):
    for each, state in zip(objects, states):
        each.load_state_dict(state)


def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    parts = (model, optimizer, scaler)
    if os.path.exists("parts.pt"):
        restore(torch.load("parts.pt"), *parts)
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.save([each.state_dict() for each in parts], "parts.pt")
