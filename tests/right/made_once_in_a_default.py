# shows: a scaler that is made where a list has none
import torch


def step(opt, model, x, _s=[]):
    if not _s:
        _s.append(torch.amp.GradScaler("cuda"))
    s = _s[0]
    with torch.autocast("cuda"):
        loss = model(x).mean()
    s.scale(loss).backward()
    s.step(opt)
    s.update()
    opt.zero_grad()


def main(model, opt, loader):
    for x in loader:
        step(opt, model, x)
