# shows: timm's NativeScaler does everything in one call, and its state goes into the checkpoint
from contextlib import suppress

import torch
from timm.utils import NativeScaler, dispatch_clip_grad


def train_one_epoch(model, loader, optimizer, loss_fn, args, amp_autocast, loss_scaler, updates):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(loader):
        last = number + 1 == len(loader)
        need_update = last or (number + 1) % args.grad_accum_steps == 0
        with amp_autocast():
            loss = loss_fn(model(x), y)
        if args.grad_accum_steps > 1:
            loss /= args.grad_accum_steps
        if loss_scaler is not None:
            loss_scaler(
                loss,
                optimizer,
                clip_grad=args.clip_grad,
                clip_mode=args.clip_mode,
                parameters=model.parameters(),
                need_update=need_update,
            )
        else:
            loss.backward()
            if need_update:
                if args.clip_grad is not None:
                    dispatch_clip_grad(model.parameters(), args.clip_grad, mode=args.clip_mode)
                optimizer.step()
        if not need_update:
            continue
        optimizer.zero_grad()
        updates += 1
    return updates


def main(args, model, loader, loss_fn):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    amp_autocast, loss_scaler = suppress, None
    if args.amp:
        amp_autocast = torch.cuda.amp.autocast  # amplint: ignore[AMP601]
        loss_scaler = NativeScaler()
    if args.resume:
        states = torch.load(args.resume)
        optimizer.load_state_dict(states["optimizer"])
        if loss_scaler is not None:
            loss_scaler.load_state_dict(states[NativeScaler.state_dict_key])
    updates = 0
    for _ in range(args.epochs):
        updates = train_one_epoch(model, loader, optimizer, loss_fn, args, amp_autocast, loss_scaler, updates)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if loss_scaler is not None:
            states[loss_scaler.state_dict_key] = loss_scaler.state_dict()
        torch.save(states, "last.pt")
