"""`make doctor`: does this environment fit, does the stack work, what does the machine allow.

versions (metadata only, imports nothing) comes first, then probes (torch and torchrec, each in a process of its own),
then machine. Nothing here imports torch in the doctor's own process, so a wrong set of packages cannot crash it.
"""
