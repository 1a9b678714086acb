# shows: one question decides how a closure is stepped and, asked once more, whether it scales its loss
import torch
from precision import query


class Closures(torch.amp.GradScaler):
    def step(self, optimizer, closure):
        return optimizer.step(closure=closure)


class Trainer:
    def __init__(self, state):
        self.state = state
        self.scaler = Closures("cuda")

    def uses_scaling(self):
        return query(self.state) == "float16"

    def train_batch(self, batches):
        scales = self.uses_scaling()
        for optimizer in self.state.optimizers:
            if scales:
                self.scaler.step(optimizer, closure=lambda **given: self.train_microbatches(batches, **given))
            else:
                optimizer.step(closure=lambda **given: self.train_microbatches(batches, **given).item())

    def train_microbatches(self, batches):
        scales = self.uses_scaling()
        total = 0
        for optimizer in self.state.optimizers:
            optimizer.zero_grad()
        for batch in batches:
            loss = self.state.model(batch)
            if scales:
                loss = self.scaler.scale(loss)
            loss.backward()
            total += loss.detach()
        return total
