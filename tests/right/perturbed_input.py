# shows: the gradient of a perturbation of the input is cleared, and no weight has it
import torch


def main(model, opt, loader, scaler):
    delta = torch.zeros(8, 3, 32, 32, requires_grad=True)
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x + delta), y)
        scaler.scale(loss).backward()
        g = delta.grad.detach()
        delta.data = (delta + 0.01 * torch.sign(g)).clamp(-0.03, 0.03)
        delta.grad.zero_()
        scaler.step(opt)
        scaler.update()
