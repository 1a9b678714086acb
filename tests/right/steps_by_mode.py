# shows: the flag that makes the scaler chooses the method as well
import torch


class R:
    def __init__(self, model, mode):
        self.model, self.opt = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda") if mode == "fp16" else None
        self._step = {"fp16": self._st16, "fp32": self._st32}[mode]

    def _st16(self, x):
        with torch.autocast("cuda"):
            loss = self.model(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()

    def _st32(self, x):
        self.model(x).mean().backward()
        self.opt.step()

    def fit(self, loader):
        for x in loader:
            self.opt.zero_grad()
            self._step(x)


class S:
    def __init__(self, model, amp):
        self.amp = amp
        self.model, self.opt = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda") if amp else None

    def _step_fp16(self, x):
        with torch.autocast("cuda"):
            loss = self.model(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()

    def _step_fp32(self, x):
        self.model(x).mean().backward()
        self.opt.step()

    def fit(self, loader):
        for x in loader:
            self.opt.zero_grad()
            getattr(self, f"_step_{'fp16' if self.amp else 'fp32'}")(x)


class Q(S):
    def fit(self, loader):
        for x in loader:
            self.opt.zero_grad()
            (self._step_fp32, self._step_fp16)[int(self.amp)](x)
