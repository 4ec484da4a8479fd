# The grid: one training run for each model, number of towers and seed; and what the models cost at the paper's sizes.


# A checkpoint is no output: Snakemake deletes the outputs of a killed job, and the run could not go on.
rule train:
    input:
        manifest=rules.prepare.output.manifest,
        sources=lambda wildcards: sources("bench.train", f"baselines.{wildcards.model}"),
    output:
        record=f"{RESULTS}/runs/{{model}}-T{{towers}}-s{{seed}}.json",
    log:
        f"{RESULTS}/logs/train/{{model}}-T{{towers}}-s{{seed}}.log",
    # First seed first: when one third of the time is over, every model has a number.
    priority: lambda wildcards: 1000 - config["seeds"].index(int(wildcards.seed))
    conda:
        "../../environment.yml"
    threads: config["threads"]
    resources:
        mem_mb=8000,
        runtime=720,
    params:
        data=subpath(input.manifest, parent=True),
        study=STUDY,
        flags=lambda wildcards: study.training_flags(config, wildcards.model),
        checkpoint=f"{RESULTS}/checkpoints/{{model}}-T{{towers}}-s{{seed}}",
    shell:
        "python -m bench.train --data {params.data} --study {params.study} --model {wildcards.model}"
        " --towers {wildcards.towers} --seed {wildcards.seed} {params.flags} --threads {threads}"
        " --checkpoint {params.checkpoint} --out {output.record} > {log} 2>&1"


rule complexity:
    input:
        sources=sources("bench.complexity", *(f"baselines.{path.stem}" for path in Path("baselines").glob("*.py"))),
    output:
        f"{RESULTS}/complexity.json",
    log:
        f"{RESULTS}/logs/complexity.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        study=STUDY,
    shell:
        "python -m bench.complexity --paper-tables --study {params.study} --out {output} > {log} 2>&1"
