# shows: what is given the scaler, or handed over to be called, may step; the loop updates
import functools

import torch
from engines import Engine, make_step, one_step

shared = torch.amp.GradScaler("cuda")


def built(batches, strategy):
    scaler = torch.amp.GradScaler("cuda")
    step = strategy(scaler)
    for b in batches:
        step(b)
        scaler.update()


def set_up(batches, engine, net, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    engine.setup(net, optimizer, scaler)
    for b in batches:
        engine.run_batch(b)
        scaler.update()


def attribute(batches, engine):
    scaler = torch.amp.GradScaler("cuda")
    engine.scaler = scaler
    for b in batches:
        engine.run_batch(b)
        scaler.update()


def constructed(batches, net, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    engine = Engine(net, optimizer, scaler)
    for b in batches:
        engine.run_batch(b)
        scaler.update()


def bound(batches, net):
    scaler = torch.amp.GradScaler("cuda")
    step = functools.partial(one_step, net=net, scaler=scaler)
    for b in batches:
        step(b)
        scaler.update()


def by_settings(batches, net):
    scaler = torch.amp.GradScaler("cuda")
    step = make_step({"net": net, "scaler": scaler})
    for b in batches:
        step(b)
        scaler.update()


def attached(batches, net, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    engine = Engine(net)
    engine.attach(optimizer, scaler=scaler)
    for b in batches:
        engine(b)
        scaler.update()


def item(batches, net):
    scaler = torch.amp.GradScaler("cuda")
    engine = Engine(net)
    engine.state["scaler"] = scaler
    for b in batches:
        engine.step(b)
        scaler.update()


def appended(batches, net):
    scaler = torch.amp.GradScaler("cuda")
    engine = Engine(net)
    engine.parts.append(scaler)
    for b in batches:
        engine.step(b)
        scaler.update()


def handed_over(batches, step_fn):
    for b in batches:
        step_fn(b)
        shared.update()


class Loop:
    def __init__(self, step_fn):
        self.scaler = torch.amp.GradScaler("cuda")
        self.step_fn = step_fn

    def run(self, batches):
        for b in batches:
            self.step_fn(b)
            self.scaler.update()
