# shows: a decorator of the class decorates its methods, and a factor in the model is taken out of the gradients
import torch
from torch import nn


def for_amp(cls):
    cls.forward = staticmethod(torch.amp.custom_fwd(cls.forward, device_type="cuda"))
    cls.backward = staticmethod(torch.amp.custom_bwd(cls.backward, device_type="cuda"))
    return cls


@for_amp
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.t(), a.t() @ grad


class Scaled(nn.Module):
    FACTOR = 256.0

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(3, 3), nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        return Product.apply(self.layer(x), self.weight).float().mean() * self.FACTOR


def train(loader):
    model = Scaled().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x)
        loss.backward()
        for weight in model.parameters():
            weight.grad /= Scaled.FACTOR
        optimizer.step()
