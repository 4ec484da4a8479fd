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
EMULATED = config.get("emulated")


wildcard_constraints:
    model=r"[a-z0-9_]+",
    towers=r"\d+",
    seed=r"\d+",
    shape=r"\d+x\d+",
    place=r"(from_reference/)?[A-Za-z0-9_-]+",


def is_emulated(place):
    """Whether an emulated cluster is part of a place: this study, or one that is stored."""
    return bool(EMULATED) if place == STUDY else (study.stored(place) / "collectives.csv").is_file()


def drawn(places):
    """All tables, figures and reports of these places."""
    emulated = [place for place in places if is_emulated(place)]
    return expand(DRAWN, place=places) + expand(DRAWN_EMULATED, place=emulated)
