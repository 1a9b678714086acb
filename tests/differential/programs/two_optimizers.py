"""Two optimizers share a loss, a scaler and one update."""

import torch
from torch import nn


def fit(loader):
    encoder = nn.Linear(32, 8).cuda()
    decoder = nn.Linear(8, 32).cuda()
    encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(decoder(encoder(x)), x)
        scaler.scale(loss).backward()
        scaler.unscale_(encoder_optimizer)
        scaler.unscale_(decoder_optimizer)
        nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1.0)
        scaler.step(encoder_optimizer)
        scaler.step(decoder_optimizer)
        scaler.update()
