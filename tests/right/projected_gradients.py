# shows: conflicting gradients are projected: a term of one degree in them, whatever their scale
import torch


def main(model, opt, loader, scaler):
    for x, ys in loader:
        with torch.autocast("cuda"):
            out = model(x)
            losses = [torch.nn.functional.cross_entropy(out, y) for y in ys]
        grads = []
        for l in losses:
            opt.zero_grad()
            scaler.scale(l).backward(retain_graph=True)
            grads.append(model.weight.grad.clone().flatten())
        a, b = grads
        dot = torch.dot(a, b)
        if dot < 0:
            a -= dot * b / (b.norm() ** 2)
        model.weight.grad = (a + b).view_as(model.weight)
        scaler.step(opt)
        scaler.update()
