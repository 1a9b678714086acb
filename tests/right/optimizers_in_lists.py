# shows: joined lists, filtered lists and lists by key hold optimizers of their own
import torch


def train_sum(a, bs, loader):
    main = [torch.optim.Adam(a.parameters())]
    aux = [torch.optim.Adam(b.parameters()) for b in bs]
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = a(x).mean() + sum(b(x).mean() for b in bs)
        scaler.scale(loss).backward()
        for o in main + aux:
            scaler.step(o)
            o.zero_grad()
        scaler.update()


class T:
    def __init__(self, a, bs):
        self.main = torch.optim.Adam(a.parameters())
        self.aux = {k: torch.optim.Adam(b.parameters()) for k, b in bs.items()}
        self.a, self.bs = a, bs
        self.scaler = torch.amp.GradScaler("cuda")

    def one(self, x):
        with torch.autocast("cuda"):
            loss = self.a(x).mean() + sum(b(x).mean() for b in self.bs.values())
        self.scaler.scale(loss).backward()
        for o in [self.main, *self.aux.values()]:
            self.scaler.step(o)
            o.zero_grad()
        self.scaler.update()

    def two(self, x):
        with torch.autocast("cuda"):
            loss = self.a(x).mean() + sum(b(x).mean() for b in self.bs.values())
        self.scaler.scale(loss).backward()
        for o in [self.main] + list(self.aux.values()):
            self.scaler.step(o)
            o.zero_grad()
        self.scaler.update()


def live(models, loader):
    opts = [torch.optim.Adam(m.parameters()) for m in models]
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = sum(m(x).mean() for m in models)
        scaler.scale(loss).backward()
        alive = [o for o in opts if any(p.grad is not None for g in o.param_groups for p in g["params"])]
        for o in alive:
            scaler.unscale_(o)
        for o in alive:
            scaler.step(o)
        scaler.update()


def train(models, loader, plan):
    opts = {n: torch.optim.Adam(m.parameters()) for n, m in models.items()}
    scaler = torch.amp.GradScaler("cuda")
    for step, x in enumerate(loader):
        active = [n for n in models if step % plan[n] == 0]
        for n in active:
            opts[n].zero_grad()
        with torch.autocast("cuda"):
            loss = sum(models[n](x).mean() for n in active)
        scaler.scale(loss).backward()
        for n in active:
            scaler.step(opts[n])
        scaler.update()
