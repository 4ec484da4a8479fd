"""Tables and figures of the DMT paper (MLSys 2024), one module each, beside the paper's own values.

Every module reads records.csv of a study (bench/gather.py) and nothing else of the project: no torch, no dmt, no bench.
"""
