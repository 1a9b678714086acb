# shows: contexts that one method enters and another one leaves, out of a list, a dict or a stack
import contextlib

import torch


class AC:
    def __init__(self):
        self.stack = []

    def start(self):
        c = torch.autocast("cuda")
        c.__enter__()
        self.stack.append(c)

    def stop(self):
        self.stack.pop().__exit__(None, None, None)


def train(model, loader, opt):
    ac, scaler = AC(), torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        ac.start()
        loss = torch.nn.functional.mse_loss(model(x), y)
        ac.stop()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


class Stage:
    def __init__(self):
        self._stack = contextlib.ExitStack()

    def begin(self):
        self._stack.enter_context(torch.autocast("cuda"))

    def end(self):
        self._stack.close()


def train2(model, loader, opt):
    ac, scaler = Stage(), torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        ac.begin()
        loss = torch.nn.functional.mse_loss(model(x), y)
        ac.end()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


class Named:
    def __init__(self):
        self.open = {}

    def start(self, name):
        cm = torch.autocast("cuda")
        self.open[name] = cm
        cm.__enter__()

    def stop(self, name):
        self.open.pop(name).__exit__(None, None, None)


def train_named(model, loader, opt):
    ac, scaler = Named(), torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        ac.start("f")
        loss = torch.nn.functional.mse_loss(model(x), y)
        ac.stop("f")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


class Live:
    def __init__(self, factories):
        self.factories, self.live = factories, []

    def begin(self):
        self.live = [f() for f in self.factories]
        for c in self.live:
            c.__enter__()

    def end(self):
        while self.live:
            self.live.pop().__exit__(None, None, None)


def train3(model, loader, opt):
    ac, scaler = Live([lambda: torch.autocast("cuda")]), torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        ac.begin()
        loss = torch.nn.functional.mse_loss(model(x), y)
        ac.end()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
