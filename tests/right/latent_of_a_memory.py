# shows: the gradient of a latent code, a copy from a memory, is dropped
import torch


def main(net, memory, opt, loader, scaler):
    for x, y in loader:
        latent = memory[y].clone().requires_grad_()
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(net(latent), x)
        scaler.scale(loss).backward()
        with torch.no_grad():
            memory[y] -= 0.1 * latent.grad / scaler.get_scale()
        latent.grad = None
        scaler.step(opt)
        scaler.update()
