# The study: its config, checked, and the names that all rules use.
from snakemake.utils import validate
from workflow import study
from workflow.sources import sources

validate(config, "../config/schema.yaml")
study.use_this_python()
STUDY, DATA = study.name_and_data(config)
RESULTS = f"results/{STUDY}"
RUNS = study.runs(config)


wildcard_constraints:
    model=r"[a-z0-9_]+",
    towers=r"\d+",
    seed=r"\d+",
    place=r"(from_reference/)?[A-Za-z0-9_-]+",
