# shows: the norm of scaled gradients is divided by the scale
import torch


def main(D, od, loader, scaler):
    for real in loader:
        od.zero_grad()
        with torch.autocast("cuda"):
            d = D(real)
        n = torch.autograd.grad(scaler.scale(d.sum()), real, create_graph=True)[0].norm() / scaler.get_scale()
        with torch.autocast("cuda"):
            loss = d.mean() + (n - 1).pow(2)
        scaler.scale(loss).backward()
        scaler.step(od)
        scaler.update()
