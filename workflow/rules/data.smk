# Rows: generated here, or a person's own; prepared into shards with a manifest.
GENERATED = f"{RESULTS}/raw/rows.tsv"
SCHEMA = study.schema_file(DATA)


rule generate:
    input:
        sources=sources("bench.data.generate"),
    output:
        rows=GENERATED,
        probability=f"{GENERATED}.probability.npy",
        about=f"{GENERATED}.generator.json",
    log:
        f"{RESULTS}/logs/generate.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        flags=study.flags(DATA.get("generate", {})),
    shell:
        "python -m bench.data.generate {params.flags} --out {output.rows} 2>&1 | tee {log} >&2"


# Only the manifest is declared: it is written last, and shards of a killed run must outlive it.
rule prepare:
    input:
        rows=DATA.get("files", [GENERATED]),
        generator=[] if "files" in DATA else [f"{GENERATED}.probability.npy", f"{GENERATED}.generator.json"],
        schema=SCHEMA,
        sources=sources("bench.data.prepare"),
    output:
        manifest=f"{RESULTS}/data/manifest.json",
    log:
        f"{RESULTS}/logs/prepare.log",
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=4000,
        runtime=600,
    params:
        folder=subpath(output.manifest, parent=True),
        flags=study.flags({key: value for key, value in DATA.items() if key not in ("generate", "files")}),
    shell:
        "python -m bench.data.prepare --input {input.rows:q} --out {params.folder} {params.flags} 2>&1 | tee {log} >&2"
