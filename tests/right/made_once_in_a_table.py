# shows: a scaler that is made where a table has none
import torch

SCALERS = {}


def step(name, model, opt, x):
    if name not in SCALERS:
        SCALERS[name] = torch.amp.GradScaler("cuda")
    s = SCALERS[name]
    with torch.autocast("cuda"):
        loss = model(x).mean()
    s.scale(loss).backward()
    s.step(opt)
    s.update()
    opt.zero_grad()


def main(model, opt, loader):
    for x in loader:
        step("a", model, opt, x)
