"""What is right: lists of logits are joined and each of them is cast."""

import torch


def d_loss(d, y, g):
    with torch.autocast("cuda"):
        r1, f1 = d(y)
        r2, f2 = d(g)
        with torch.autocast("cuda", enabled=False):
            return sum(torch.mean((1 - r.float()) ** 2) for r in r1 + r2)
