# Tables, figures and the report of a place: a study, or from_reference/<study>, which reads results/reference/<study>/
# (committed, written by no rule) and needs neither data nor torch. DRAWN_EMULATED is for places with an emulated cluster.
localrules:
    table4,
    complexity_table,
    auc_towers,
    emulated_figure,
    fig5,
    throughput_table,
    report,


EMULATED_FIGURES = ["fig1_13", "fig10", "fig11", "fig12", "apart"]  # drawn from records.csv alone, as fig5 is not
EMULATED_PNGS = [f"results/{{place}}/figures/{figure}.png" for figure in ["fig5", *EMULATED_FIGURES]]


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


rule emulated_figure:
    input:
        records=lambda wildcards: study.stored(wildcards.place) / "records.csv",
        sources=lambda wildcards: sources(f"paper_figures.{wildcards.figure}"),
    output:
        pdf="results/{place}/figures/{figure}.pdf",
        png="results/{place}/figures/{figure}.png",
    log:
        "results/{place}/logs/{figure}.log",
    wildcard_constraints:
        figure="|".join(EMULATED_FIGURES),
    conda:
        "../../environment.yml"
    shell:
        "python -m paper_figures.{wildcards.figure} --records {input.records}"
        " --out-dir results/{wildcards.place}/figures > {log} 2>&1"


rule fig5:
    input:
        collectives=lambda wildcards: study.stored(wildcards.place) / "collectives.csv",
        sources=sources("paper_figures.fig5"),
    output:
        pdf="results/{place}/figures/fig5.pdf",
        png="results/{place}/figures/fig5.png",
    log:
        "results/{place}/logs/fig5.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m paper_figures.fig5 --collectives {input.collectives} --out-dir results/{wildcards.place}/figures"
        " > {log} 2>&1"


rule throughput_table:
    input:
        records=lambda wildcards: study.stored(wildcards.place) / "records.csv",
        sources=sources("paper_figures.throughput_table"),
    output:
        csv="results/{place}/tables/throughput.csv",
        markdown="results/{place}/tables/throughput.md",
    log:
        "results/{place}/logs/throughput_table.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m paper_figures.throughput_table --records {input.records} --out-dir results/{wildcards.place}/tables"
        " > {log} 2>&1"


rule report:
    input:
        records=lambda wildcards: study.stored(wildcards.place) / "records.csv",
        manifest=lambda wildcards: study.stored(wildcards.place) / "manifest.json",
        tables=[rules.table4.output.csv, rules.complexity_table.output.csv],
        figure=rules.auc_towers.output.png,
        link=lambda wildcards: ([study.stored(wildcards.place) / "link.json"] if is_emulated(wildcards.place) else []),
        emulated=lambda wildcards: EMULATED_PNGS if is_emulated(wildcards.place) else [],
        sources=sources("paper_figures.report"),
    output:
        "results/{place}/report.html",
    log:
        "results/{place}/logs/report.log",
    conda:
        "../../environment.yml"
    params:
        emulated=lambda wildcards, input: (f"--link {input.link} --emulated {input.emulated}" if input.link else ""),
    shell:
        "python -m paper_figures.report --records {input.records} --manifest {input.manifest} --figure {input.figure}"
        " {params.emulated} --out {output} > {log} 2>&1 && echo 'report: {output}' >&2"


DRAWN = [
    *rules.table4.output,
    *rules.complexity_table.output,
    *rules.auc_towers.output,
    *rules.report.output,
]
DRAWN_EMULATED = [
    *EMULATED_PNGS,
    *[png.removesuffix("png") + "pdf" for png in EMULATED_PNGS],
    *rules.throughput_table.output,
]
