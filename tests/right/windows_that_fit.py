# shows: windows with another way to their step, that go on into the next epoch, or of which only whole ones are run
import itertools

import torch


def divmod_or_last(model, loader, optimizer, window):
    scaler = torch.amp.GradScaler("cuda")
    for number, batch in enumerate(loader):
        _, rest = divmod(number, window)
        with torch.autocast("cuda"):
            loss = model(batch).mean() / window
        scaler.scale(loss).backward()
        if rest == window - 1 or number == len(loader) - 1:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def counted_over_epochs(model, loader, optimizer, epochs, window):
    scaler = torch.amp.GradScaler("cuda")
    optimizer.zero_grad()
    for epoch in range(epochs):
        for number, batch in enumerate(loader):
            so_far = number + len(loader) * epoch
            with torch.autocast("cuda"):
                loss = model(batch).mean() / window
            scaler.scale(loss).backward()
            if (so_far + 1) % window == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def last_of_the_parts(model, batches, optimizer, window):
    scaler = torch.amp.GradScaler("cuda")
    for batch in batches:
        parts = batch.chunk(window)
        for number, part in enumerate(parts):
            with torch.autocast("cuda"):
                loss = model(part).mean() / len(parts)
            scaler.scale(loss).backward()
            if number + 1 < len(parts):
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def whole_windows(model, loader, optimizer, steps, window):
    scaler = torch.amp.GradScaler("cuda")
    stream = itertools.cycle(loader)
    for number in range(steps * window):
        with torch.autocast("cuda"):
            loss = model(next(stream)).mean() / window
        scaler.scale(loss).backward()
        if (number + 1) % window == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def divides(model, loader, optimizer, window):
    assert len(loader) % window == 0
    scaler = torch.amp.GradScaler("cuda")
    for number, batch in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(batch).mean()
        loss.div_(window)
        scaler.scale(loss).backward()
        if (number + 1) % window == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def left_at_a_boundary(model, endless, optimizer, steps, window):
    scaler = torch.amp.GradScaler("cuda")
    for number, batch in enumerate(endless, 1):
        with torch.autocast("cuda"):
            loss = model(batch).mean() / window
        scaler.scale(loss).backward()
        if number % window == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if number // window >= steps:
                break


def epochs_by_count(model, loader, optimizer, scheduler, epochs):
    scaler = torch.amp.GradScaler("cuda")
    done = 0
    for batch in (batch for _ in range(epochs) for batch in loader):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        done += 1
        if done % len(loader) == 0:
            scheduler.step()


def summed_by_the_loss(model, loader, optimizer, window):
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    scaler = torch.amp.GradScaler("cuda")
    for number, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        if (number + 1) % window == 0 or number + 1 == len(loader):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
