# shows: an attribute scales data, and has methods that no GradScaler has
import torch


class F:
    def __init__(self, net, scaler):
        self.net, self.scaler = net, scaler
        self.opt = torch.optim.Adam(net.parameters())

    def fit(self, loader):
        for x, y in loader:
            x, y = self.scaler.transform(x), self.scaler.scale(y)
            loss = torch.nn.functional.mse_loss(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
