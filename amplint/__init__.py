"""amplint: a linter for automatic mixed precision (autocast and GradScaler) in PyTorch code."""

__version__ = "0.1.0"
