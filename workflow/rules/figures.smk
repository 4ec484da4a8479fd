# Tables, figures and the report of a place: a study, or from_reference/<study>, which reads results/reference/<study>/
# (committed, written by no rule) and needs neither data nor torch.
localrules:
    table4,
    complexity_table,
    auc_towers,
    report,


rule table4:
    input:
        records=lambda wildcards: study.stored(wildcards.place) / "records.csv",
        sources=sources("paper_figures.table4"),
    output:
        csv="results/{place}/tables/table4.csv",
        markdown="results/{place}/tables/table4.md",
    log:
        "results/{place}/logs/table4.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m paper_figures.table4 --records {input.records} --out-dir results/{wildcards.place}/tables > {log} 2>&1"


rule complexity_table:
    input:
        records=lambda wildcards: study.stored(wildcards.place) / "records.csv",
        sources=sources("paper_figures.complexity"),
    output:
        csv="results/{place}/tables/complexity.csv",
        markdown="results/{place}/tables/complexity.md",
    log:
        "results/{place}/logs/complexity_table.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m paper_figures.complexity --records {input.records} --out-dir results/{wildcards.place}/tables > {log} 2>&1"


rule auc_towers:
    input:
        records=lambda wildcards: study.stored(wildcards.place) / "records.csv",
        sources=sources("paper_figures.auc_towers"),
    output:
        pdf="results/{place}/figures/auc_towers.pdf",
        png="results/{place}/figures/auc_towers.png",
    log:
        "results/{place}/logs/auc_towers.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m paper_figures.auc_towers --records {input.records} --out-dir results/{wildcards.place}/figures > {log} 2>&1"


rule report:
    input:
        records=lambda wildcards: study.stored(wildcards.place) / "records.csv",
        manifest=lambda wildcards: study.stored(wildcards.place) / "manifest.json",
        tables=[rules.table4.output.csv, rules.complexity_table.output.csv],
        figure=rules.auc_towers.output.png,
        sources=sources("paper_figures.report"),
    output:
        "results/{place}/report.html",
    log:
        "results/{place}/logs/report.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m paper_figures.report --records {input.records} --manifest {input.manifest} --figure {input.figure}"
        " --out {output} > {log} 2>&1 && echo 'report: {output}' >&2"


DRAWN = [
    *rules.table4.output,
    *rules.complexity_table.output,
    *rules.auc_towers.output,
    *rules.report.output,
]
