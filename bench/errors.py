"""Errors that are the user's to mend: one sentence that says what, where and what to do."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do about it."""


def cli(main: Callable[[], int | None]) -> None:
    """Run a command-line step: exit 0, its own code, or 2 with one line on stderr after a UserError."""
    try:
        code = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        code = 1
    sys.exit(code or 0)
