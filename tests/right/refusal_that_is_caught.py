# shows: a test in which the scaler is to refuse an update, by hand instead of with pytest.raises
import torch


def test_an_update_without_a_step(net, x):
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        loss = net(x).mean()
    scaler.scale(loss).backward()
    try:
        scaler.update()
    except AssertionError:
        pass
