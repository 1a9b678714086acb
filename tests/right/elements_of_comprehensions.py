# shows: a comprehension makes as many optimizers, networks and trainers as there are elements, each on its own
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


def by_an_unknown_builder(models, build, loader):
    optimizers = [build(model) for model in models]
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = sum(model(batch).mean() for model in models)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        for number in range(len(optimizers)):
            scaler.step(optimizers[number])
        scaler.update()


def by_name(groups, make, loader, model):
    optimizers = {name: make(weights) for name, weights in groups.items()}
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        model.zero_grad()
        with torch.autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        for name, optimizer in optimizers.items():
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()


def ensemble(size, loader):
    models = [nn.Linear(3, 3) for _ in range(size)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = sum(model(batch).mean() for model in models)
        scaler.scale(loss).backward()
        for model, optimizer in zip(models, optimizers):
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()


def parts_of_one(model, loader):
    optimizers = [torch.optim.SGD(child.parameters(), lr=0.1) for child in model.children()]
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        model.zero_grad()
        with torch.autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        for child, optimizer in zip(model.children(), optimizers):
            scaler.unscale_(optimizer)
            clip_grad_norm_(child.parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()


@dataclass
class Agent:
    name: str
    net: nn.Module
    optimizer: torch.optim.Optimizer


def make_agent(number):
    net = nn.Linear(4, 2)
    return Agent(f"agent{number}", net, torch.optim.Adam(net.parameters()))


def agents(count, episodes):
    team = [make_agent(number) for number in range(count)]
    scaler = torch.amp.GradScaler("cuda")
    for episode in episodes:
        for agent in team:
            agent.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = sum(agent.net(episode[agent.name]).mean() for agent in team)
        scaler.scale(loss).backward()
        for agent in team:
            scaler.unscale_(agent.optimizer)
            clip_grad_norm_(agent.net.parameters(), 0.5)
            scaler.step(agent.optimizer)
        scaler.update()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.Adam(model.parameters())

    def backward(self, batch):
        self.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = self.model(batch).mean()
        self.scaler.scale(loss).backward()

    def step(self):
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def trainers(models, loader):
    side_by_side = [Trainer(model) for model in models]
    for batch in loader:
        for trainer in side_by_side:
            trainer.backward(batch)
        for trainer in side_by_side:
            trainer.step()
