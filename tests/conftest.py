"""Settings for every test."""

import os

# Workers that run side by side would else each take every core. Set before anything imports torch.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings  # noqa: E402

settings.register_profile("suite", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("suite")
