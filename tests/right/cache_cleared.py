# shows: the 16-bit copies are dropped by hand after every step
import torch


def train(model, loader, opt):
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        for x, y in loader:
            opt.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            with torch.autocast("cuda", enabled=False):
                scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            torch.clear_autocast_cache()
