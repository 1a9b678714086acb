# shows: the ratio of two norms is the same at every scale, whatever function measures them
import torch


def norm(parameters):
    return torch.stack([p.grad.norm() for p in parameters]).norm()


def train(body, head, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = head(body(x)).mean()
        scaler.scale(loss).backward()
        print((norm(head.parameters()) / norm(body.parameters())).item())
        above = norm(head.parameters())
        below = norm(body.parameters())
        print(f"{above / below:.3f}")
        scaler.step(optimizer)
        scaler.update()
