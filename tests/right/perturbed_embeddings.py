# shows: gradients that are divided by their own norm give a direction, which has no scale
import torch


class Attack:
    """Moves the embeddings along their gradient, a fixed length."""

    def __init__(self, net, word="embedding", length=0.5):
        self.net, self.word, self.length = net, word, length
        self.before = {}

    def perturb(self):
        for name, weight in self.net.named_parameters():
            if self.word in name:
                self.before[name] = weight.data.clone()
                size = torch.norm(weight.grad)
                if size != 0 and not torch.isnan(size):
                    weight.data.add_(self.length * weight.grad / size)

    def undo(self):
        for name, weight in self.net.named_parameters():
            if name in self.before:
                weight.data = self.before[name]


def fit(net, batches, optimizer, writer):
    scaler = torch.amp.GradScaler("cuda")
    attack = Attack(net)
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        attack.perturb()
        with torch.autocast("cuda"):
            worse = torch.nn.functional.cross_entropy(net(x), y)
        scaler.scale(worse).backward()
        attack.undo()
        head = net.head.weight.grad
        writer.add_histogram("direction", head / head.norm())
        writer.add_scalar("angle", torch.cosine_similarity(head.flatten(), net.head.weight.flatten(), dim=0))
        length = head.norm(p=2)
        writer.add_scalar("cosine", (head * net.head.weight).sum() / (length * net.head.weight.norm() + 1e-9))
        scaler.step(optimizer)
        scaler.update()
