# shows: the level chooses one of two scalers, and there is no third level
import torch


class Limited(torch.amp.GradScaler):
    pass


def train(config, net, optimizer, loader):
    scaler = None
    if config.level > 0:
        if config.level == 1:
            scaler = torch.amp.GradScaler("cuda")
        elif config.level == 2:
            scaler = Limited("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=config.level > 0):
            loss = torch.nn.functional.mse_loss(net(x), y)
        if config.level > 0:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
