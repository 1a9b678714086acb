# shows: a scaler that is made where there is none yet, or goes on with the scale of another
import torch


def step(model, opt, x):
    if not hasattr(step, "scaler"):
        step.scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        loss = model(x).mean()
    step.scaler.scale(loss).backward()
    step.scaler.step(opt)
    step.scaler.update()
    opt.zero_grad()


def main(model, opt, loader):
    for x in loader:
        step(model, opt, x)


def go_on(model, opt, loader, rounds):
    scale = 2.0**16
    for _ in range(rounds):
        scaler = torch.amp.GradScaler("cuda", init_scale=scale)
        for x in loader:
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        scale = scaler.get_scale()
