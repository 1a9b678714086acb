# shows: the same hook, for parameters that are trained
import torch


def attach(model, scaler):
    opts = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(p):
        scaler.step(opts[p])
        opts[p].zero_grad()

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


def main(model, loader, scaler):
    attach(model, scaler)
    for x in loader:
        scaler.scale(model(x).mean()).backward()
        scaler.update()
