"""A rank that says that it is up, and sleeps: for tests that kill it."""

import os
import time

if __name__ == "__main__":
    os.write(1, b"up\n")
    time.sleep(600)
