import torch
from torch.cuda.amp import GradScaler


class Trainer:
    def __init__(self, model, loader, optimizer, head, head_optimizer, amp_enabled, grad_scaler):
        self.model = model
        self.loader = iter(loader)
        self.optimizer = optimizer
        self.head = head
        self.head_optimizer = head_optimizer
        self.amp_enabled = amp_enabled
        self.grad_scaler = grad_scaler

    def run_step(self):
        features, targets = self.model(next(self.loader))
        f_grad, loss_v = self.head.forward_backward(features, targets, self.head_optimizer)
        if self.amp_enabled:
            features.backward(self.grad_scaler.scale(f_grad))
            self.grad_scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=5)
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
        else:
            features.backward(f_grad)
            self.optimizer.step()
        self.head_optimizer.step()
        self.head_optimizer.zero_grad()
        self.optimizer.zero_grad()
