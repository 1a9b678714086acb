# shows: what a disabled block does to a 16-bit tensor besides arithmetic, and casts by other words
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.gate = nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("bias", torch.zeros(8))

    def route(self, hidden):
        return self.gate(hidden.float())

    def forward(self, x, fp32):
        hidden = self.body(x)
        parts = [self.body(x), self.body(x)]
        with torch.autocast("cuda", enabled=False):
            routed = checkpoint(self.route, hidden, use_reentrant=False)
            dist.all_reduce(hidden)
            fp32.copy_(hidden)
            total = torch.add(hidden, fp32.float()) + hidden.mul(self.bias)
            bounded = torch.clamp(hidden, 0, 1).float() + torch.nan_to_num(hidden).float()
            by_name = self.gate(hidden.type("torch.cuda.FloatTensor"))
            for number, part in enumerate(parts):
                parts[number] = part.float()
            torch.save(hidden, "hidden.pt")
            return routed, total, bounded, by_name, self.gate(parts[0])


def run(router, x, fp32):
    with torch.autocast("cuda", dtype=torch.float16):
        return router(x, fp32)
