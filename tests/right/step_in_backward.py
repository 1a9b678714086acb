# shows: a hook of each parameter steps an optimizer of its own in every backward
import torch


def attach(model, scaler):
    opts = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(p):
        scaler.step(opts[p])
        opts[p].zero_grad()

    for p in opts:
        p.register_post_accumulate_grad_hook(hook)


def main(model, loader):
    scaler = torch.amp.GradScaler("cuda")
    attach(model, scaler)
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.update()
