import torch
from torch.cuda.amp import GradScaler, autocast


def update_weights(model, batch, optimizer, config, scaler):
    target = config.scalar_transform(batch)
    if config.amp_type == "torch_amp":
        with autocast():
            value = model(batch)
    else:
        value = model(batch)
    scaled = config.inverse_value_transform(value)
    loss = (scaled - target).mean()
    optimizer.zero_grad()
    if config.amp_type == "none":
        loss.backward()
    elif config.amp_type == "torch_amp":
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if config.amp_type == "torch_amp":
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def train(model, batches, config):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler()
    for batch in batches:
        update_weights(model, batch, optimizer, config, scaler)
