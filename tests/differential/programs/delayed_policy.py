"""The critic is stepped every time, the policy every other time, the scale is updated always."""

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.critic = nn.Linear(12, 1).cuda()
        self.policy = nn.Linear(8, 4).cuda()
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.scaler = torch.amp.GradScaler("cuda")

    def learn(self, memory, delay=2):
        for number, (state, action, target) in enumerate(memory):
            with torch.autocast("cuda"):
                value = self.critic(torch.cat([state, action], dim=1))
                critic_loss = nn.functional.mse_loss(value, target)
            self.critic_optimizer.zero_grad()
            self.scaler.scale(critic_loss).backward()
            self.scaler.unscale_(self.critic_optimizer)
            nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)
            self.scaler.step(self.critic_optimizer)
            if number % delay == 0:
                with torch.autocast("cuda"):
                    policy_loss = -self.policy(state).mean()
                self.policy_optimizer.zero_grad()
                self.scaler.scale(policy_loss).backward()
                self.scaler.unscale_(self.policy_optimizer)
                nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                self.scaler.step(self.policy_optimizer)
            self.scaler.update()
