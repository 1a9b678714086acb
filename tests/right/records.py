# shows: named tuples that are taken apart, and namespaces, hold what they were made from
from argparse import Namespace
from collections import namedtuple
from types import SimpleNamespace

import torch

Parts = namedtuple("Parts", "model, optimizer, scaler")


def build(rate):
    model = torch.nn.Linear(2, 2)
    return Parts(model, torch.optim.SGD(model.parameters(), lr=rate), scaler=torch.amp.GradScaler("cuda"))


def by_name_and_by_place(loader):
    parts = build(0.1)
    model, optimizer, scaler = parts
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        parts.scaler.scale(loss).backward()
        parts.scaler.step(parts.optimizer)
        scaler.update()


def state(rate):
    made = SimpleNamespace(scaler=torch.amp.GradScaler("cuda"))
    made.model = torch.nn.Linear(2, 2)
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=rate)
    return made


def two_of_them(loader):
    first, second = state(0.1), state(0.2)
    for x in loader:
        for each in (first, second):
            each.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = each.model(x).mean()
            each.scaler.scale(loss).backward()
        first.scaler.step(first.optimizer)
        second.scaler.step(second.optimizer)
        first.scaler.update()
        second.scaler.update()


def handed_on(loader, run, model, optimizer):
    context = Namespace(scaler=torch.amp.GradScaler("cuda"), optimizer=optimizer)
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        context.scaler.scale(loss).backward()
        run(context)
        context.scaler.update()
