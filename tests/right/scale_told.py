# shows: a scale that changed is asserted and logged, and nobody takes it for a skipped step
import torch


def fit(net, batches, optimizer, logger):
    scaler = torch.amp.GradScaler("cuda", growth_interval=10)
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = net(x).square().mean()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        logger.log({"scale_changed": before != scaler.get_scale()})
        if scaler.get_scale() != before:
            print(f"the loss scale is {scaler.get_scale()} now")
        if scaler.get_scale() != before:
            logger.add_scalar("scale", scaler.get_scale())
            before = scaler.get_scale()
        assert scaler.get_scale() == before
