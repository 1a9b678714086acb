import abc
import torch


class Trial(abc.ABC):
    @abc.abstractmethod
    def train_batch(self, batch):
        """Train on one batch; steps through `context.step_optimizer`."""
        pass


class Context:
    def __init__(self):
        self._scaler = None

    def use_amp(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def step_optimizer(self, optimizer):
        if self._scaler:
            self._scaler.step(optimizer)


class Controller:
    def __init__(self, trial: Trial, context: Context):
        self.trial = trial
        self.context = context

    def run(self, batches):
        for batch in batches:
            self.trial.train_batch(batch)
            if self.context._scaler:
                self.context._scaler.update()
