"""Small projects of several files before the whole linter: what is said, in which file, and what not.

A project is a text with a line "== name" before each file and a mark, `# expect: AMP201`, on each line that something
is said of. The same is said of a file that is given alone, and in whatever order files are given.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Severity

_MARK = re.compile(r"# expect: (AMP\d+)")
#: one step of training for a model, an optimizer, a scaler and a loss that are called so
STEP = """
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
MAKE = """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
"""
BASE = """
== base.py
import torch

class Base:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda"):
                loss = self.model(x).sum()
            self.optimizer.zero_grad()
            self.backward(loss)
            self.after_backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def after_backward(self):
        pass
"""
PROJECTS = {
    "a clip that a derived class adds": BASE
    + """
== middle.py
from base import Base

class Middle(Base):
    def hooks(self):
        return []
== train.py
import torch
from middle import Middle

class Own(Middle):
    def after_backward(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # expect: AMP201
""",
    "a backward that a derived class does otherwise": BASE
    + """
== seg.py
from base import Base

class Seg(Base):
    def backward(self, loss):
        loss.backward()  # expect: AMP203
""",
    "a loss from a file without a word of AMP": f"""
== losses.py
import torch.nn.functional as F

def compute_loss(model, x, y):
    return F.cross_entropy(model(x), y)
== train.py
import torch
from losses import compute_loss

def train(model, loader):{MAKE}
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = compute_loss(model, x, y)
        loss.backward()  # expect: AMP203
        scaler.step(optimizer)
        scaler.update()
""",
    "settings of a file without a word of AMP": """
== conf.py
USE_AMP = False
ACCUMULATE = 1

class Config:
    amp = False
== train.py
import torch
from conf import ACCUMULATE, USE_AMP, Config

def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=USE_AMP)
    for i, x in enumerate(loader):
        with torch.autocast("cuda", enabled=Config.amp):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (i + 1) % ACCUMULATE == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "x.pt")
""",
    "an own scaler that is divided by by hand": """
== fp16.py
class DynamicLossScaler:
    def __init__(self, init=2.0**15):
        self.loss_scale = init

    def scale(self, t):
        return t * self.loss_scale

    def update(self, overflow):
        self.loss_scale = self.loss_scale / 2 if overflow else self.loss_scale
== train.py
import torch
from fp16 import DynamicLossScaler

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = DynamicLossScaler()
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        overflow = any(not torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        if not overflow:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(scaler.loss_scale)
            optimizer.step()
        scaler.update(overflow)
""",
    "optimizers in the objects of another file": """
== phases.py
class Phase:
    def __init__(self, name, module, opt):
        self.name, self.module, self.opt = name, module, opt
== loop.py
import torch
from phases import Phase

def train(G, D, loader):
    phases = [
        Phase("G", G, torch.optim.Adam(G.parameters())),
        Phase("D", D, torch.optim.Adam(D.parameters())),
    ]
    scaler = torch.amp.GradScaler("cuda")
    for real in loader:
        for phase in phases:
            phase.opt.zero_grad(set_to_none=True)
            with torch.autocast("cuda"):
                loss = D(G(real)).mean()
            scaler.scale(loss).backward()
            scaler.step(phase.opt)
            scaler.update()
""",
    "a method that is called once per epoch from another file": """
== main.py
from trainer import Trainer

def main(model, optimizer, loader, epochs):
    trainer = Trainer(model, optimizer)
    for epoch in range(epochs):
        trainer.train_epoch(loader)
== trainer.py
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def train_epoch(self, loader):
        self.scaler = torch.amp.GradScaler("cuda")  # expect: AMP215
        for x in loader:
            with torch.autocast("cuda"):
                loss = self.model(x).sum()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
""",
    "an optimizer's wrapper without an update": """
== optim.py
import torch

class AMPOptimizer:
    def __init__(self, params, lr):
        self.inner = torch.optim.Adam(params, lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def step(self):
        self.scaler.step(self.inner)  # expect: AMP205

    def zero_grad(self):
        self.inner.zero_grad()
== train.py
import torch
from optim import AMPOptimizer

def train(model, loader):
    optimizer = AMPOptimizer(model.parameters(), 1e-3)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.backward(loss)
        optimizer.step()
""",
    "a penalty of scaled gradients in another file": """
== gp.py
import torch

def gradient_penalty(disc, x, scaler):
    with torch.autocast("cuda"):
        out = disc(x)
    grads = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)[0]  # expect: AMP218
    with torch.autocast("cuda"):
        return ((grads.norm(2, dim=1) - 1) ** 2).mean()
== train.py
import torch
from gp import gradient_penalty

def main(disc, loader):
    optimizer = torch.optim.Adam(disc.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for real in loader:
        loss = 10 * gradient_penalty(disc, real, scaler)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a flag that a base class keeps": """
== base.py
import torch

class BaseModel:
    def __init__(self, opt):
        self.opt = opt
        self.scaler = torch.amp.GradScaler("cuda", enabled=opt["amp"])
== sr.py
import torch
from base import BaseModel

class SRModel(BaseModel):
    def __init__(self, opt):
        super().__init__(opt)
        self.net = torch.nn.Linear(3, 3)
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def optimize_parameters(self, x):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", enabled=self.opt["amp"]):
            loss = self.net(x).sum()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
""",
    "a clip that a package offers under another name": """
== pkg/__init__.py
from .clip import clip_gradients as limit
== pkg/clip.py
import torch

def clip_gradients(params, value):
    torch.nn.utils.clip_grad_norm_(params, value)  # expect: AMP201
== train.py
import torch
from pkg import limit

def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        limit(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
    "a decorator of another file that opens a region": """
== deco.py
import functools
import torch

def amp(dtype=torch.float16):
    def around(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            with torch.autocast("cuda", dtype=dtype):
                return fn(*args, **kwargs)
        return wrapper
    return around

def simple(fn):
    def wrapper(*args, **kwargs):
        with torch.autocast("cuda"):
            return fn(*args, **kwargs)
    return wrapper
== train.py
import torch
from deco import amp, simple

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    @amp()
    def batch(self, x):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(x).sum()).backward()  # expect: AMP101
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @simple
    def loss(self, x):
        return self.model(x).sum()

    def other(self, x):
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss(x)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, loader):
        for x in loader:
            self.batch(x)
            self.other(x)
""",
    "a resume in a file of its own": """
== resume.py
import torch

def maybe_resume(trainer, path):
    ckpt = torch.load(path, map_location="cpu")
    trainer.model.load_state_dict(ckpt["model"])
    trainer.optimizer.load_state_dict(ckpt["optimizer"])  # expect: AMP502
== trainer.py
import torch
from resume import maybe_resume

class Trainer:
    def __init__(self, model, path):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")
        maybe_resume(self, path)

    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda"):
                loss = self.model(x).sum()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        torch.save(
            {"m": self.model.state_dict(), "o": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}, "x.pt"
        )
""",
    "a schedule that a hook of another file steps": """
== hooks.py
class LrHook:
    def after_iter(self, trainer):
        trainer.scheduler.step()  # expect: AMP219
== trainer.py
import torch
from hooks import LrHook

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda"):
                loss = self.model(x).sum()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            LrHook().after_iter(self)
""",
    "a model that another file loads in 16 bits": f"""
== load.py
import torch
from transformers import AutoModel

def load(name):
    return AutoModel.from_pretrained(name, torch_dtype=torch.float16).cuda()  # expect: AMP401
== train.py
import torch
from load import load

def main(loader):
    model = load("x"){MAKE}
    for x in loader:{STEP}
""",
    "a checkpoint in the fields of a record": """
== state.py
from typing import NamedTuple

class TrainerState(NamedTuple):
    epoch: int
    states: dict
== train.py
import torch
from state import TrainerState

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def state(self, epoch):
        return TrainerState(epoch, {"optimizer": self.optimizer.state_dict()})  # expect: AMP501

    def fit(self, loader):
        for epoch in range(3):
            for x in loader:
                with torch.autocast("cuda"):
                    loss = self.model(x).sum()
                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            torch.save(self.state(epoch).states, "x.pt")
""",
    "the limit of a clip comes from a dict of options": """
== train.py
import torch


def train(model, loader, cfg):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).sum()
        opt.zero_grad()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), **cfg.grad_clip)  # expect: AMP201
        scaler.step(opt)
        scaler.update()
""",
    "any options may reach a helper that clips": """
== train.py
import torch


def apply(loss, opt, params, scaler, clip=None):
    scaler.scale(loss).backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(params, clip)  # expect: AMP201
    scaler.step(opt)
    scaler.update()


def train(model, loader, opt, scaler, **options):
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).sum()
        opt.zero_grad()
        apply(loss, opt, model.parameters(), scaler, **options)
""",
    "a constant of a layer, three modules away from the region": """
== main.py
import torch

from nets import Net
from nets.engine import epoch


def main(loader):
    model = Net(8, 2).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    epoch(model, loader, optimizer, scaler)
== nets/__init__.py
from .net import Net
== nets/engine.py
import torch


def epoch(model, loader, optimizer, scaler):
    for x, mask in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x, mask).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
== nets/net.py
from torch import nn

from .layers import Attention


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)

    def forward(self, x, mask):
        return x + self.attention(x, mask)


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])

    def forward(self, x, mask):
        for block in self.blocks:
            x = block(x, mask)
        return x
== nets/layers.py
import torch
from torch import nn

FAR = -1e9


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q = nn.Linear(width, width)

    def forward(self, x, mask):
        scores = self.q(x) @ x.transpose(-1, -2)
        if scores.dtype == torch.float32:
            return scores.masked_fill(mask, -1e12) @ x
        return scores.masked_fill(mask, FAR) @ x  # expect: AMP403


class Unused(nn.Module):
    def forward(self, x, mask):
        return (x @ x).masked_fill(mask, FAR)
""",
    "a wrapped model in a list, and a loss of another module": """
== spectra.py
import torch
from torch import nn


class Spectral(nn.Module):
    def forward(self, seen, wanted):
        return (torch.fft.rfft(seen).abs() - torch.fft.rfft(wanted.float()).abs()).mean()  # expect: AMP406


def log_loss(p, y):
    return -(y * torch.log(p + 1e-8)).mean()  # expect: AMP404


def safe_log_loss(p, y):
    return -(y * torch.log(p.float() + 1e-8)).mean()
== train.py
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import spectra
from spectra import log_loss, safe_log_loss


def run(loader, rank):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda(rank)
    critic = nn.Linear(8, 1).cuda(rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train([DDP(net, device_ids=[rank]), critic], optimizer, loader, torch.amp.GradScaler("cuda"))


def train(nets, optimizer, loader, scaler):
    net, _ = nets
    spectral = spectra.Spectral()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = net(x)
            loss = spectral(out, y) + log_loss(out, y) + safe_log_loss(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a network that a trainer of another module is given": """
== nets.py
import torch
import torch.nn.functional as F
from torch import nn


class Product(torch.autograd.Function):  # expect: AMP107
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class Base(nn.Module):
    def forward(self, x):
        h = self.encode(x)
        with torch.autocast("cuda", enabled=False):
            d = torch.cdist(h, h)  # expect: AMP106
        return Product.apply(d, self.w)


class Encoder(Base):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.w = nn.Parameter(torch.ones(8, 8))

    def encode(self, x):
        return F.relu(self.fc(x))
== trainer.py
import torch


class Trainer:
    def __init__(self, net, optimizer):
        self.net = net
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.net(x).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
== run.py
import torch

import nets
from trainer import Trainer

net = nets.Encoder().cuda()
Trainer(net, torch.optim.SGD(net.parameters(), lr=0.1)).fit(loader)
""",
    "a context manager of another module": """
== mixed.py
from contextlib import contextmanager

import torch


@contextmanager
def mixed(enabled):
    if enabled:
        with torch.autocast("cuda", dtype=torch.float16):
            yield
    else:
        yield
== train.py
import torch
import torch.nn.functional as F

from mixed import mixed


def train(net, optimizer, loader):
    for x, y, mask in loader:
        optimizer.zero_grad()
        with mixed(True):
            out = torch.mm(x, net.weight).masked_fill(mask, -1e9)  # expect: AMP403
        loss = F.cross_entropy(out.float().masked_fill(mask, -1e9), y)
        loss.backward()
        optimizer.step()
""",
    "helpers that hold half of what a rule asks for": """
== amp.py
import torch

BFLOAT = torch.autocast("cuda", dtype=torch.bfloat16)


def clip(parameters):
    return torch.nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)  # expect: AMP223


def half():
    return torch.autocast("cuda", dtype=torch.float16)
== train.py
import torch

from amp import BFLOAT, clip, half


def unscaled(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        with half():  # expect: AMP110
            loss = model(x).sum()
        loss.backward()
        optimizer.step()


def clipped(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with half():
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(model.parameters())
        scaler.step(optimizer)
        scaler.update()
""",
    "a network that a package builds, four files away": """
== models/__init__.py
from .net import *


def build_model(width):
    return Net(width)
== models/net.py
from torch import nn

import models.layers as layers


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = layers.Attention(width)

    def forward(self, x, mask):
        return self.attention(x, mask)
== models/constants.py
FAR = -1e9
== models/layers.py
from torch import nn

from .constants import FAR
from .product import product


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q = nn.Linear(width, width)

    def forward(self, x, mask):
        return product(self.q(x).masked_fill(mask, FAR), x)  # expect: AMP403
== models/product.py
import torch


class Product(torch.autograd.Function):  # expect: AMP107
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


product = Product.apply
== train.py
import torch

from models import build_model


def main(loader):
    model = build_model(8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, mask in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x, mask).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "casts that a decorator or a partial of another module makes": """
== compat.py
import functools

import torch

amp_fwd = functools.partial(torch.amp.custom_fwd, device_type="cuda")
amp_bwd = functools.partial(torch.amp.custom_bwd, device_type="cuda")


def careful(function):
    @functools.wraps(function)
    def wrapped(*args):
        with torch.autocast("cuda", enabled=False):
            return function(*(a.float() for a in args))

    return wrapped
== layers.py
import torch

from compat import amp_bwd, amp_fwd, careful


class Product(torch.autograd.Function):
    @staticmethod
    @amp_fwd
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @amp_bwd
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


@careful
def entropy(p):
    return -(p * (p + 1e-12).log()).sum()
== train.py
import torch
from torch import nn

from layers import Product, entropy


def main(loader):
    net = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = entropy(Product.apply(net(x), net.weight))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a loop does not know what the network of another file returns": """
== engine.py
import torch


def epoch(model, loader, optimizer, scaler):
    for x, y, mask in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            p = model(x)
            loss = -(y * (p / (p.amax() + 1e-8))).masked_fill(mask, -1e9).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
== main.py
import torch
from torch import nn

from engine import epoch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x).softmax(-1)


def main(loader):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    epoch(net, loader, optimizer, torch.amp.GradScaler("cuda"))
""",
    "a helper that is right for what others give it": """
== spectra.py
import torch
import torch.nn.functional as F


def magnitude(y, width):
    y = F.pad(y.unsqueeze(1), (width, width)).squeeze(1)
    return torch.fft.rfft(y).abs()


def inverse(y):
    return torch.linalg.inv(y @ y.transpose(-1, -2))  # expect: AMP406
== train.py
import torch
from torch import nn
from torch.nn.utils import weight_norm

from spectra import inverse, magnitude


def main(loader):
    net = nn.Sequential(weight_norm(nn.Linear(8, 8)), nn.Tanh()).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = net(x)
            loss = (magnitude(out, 4) - magnitude(y, 4)).mean() + inverse(out.float()).sum()  # expect: AMP406
            loss = loss + magnitude(out.float(), 4).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a base class that a variable of a third module holds": """
== bases.py
from torch import nn

Base = nn.Module if True else object
== nets.py
from bases import Base

Kind = Base
if not Kind:
    Kind = object


class Net(Kind):
    def forward(self, x):
        return (x @ x + 1e-9).log()  # expect: AMP404
== train.py
import torch

from nets import Net


def main(loader):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = net.inner(x).mean() + net(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "constants of another module that depend on something": """
== const.py
import os

FAR = -1e9
if os.environ.get("HALF"):
    FAR = -1e4

EPS: float = 1e-9


def careful():
    global EPS
    EPS = 1e-4
== net.py
from torch import nn

from const import EPS, FAR


class Net(nn.Module):
    def forward(self, x, mask):
        return ((x @ x).masked_fill(mask, FAR) + EPS).log()
== train.py
import torch

from net import Net


def main(loader):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, mask in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = net(x, mask).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
}
WRAPPER = """
== misc.py
import torch

class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer):
        self._scaler.scale(loss).backward()MARK
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state):
        self._scaler.load_state_dict(state)
"""
TRAINER = """
== trainer.py
import torch

class Trainer:
    def __init__(self, model, optimizer, hook):
        self.model, self.optimizer, self.hook = model, optimizer, hook
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).sum()
            self.scaler.scale(loss).backward()
            self.hook(self)
            self.scaler.step(self.optimizer)
            self.scaler.update()
== main.py
import torch
from hooks import Limit
from trainer import Trainer

def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(model, optimizer, Limit()).fit(loader)
"""
PROJECTS |= {
    "a clip in an object that a third file hands to the trainer": TRAINER
    + """
== hooks.py
import torch

class Limit:
    def __call__(self, trainer):
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)  # expect: AMP201
""",
    "the same after unscale_": TRAINER
    + """
== hooks.py
import torch

class Limit:
    def __call__(self, trainer):
        trainer.scaler.unscale_(trainer.optimizer)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
""",
    "a wrapper of a scaler that a third file calls in its region": WRAPPER.replace("MARK", "  # expect: AMP101")
    + """
== engine.py
import torch

def train_one_epoch(model, loader, optimizer, loss_scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).sum()
            loss_scaler(loss, optimizer)
== main.py
import torch
from engine import train_one_epoch
from misc import NativeScaler

def main(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_scaler = NativeScaler()
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, loss_scaler)
""",
    "a wrapper of a scaler that nobody asks for its state": WRAPPER.replace("MARK", "")
    + """
== main.py
import torch
from misc import NativeScaler

def main(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_scaler = NativeScaler()
    for epoch in range(args.epochs):
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).sum()
            loss_scaler(loss, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.path)  # expect: AMP501
""",
    "a wrapper of a scaler that is not given its state back": WRAPPER.replace("MARK", "")
    + """
== main.py
import torch
from misc import NativeScaler

def main(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_scaler = NativeScaler()
    if args.resume:
        state = torch.load(args.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])  # expect: AMP502
    for epoch in range(args.epochs):
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).sum()
            loss_scaler(loss, optimizer)
        held = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        held["scaler"] = loss_scaler.state_dict()
        torch.save(held, args.path)
""",
    "a step that a derived class does past the scaler": """
== base.py
import torch

class Base:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def optimizer_step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).sum()
            self.scaler.scale(loss).backward()
            self.optimizer_step()
== task.py
from base import Base

class Task(Base):
    def optimizer_step(self):
        self.optimizer.step()  # expect: AMP204
""",
    "a backward that a derived class runs in the region of its base class": """
== base.py
import torch

class Base:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def training_step(self, x):
        raise NotImplementedError

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                self.training_step(x)
            self.scaler.step(self.optimizer)
            self.scaler.update()
== task.py
from base import Base

class Task(Base):
    def training_step(self, x):
        loss = self.model(x).mean()
        self.scaler.scale(loss).backward()  # expect: AMP101
        return loss
""",
    "a loss that is handed to an engine": """
== engine.py
import torch

def train(model, criterion, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)  # expect: AMP105
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
== main.py
import torch
from engine import train

def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, torch.nn.BCELoss(), loader, optimizer, torch.amp.GradScaler("cuda"))
""",
    "a norm that an engine reads is named once": """
== engine.py
import torch

def grad_norm(model):
    return sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5  # expect: AMP202

def train_one_epoch(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        print(grad_norm(model))
        scaler.step(optimizer)
        scaler.update()
== main.py
import torch
from engine import train_one_epoch

def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(90):
        train_one_epoch(model, loader, optimizer, scaler)
""",
}


def write(folder: Path, project: str) -> set[tuple[str, int, str]]:
    """Write a project's files; what is to be said, as (file, line, code)."""
    expected: set[tuple[str, int, str]] = set()
    (folder / "pyproject.toml").write_text("")
    for part in re.split(r"^== ", dedent(project), flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for number, line in enumerate(text.splitlines(), 1):
            expected |= {(name, number, code) for code in _MARK.findall(line)}
    return expected


def said(folder: Path, *paths: Path) -> set[tuple[str, int, str]]:
    """What a run over these paths says, but for the spelling of names."""
    run = check(list(paths), Settings(min_severity=Severity.INFO), jobs=1)
    assert not run.errors
    places = [
        (folder / f.place.path if not Path(f.place.path).is_absolute() else Path(f.place.path), f) for f in run.findings
    ]
    return {
        (path.resolve().relative_to(folder.resolve()).as_posix(), f.place.line, f.rule)
        for path, f in places
        if f.rule != "AMP601"
    }


@pytest.mark.parametrize("name", PROJECTS)
def test_what_is_said_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    expected = write(tmp_path, PROJECTS[name])
    assert said(tmp_path, tmp_path) == expected
    files = sorted(tmp_path.rglob("*.py"))
    assert said(tmp_path, *files[::-1]) == expected
    for file in files:
        own = file.relative_to(tmp_path).as_posix()
        assert said(tmp_path, file) == {finding for finding in expected if finding[0] == own}, own
