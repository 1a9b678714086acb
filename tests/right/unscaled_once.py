# shows: an object remembers in an attribute that it has unscaled
import torch


class T:
    def __init__(self, model, opt, clip=None, log=False):
        self.model, self.opt, self.clip, self.log = model, opt, clip, log
        self.scaler = torch.amp.GradScaler("cuda")
        self._unscaled = False

    def unscale(self):
        if not self._unscaled:
            self.scaler.unscale_(self.opt)
            self._unscaled = True

    def step(self, x, y):
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        if self.log:
            self.unscale()
            print([p.grad.norm() for p in self.model.parameters()])
        if self.clip is not None:
            self.unscale()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        self._unscaled = False
        self.opt.zero_grad()


class D:
    def __init__(self, model, opt, clip=None, log=False):
        self.model, self.opt, self.clip, self.log = model, opt, clip, log
        self.scaler = torch.amp.GradScaler("cuda")
        self._done = set()

    def unscale(self, name):
        if name not in self._done:
            self.scaler.unscale_(self.opt)
            self._done.add(name)

    def step(self, x, y):
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.unscale("clip")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        self._done.clear()
        self.opt.zero_grad()


class N:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.scaler = torch.amp.GradScaler("cuda")
        self._norm = None

    @property
    def norm(self):
        if self._norm is None:
            self.scaler.unscale_(self.opt)
            self._norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters()])
        return self._norm

    def step(self, x, y):
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        if self.norm > 1:
            coef = 1 / self.norm
            for p in self.model.parameters():
                p.grad.mul_(coef)
        self.scaler.step(self.opt)
        self.scaler.update()
        self._norm = None
        self.opt.zero_grad()
