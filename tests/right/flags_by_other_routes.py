# shows: one flag that reaches the scaler by one way and autocast by another
import torch
from torch import nn


class Base:
    def __init__(self, cfg):
        self.cfg = cfg


class Solver(Base):
    def __init__(self, cfg, model):
        super().__init__(cfg)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", enabled=cfg.amp)

    def step(self, batch):
        with torch.autocast("cuda", enabled=self.cfg.amp):
            loss = self.model(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Flow(nn.Module):
    def __init__(self, mixed_precision):
        super().__init__()
        self.mixed_precision = mixed_precision
        self.features = nn.Linear(3, 3)

    def forward(self, image):
        with torch.autocast("cuda", enabled=self.mixed_precision):
            features = self.features(image)
        return features.float()


def train(args, loader):
    model = nn.DataParallel(Flow(args.half))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=args.half)
    for image, flow in loader:
        optimizer.zero_grad()
        loss = (model(image) - flow).abs().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def as_item_and_attribute(cfg, model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda", enabled=vars(cfg)["amp"])
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=cfg.amp):
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def checked_before(cfg, model, optimizer, loader):
    if cfg.amp and not cfg.scale:
        raise ValueError("mixed precision needs a loss scale")
    scaler = torch.amp.GradScaler("cuda", enabled=cfg.scale)
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=cfg.amp):
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def another_flag_may_say_so(args, model, optimizer, loader, scaler=None):
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=args.amp):
            loss = model(batch).mean()
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
        if args.amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
