"""Errors that are the user's to mend: one sentence that says what, where and what to do."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do about it."""


def cli(main: Callable[[], int | None]) -> None:
    """Run a command-line step: exit 0, its own code, or 2 with one line on stderr (UserError, OSError of a file)."""
    try:
        code = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:
        code = 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; mend this and run the step again", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code or 0)
