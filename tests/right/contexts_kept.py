# shows: contexts that one method enters and another one leaves, out of a list, a dict or a stack
import contextlib

import torch


class InAList:
    def __init__(self):
        self.stack = []

    def begin(self):
        context = torch.autocast("cuda")
        context.__enter__()
        self.stack.append(context)

    def end(self):
        self.stack.pop().__exit__(None, None, None)


class InAStack:
    def __init__(self):
        self._stack = contextlib.ExitStack()

    def begin(self):
        self._stack.enter_context(torch.autocast("cuda"))

    def end(self):
        self._stack.close()


class ByName:
    def __init__(self):
        self.open = {}

    def begin(self):
        context = torch.autocast("cuda")
        self.open["forward"] = context
        context.__enter__()

    def end(self):
        self.open.pop("forward").__exit__(None, None, None)


class FromFactories:
    def __init__(self, factories):
        self.factories, self.live = factories, []

    def begin(self):
        self.live = [make() for make in self.factories]
        for context in self.live:
            context.__enter__()

    def end(self):
        while self.live:
            self.live.pop().__exit__(None, None, None)


def train(region, model, loader, opt):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        region.begin()
        loss = torch.nn.functional.mse_loss(model(x), y)
        region.end()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


def main(model, loader, opt):
    train(InAList(), model, loader, opt)
    train(InAStack(), model, loader, opt)
    train(ByName(), model, loader, opt)
    train(FromFactories([lambda: torch.autocast("cuda")]), model, loader, opt)
