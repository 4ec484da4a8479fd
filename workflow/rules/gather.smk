# All records of a study in one tidy table, and the manifest of its data: all that tables and figures read.
localrules:
    gather,


rule gather:
    input:
        runs=[f"{RESULTS}/runs/{run}.json" for run in RUNS],
        complexity=rules.complexity.output,
        manifest=rules.prepare.output.manifest,
        sources=sources("bench.gather"),
    output:
        records=f"{RESULTS}/records.csv",
        manifest=f"{RESULTS}/manifest.json",
    log:
        f"{RESULTS}/logs/gather.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m bench.gather --runs {input.runs} --complexity {input.complexity} --manifest {input.manifest}"
        " --out {output.records} > {log} 2>&1 && cat {log} >&2 && cp {input.manifest} {output.manifest}"
