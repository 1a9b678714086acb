"""What is right: which method steps is only known when the program runs."""

import torch


class T:
    def __init__(self, m, mode):
        self.m, self.opt, self.scaler = m, torch.optim.Adam(m.parameters()), torch.amp.GradScaler()
        self.mode = mode

    def _step_plain(self):
        self.scaler.step(self.opt)

    def _step_clip(self):
        self.scaler.unscale_(self.opt)
        torch.nn.utils.clip_grad_norm_(self.m.parameters(), 1.0)
        self.scaler.step(self.opt)

    def train(self, loader):
        for b in loader:
            self.opt.zero_grad()
            with torch.autocast("cuda"):
                loss = self.m(b)
            self.scaler.scale(loss).backward()
            getattr(self, f"_step_{self.mode}")()
            self.scaler.update()
