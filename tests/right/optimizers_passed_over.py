# shows: optimizers without gradients are passed over in a loop, and some other one was stepped
import torch


def train(net, optimizers, loader):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            loss = net(batch)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                scaler.step(optimizer)
        scaler.update()
