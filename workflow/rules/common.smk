# The study: its config, checked, and the names that all rules use.
from workflow import study
from workflow.sources import sources

study.use_this_python()
CONFIG = Path(os.path.relpath(workflow.configfiles[-1]))
study.check(config, CONFIG)
STUDY, DATA = study.name_and_data(config, CONFIG)
study.check_models(config, CONFIG, DATA)
RESULTS = f"results/{STUDY}"
RUNS = study.runs(config)


wildcard_constraints:
    model=r"[a-z0-9_]+",
    towers=r"\d+",
    seed=r"\d+",
    place=r"(from_reference/)?[A-Za-z0-9_-]+",
