# All records of a study in one tidy table, and the manifest of its data: all that tables and figures read.
localrules:
    gather,


rule gather:
    input:
        runs=[f"{RESULTS}/runs/{run}.json" for run in RUNS],
        complexity=rules.complexity.output,
        throughput=expand(rules.throughput.output, shape=SHAPES),
        collectives=expand(rules.collectives.output, shape=SHAPES),
        link=rules.calibrate.output if SHAPES else [],
        manifest=rules.prepare.output.manifest,
        sources=sources("bench.gather"),
    output:
        records=f"{RESULTS}/records.csv",
        manifest=f"{RESULTS}/manifest.json",
        emulated=[f"{RESULTS}/{name}" for name in ("collectives.csv", "link.json")] if SHAPES else [],
    log:
        f"{RESULTS}/logs/gather.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m bench.gather --runs {input.runs} --complexity {input.complexity} --manifest {input.manifest}"
        " --throughput {input.throughput} --collectives {input.collectives} --out {output.records} > {log} 2>&1"
        " && cat {log} >&2 && cp {input.manifest} {input.link} $(dirname {output.manifest})"
