# shows: tests that expect torch to raise
import unittest

import pytest
import torch


def twice(scaler, optimizer):
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def made():
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(net(torch.randn(2, 4)).sum()).backward()
    return optimizer, scaler


def test_two_in_place():
    optimizer, scaler = made()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)


def test_two_in_a_helper():
    optimizer, scaler = made()
    with torch.no_grad(), pytest.raises(RuntimeError):
        twice(scaler, optimizer)


def test_update_alone():
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with pytest.raises(AssertionError):
        scaler.update()


class Tests(unittest.TestCase):
    def test_two(self):
        optimizer, scaler = made()
        with self.assertRaisesRegex(RuntimeError, "already"), torch.no_grad():
            scaler.unscale_(optimizer)
            scaler.unscale_(optimizer)
