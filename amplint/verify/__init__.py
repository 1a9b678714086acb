"""Executes flagged statements on real torch, and says which findings it confirms.

The linter's process never imports torch: a worker does (see `host` and `worker`). What the worker runs is
no code of the user's but an interpretation of it, on stand-ins (see `machine` and `world`).
"""

from amplint.verify.findings import verify_run, verify_text, worker_for
from amplint.verify.host import NO_TORCH
from amplint.verify.rulepages import holds, verify_rules

__all__ = ["NO_TORCH", "holds", "verify_rules", "verify_run", "verify_text", "worker_for"]
