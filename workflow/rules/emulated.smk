# How fast models train on hosts and links emulated on this machine: first the rate of the links, then the shapes (HxL: hosts
# and ranks a host), each in a job of its own. Time is measured: a job takes all cores, so that nothing runs beside it.
SHAPES = list(EMULATED["contestants"]) if EMULATED else []
EVERY_CORE = 1024  # Snakemake clips it to --cores


rule calibrate:
    input:
        sources=sources("bench.cluster_hosts", "bench.calibrate", "baselines.dcn"),
    output:
        f"{RESULTS}/emulated/link.json",
    log:
        f"{RESULTS}/logs/emulated/calibrate.log",
    conda:
        "../../environment.yml"
    threads: EVERY_CORE
    resources:
        mem_mb=20000,
        runtime=60,
    params:
        cluster=lambda wildcards: study.cluster_flags(EMULATED["main"]),
        flags=lambda wildcards: study.calibration_flags(EMULATED),
        link=lambda wildcards: EMULATED["link"],
    shell:
        "python -m bench.cluster {params.cluster} --link {params.link} --or-loopback --"
        " python -m bench.calibrate {params.flags} --json {output} > {log} 2>&1"


rule throughput:
    input:
        link=rules.calibrate.output,
        sources=lambda wildcards: sources(
            "bench.cluster_hosts",
            "bench.throughput",
            *(f"baselines.{model}" for model in study.compared_models(EMULATED, wildcards.shape)),
        ),
    output:
        f"{RESULTS}/emulated/throughput-{{shape}}.json",
    log:
        f"{RESULTS}/logs/emulated/throughput-{{shape}}.log",
    conda:
        "../../environment.yml"
    threads: EVERY_CORE
    resources:
        mem_mb=20000,
        runtime=60,
    params:
        cluster=lambda wildcards: study.cluster_flags(wildcards.shape),
        study=STUDY,
        flags=lambda wildcards: study.throughput_flags(EMULATED, wildcards.shape),
    shell:
        "python -m bench.cluster {params.cluster} --link {input.link} --or-loopback --"
        " python -m bench.throughput --study {params.study} {params.flags} --json {output} > {log} 2>&1"


rule collectives:
    input:
        sources=sources("bench.cluster_hosts", "bench.collectives"),
    output:
        f"{RESULTS}/emulated/collectives-{{shape}}.json",
    log:
        f"{RESULTS}/logs/emulated/collectives-{{shape}}.log",
    conda:
        "../../environment.yml"
    threads: EVERY_CORE
    resources:
        mem_mb=20000,
        runtime=60,
    params:
        cluster=lambda wildcards: study.cluster_flags(wildcards.shape),
        link=lambda wildcards: EMULATED["link"],
        flags=lambda wildcards: study.collectives_flags(EMULATED, wildcards.shape),
    shell:
        "python -m bench.cluster {params.cluster} --link {params.link} --or-loopback --"
        " python -m bench.collectives {params.flags} --json {output} > {log} 2>&1"
