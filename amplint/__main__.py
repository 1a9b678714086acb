"""The program: `amplint`, and `python -m amplint`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Ctrl-C ends it without a traceback from the start on."""
    try:
        from amplint.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)  # as `amplint.terminal.INTERRUPTED`
    command_line()


if __name__ == "__main__":
    main()
