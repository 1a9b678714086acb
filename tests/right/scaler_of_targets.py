# shows: a parameter scales the targets, in a file without mixed precision
import torch


def fit(net, opt, loader, target_scaler):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(net(x), target_scaler.scale(y))
        loss.backward()
        opt.step()
        opt.zero_grad()
