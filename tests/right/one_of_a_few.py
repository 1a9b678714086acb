# shows: who looks for one optimizer by its number or its name means one that is there
import torch


def by_number(model, loader, first, second, index=None):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        for number, optimizer in enumerate((first, second)):
            if index is not None and number != index:
                continue
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


def by_name(nets, loader, which=None):
    scaler = torch.amp.GradScaler("cuda")
    optimizers = {name: torch.optim.SGD(nets[name].parameters(), lr=0.1) for name in ("body", "head")}
    for x in loader:
        with torch.autocast("cuda"):
            loss = nets["head"](nets["body"](x)).mean()
        scaler.scale(loss).backward()
        for name, optimizer in optimizers.items():
            if which is None or name == which:
                scaler.step(optimizer)
                optimizer.zero_grad()
        scaler.update()
