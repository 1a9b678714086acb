"""Bounded symbolic execution of AMP programs; `Executor` is where to start reading."""

from __future__ import annotations

from amplint.execution.executor import MODULE_BUDGET, Executor, OutOfBudget, initial
from amplint.execution.modules import worth_keeping

__all__ = ["MODULE_BUDGET", "Executor", "OutOfBudget", "initial", "worth_keeping"]
