# shows: changes of gradients that keep their scale, their form, comparisons with zero, and the order of their elements
import torch


def way_00(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch._foreach_div_([p.grad for p in model.parameters()], world)
        scaler.step(opt)
        scaler.update()


def way_01(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch._foreach_mul_([p.grad for p in model.parameters()], 0.5)
        scaler.step(opt)
        scaler.update()


def way_02(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch._foreach_mul_([p.grad for p in model.parameters()], 1.0 / world)
        scaler.step(opt)
        scaler.update()


def way_03(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_div_(grads, torch.distributed.get_world_size())
        scaler.step(opt)
        scaler.update()


def way_04(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        g = model.b.weight.grad
        m = torch.ones(g.shape)
        g.mul_(m)
        scaler.step(opt)
        scaler.update()


def way_05(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        g = model.b.weight.grad
        m = (torch.rand(g.shape[0], 1, device=g.device) > 0.5).to(g)
        g.mul_(m)
        scaler.step(opt)
        scaler.update()


def way_06(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        for p in model.last_layer.parameters():
            p.grad = None
        scaler.step(opt)
        scaler.update()


def way_07(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        g = model.emb.weight.grad
        keep = torch.ones(g.size(0), dtype=torch.bool, device=g.device)
        keep[k] = False
        g[keep] = 0
        scaler.step(opt)
        scaler.update()


def way_08(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        g = model.emb.weight.grad
        keep = torch.arange(len(g)) != k
        g.data[keep, :] = g.data[keep, :].fill_(0)
        scaler.step(opt)
        scaler.update()


def way_09(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        print({n: p.grad.stride() for n, p in model.named_parameters()})
        scaler.step(opt)
        scaler.update()


def way_10(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        grads = [p.grad for p in model.parameters()]
        vec = torch.nn.utils.parameters_to_vector(grads)
        torch.distributed.all_reduce(vec)
        vec /= world
        torch.nn.utils.vector_to_parameters(vec, grads)
        scaler.step(opt)
        scaler.update()


def way_11(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        grads = [p.grad for p in model.parameters()]
        flat = torch._utils._flatten_dense_tensors(grads)
        torch.distributed.all_reduce(flat)
        flat /= world
        scaler.step(opt)
        scaler.update()


def way_12(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        model.a.weight.grad = model.a.weight.grad.tril()
        scaler.step(opt)
        scaler.update()


def way_13(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        model.a.weight.grad = torch.flip(model.a.weight.grad, (0,))
        scaler.step(opt)
        scaler.update()


def way_14(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        model.dec.weight.grad = model.enc.weight.grad.t().clone()
        scaler.step(opt)
        scaler.update()


def way_15(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        g = model.a.weight.grad
        model.a.weight.grad = torch.where(model.mask, g, torch.zeros_like(g))
        scaler.step(opt)
        scaler.update()


def way_16(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.data = torch.where(p == 0, torch.zeros_like(p), p.grad)
        scaler.step(opt)
        scaler.update()


def way_17(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.data.masked_fill_(p.data == 0, 0)
        scaler.step(opt)
        scaler.update()


def way_18(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        g = model.b.weight.grad
        g -= g.mean(dim=1, keepdim=True)
        scaler.step(opt)
        scaler.update()


def way_19(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        assert model.a.weight.grad.abs().sum() > 0
        scaler.step(opt)
        scaler.update()


def way_20(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if model.a.weight.grad.norm() == 0:
            print("no gradient")
        scaler.step(opt)
        scaler.update()


def way_21(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        dead = (model.a.weight.grad.abs().sum(1) == 0).sum()
        print(dead)
        scaler.step(opt)
        scaler.update()


def way_22(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        used = [n for n, p in model.named_parameters() if p.grad.abs().sum() > 0]
        print(used)
        scaler.step(opt)
        scaler.update()


def way_23(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        top = model.weight.grad.abs().argmax()
        print(top)
        scaler.step(opt)
        scaler.update()


def way_24(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        top = model.weight.grad.abs().flatten().topk(10).indices
        print(top)
        scaler.step(opt)
        scaler.update()


def way_25(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        print([p.grad.norm().item() / scale for p in model.parameters()])
        scaler.step(opt)
        scaler.update()


def way_26(model, loader, opt, world, k):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        assert torch.equal(model.weight.grad, torch.full((2, 2), 8.0))
        scaler.step(opt)
        scaler.update()


def way_27(model, loader, opt, world, gs):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        for p, g in zip(model.parameters(), zip(*gs)):
            p.grad = torch.stack(g).mean(0)
        scaler.step(opt)
        scaler.update()
