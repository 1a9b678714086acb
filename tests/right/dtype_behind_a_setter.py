import torch


class Manager:
    def __init__(self):
        self._dtype = torch.float16
        self._enabled = True

    @property
    def dtype(self):
        return self._dtype

    @dtype.setter
    def dtype(self, dtype):
        if dtype == "float16":
            self._dtype = torch.float16
        elif dtype == "bfloat16":
            self._dtype = torch.bfloat16
        else:
            raise ValueError(dtype)

    @property
    def enabled(self):
        return self._enabled

    @enabled.setter
    def enabled(self, flag):
        self._enabled = flag


class Trainer:
    def __init__(self, model, optimizer, on_cpu):
        self.model = model
        self.optimizer = optimizer
        self.manager = Manager()
        if on_cpu:
            self.manager.dtype = "bfloat16"
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.manager.enabled)

    def step(self, x):
        with torch.autocast("cuda", dtype=self.manager.dtype, enabled=self.manager.enabled):
            loss = self.model(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
