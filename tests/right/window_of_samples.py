# shows: the window is a loop of its own, in which latents are sampled
import torch


def train(net, encoder, loader, opt, accum_steps, total):
    scaler = torch.amp.GradScaler("cuda")
    batches = iter(loader)
    for _ in range(total):
        for _ in range(accum_steps):
            with torch.no_grad():
                latents = encoder.encode(next(batches)).latent_dist.sample()
            with torch.autocast("cuda"):
                loss = net(latents).mean() / accum_steps
            scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
