# The suite from rows to report. One study (a file of workflow/config/) is one set of runs, under results/<study>/.
#
#   snakemake --cores all                                              the laptop study
#   snakemake --cores all --configfile workflow/config/smoke.yaml      another study
#   CRITEO=path/to/train.txt snakemake --cores all                     the laptop study on rows of your own
#   snakemake --cores all figures                                      draw results/reference/ again, without training
#   snakemake --profile slurm                                          on a cluster (slurm/profile.yaml)
#   snakemake --dry-run                                                what would run, and why
#
# The Makefile gives these commands, with a shorter account of what goes on (workflow/logger/).

if not workflow.configfiles:

    configfile: "workflow/config/laptop.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/emulated.smk"
include: "workflow/rules/gather.smk"
include: "workflow/rules/figures.smk"


# Every product: Snakemake deletes what a rerun is to make, and misses it after a failure only where it is asked for.
rule all:
    default_target: True
    input:
        *([] if "files" in DATA else rules.generate.output),
        rules.prepare.output,
        rules.gather.input.runs,
        rules.complexity.output,
        *rules.gather.input.throughput,
        *rules.gather.input.collectives,
        rules.gather.output,
        drawn([STUDY]),


rule figures:
    input:
        lambda wildcards: drawn(study.reference_places()),


onstart:
    study.lock("results/from_reference" if set(workflow.dag_settings.targets) == {"figures"} else RESULTS)


onsuccess:
    study.say("done")


onerror:
    study.say("failed: see above for the step and its log; what is finished is kept, so mend the cause and run again")
