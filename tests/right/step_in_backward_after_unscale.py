# shows: a hook of each parameter unscales its own optimizer, clips and steps
import torch


def main(model, loader, scaler):
    opts = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(p):
        scaler.unscale_(opts[p])
        torch.nn.utils.clip_grad_norm_([p], 1.0)
        scaler.step(opts[p])
        opts[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.update()
