# The suite from rows to report. One study (a file of workflow/config/) is one set of runs, under results/<study>/.
#
#   snakemake --cores all                                              the laptop study
#   snakemake --cores all --configfile workflow/config/smoke.yaml      another study
#   snakemake --cores all --config criteo=path/to/train.txt            the laptop study on rows of your own
#   snakemake --cores all figures                                      draw results/reference/ again, without training
#   snakemake --profile slurm                                          on a cluster (slurm/profile.yaml)
#   snakemake --dry-run                                                what would run, and why
#
# The Makefile gives these commands, with a shorter account of what goes on (workflow/logger/).

if "study" not in config:

    configfile: "workflow/config/laptop.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/gather.smk"
include: "workflow/rules/figures.smk"


rule all:
    default_target: True
    input:
        f"{RESULTS}/report.html",


rule figures:
    input:
        lambda wildcards: study.reference_reports(),


onstart:
    study.lock(RESULTS)


onsuccess:
    study.say("done")


onerror:
    study.say("failed: see above for the step and its log; what is finished is kept, so mend the cause and run again")
