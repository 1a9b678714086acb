# shows: a hook clamps to a limit times the scale
import torch


def main(model, opt, loader, scaler, c=1.0):
    def h(g):
        return g.clamp(-c * scaler.get_scale(), c * scaler.get_scale())

    for p in model.parameters():
        p.register_hook(h)
    for x in loader:
        opt.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(opt)
        scaler.update()
