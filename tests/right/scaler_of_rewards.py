# shows: rewards are scaled by an object of the project, which is a default
import torch


class RewardScaler:
    def scale(self, r):
        return r / 2

    def update(self, r):
        pass


def rl(policy, opt, env, scaler=None):
    scaler = scaler or RewardScaler()
    for obs, r in env:
        loss = -(policy(obs) * scaler.scale(r)).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        scaler.update(r)
