# shows: the old API where the new one was tried, or asked for, before
import torch

try:
    from torch.amp import autocast as _autocast

    def autocast(enabled=True):
        return _autocast("cuda", enabled=enabled)

except ImportError:
    from torch.cuda.amp import autocast

if hasattr(torch.amp, "GradScaler"):
    make_scaler = torch.amp.GradScaler
else:
    from torch.cuda.amp import GradScaler as make_scaler

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
region = getattr(torch.amp, "autocast", None) or torch.cuda.amp.autocast


def custom_fwd(function):
    if TORCH >= (2, 4):
        return torch.amp.custom_fwd(function, device_type="cuda")
    return torch.cuda.amp.custom_fwd(function)


def predict(model, x, amp):
    with torch.no_grad(), autocast(enabled=amp):
        return model(x)


def scaler():
    return make_scaler()
