"""Errors that are the user's to mend: one sentence that says what, where and what to do."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do about it."""


def sentence(error: BaseException) -> str | None:
    """The line for the user where he can mend the error (UserError, OSError of a file); None for any other."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None and not isinstance(error, BrokenPipeError):
        return f"{error.filename}: {error.strerror}; mend this and run the step again"
    return None


def cli(main: Callable[[], int | None]) -> None:
    """Run a command-line step: exit 0, its own code, or 2 with one line on stderr (UserError, OSError of a file)."""
    try:
        code = main()
    except BrokenPipeError:
        code = 1
    except (UserError, OSError) as error:
        if sentence(error) is None:
            raise
        print(f"error: {sentence(error)}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code or 0)
