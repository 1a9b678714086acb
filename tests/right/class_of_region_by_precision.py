# shows: the class of the region is chosen by the precision, and so is, by the caller, whether there is a scaler
from contextlib import suppress

import torch


def train_one_epoch(model, criterion, optimizer, scaler, loader, args):
    region = torch.cuda.amp.autocast if args.precision == "amp" else suppress
    for x, y in loader:
        optimizer.zero_grad()
        with region():
            loss = criterion(model(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()


def train_by_flag(model, criterion, optimizer, scaler, loader, args):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast() if args.amp else suppress():
            loss = criterion(model(x), y)
        if args.amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
