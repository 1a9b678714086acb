# shows: a backward that is told its inputs reaches no others
import torch


def train(gen, dis, loader):
    for_gen, for_dis = torch.optim.Adam(gen.parameters()), torch.optim.Adam(dis.parameters())
    scaler = torch.amp.GradScaler("cuda")
    of_gen, of_dis = list(gen.parameters()), list(dis.parameters())
    for real, z in loader:
        for_gen.zero_grad()
        for_dis.zero_grad()
        with torch.autocast("cuda"):
            score = dis(gen(z))
            fool, tell = -score.mean(), score.mean() - dis(real).mean()
        scaler.scale(fool).backward(inputs=of_gen, retain_graph=True)
        scaler.unscale_(for_gen)
        scaler.scale(tell).backward(inputs=of_dis)
        scaler.step(for_gen)
        scaler.step(for_dis)
        scaler.update()
