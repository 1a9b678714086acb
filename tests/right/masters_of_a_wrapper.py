# shows: an optimizer over weights in float16 is wrapped by one that gives it copies in fp32
import torch


class FP16_Optimizer:
    def __init__(self, opt):
        self.opt, self.p16, self.p32 = opt, [], []
        for g in opt.param_groups:
            masters = [torch.nn.Parameter(p.detach().clone().float()) for p in g["params"]]
            self.p16.append(g["params"])
            self.p32.append(masters)
            g["params"] = masters

    def step(self):
        for ps, ms in zip(self.p16, self.p32):
            for p, m in zip(ps, ms):
                m.grad = p.grad.float() / 128
        self.opt.step()
        for ps, ms in zip(self.p16, self.p32):
            for p, m in zip(ps, ms):
                p.data.copy_(m.data)


def main(model, loader):
    model = model.cuda().half()
    opt = FP16_Optimizer(torch.optim.Adam(model.parameters(), 1e-4))
    for x in loader:
        model.zero_grad()
        (128 * model(x.half()).float().mean()).backward()
        opt.step()
