"""What the environment of a rank says beside torchrun's own words: its share of the cores, and what memory it keeps."""

from bench.arguments import cores

# glibc gives large blocks that are freed back to the kernel, and the next use of such a block is page faults: thousands
# an iteration. These two let a process keep them, as CUDA's allocator does (32 MiB is the most that glibc takes here).
# glibc reads them when a process starts.
MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


def threads(ranks: int) -> dict[str, str]:
    """Of each of so many ranks that share this machine's cores."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(max(1, cores() // ranks)))
