"""Without what TorchRec's planner and wrappers warn of, and no user of bench can change."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, and of TorchRec's log no less than errors, inside this block."""
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # what it warns of, TorchRec does at each use
    logger = logging.getLogger("torchrec")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
