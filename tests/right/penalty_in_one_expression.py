# shows: gradients of a scaled loss are divided by the scale in the same expression
import torch


def main(D, od, loader, scaler):
    for real in loader:
        with torch.autocast("cuda"):
            d = D(real)
        g = torch.autograd.grad(scaler.scale(d.sum()), real, create_graph=True)[0] / scaler.get_scale()
        with torch.autocast("cuda"):
            loss = d.mean() + (g.norm() - 1).pow(2)
        od.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(od)
        scaler.update()
