# shows: one question decides whether the scaler steps or a closure, and, asked once more, whether that scales
import torch


class State:
    def __init__(self, precision):
        self._precision = precision

    @property
    def precision(self):
        if isinstance(self._precision, str):
            self._precision = self._precision.lower()
        return self._precision


class Trainer:
    def __init__(self, model, optimizers, precision):
        self.state = State(precision)
        self.model, self.optimizers = model, optimizers
        self.scaler = torch.amp.GradScaler("cuda")

    def scales(self, precision):
        return precision == "float16"

    def train_batch(self, batches):
        scales = self.scales(self.engine.ask(self.state))
        for optimizer in self.optimizers:
            if scales:
                self.scaler.step(optimizer)
            else:
                optimizer.step(lambda: self.train_microbatches(batches))

    def train_microbatches(self, batches):
        scales = self.scales(self.engine.ask(self.state))
        for batch in batches:
            loss = self.model(batch)
            if scales:
                loss = self.scaler.scale(loss)
            loss.backward()
        return loss
