"""Real tables, read from the folder that the environment variable REAL_DATA names; none is part of the project."""

import os
from pathlib import Path

import pytest
import torch

from bench.data.prepare import prepare
from bench.data.reader import open_dataset

TABLES = {  # schema -> (files, split, rows, positives, whether their lines come in order)
    "criteo": (["criteo_1tb_day0_head10k/day_0_rows0-9999.tsv.zst"], "0.8,0.1,0.1", 10_000, 265),
    "diabetes130": (["uci_diabetes130/diabetic_data.csv.zst"], "0.8,0.1,0.1", 101_766, 11_357),
    "adult": (["adult/adult.data.zst", "adult/adult.test.zst"], "day", 48_842, 11_687),
    "bank_marketing": (["bank_marketing/bank-full.csv.zst"], "0.8,0.1,0.1", 45_211, 5_289),
    "obd": (["zozo_obd/bts_all.csv.zst"], "0.8,0.1,0.1", 10_000, 42),
}


@pytest.fixture(scope="module")
def real():
    folder = os.environ.get("REAL_DATA")
    if not folder:
        pytest.skip("REAL_DATA names no folder of real tables")
    if not Path(folder).is_dir():
        pytest.skip(f"REAL_DATA={folder} is no folder")
    return Path(folder)


@pytest.mark.parametrize("name", TABLES)
def test_real_table(real, tmp_path, name):
    files, split, rows, positives = TABLES[name]
    paths = [real / file for file in files]
    absent = [path for path in paths if not path.is_file()]
    if absent:
        pytest.skip(f"no {absent[0]}")
    made = prepare(paths, tmp_path, name, split=split)
    assert made["bad_rows"] == {}
    assert sum(part["rows"] for part in made["splits"].values()) == rows
    assert sum(part["positives"] for part in made["splits"].values()) == positives
    data = open_dataset(tmp_path)
    for part in made["splits"]:
        read = [(len(batch.label), int(batch.label.sum())) for batch in data.batches(part, 1000)]
        assert tuple(map(sum, zip(*read, strict=True))) == (data.rows(part), made["splits"][part]["positives"])


def test_missing_shares_of_criteo(real, tmp_path):
    """Shares known of these rows: columns that are missing together, and how often."""
    path = real / TABLES["criteo"][0][0]
    if not path.is_file():
        pytest.skip(f"no {path}")
    prepare([path], tmp_path, threshold=1)
    data = open_dataset(tmp_path)
    sparse = torch.cat([batch.sparse for split in data.manifest["splits"] for batch in data.batches(split, 10_000)])
    missing = (sparse == 0).float().mean(0)
    names = open_dataset(tmp_path).sparse_names
    for tied, share in ((("C14", "C16", "C17", "C23"), 0.467), (("C1", "C10", "C11", "C20", "C21", "C22"), 0.026)):
        for name in tied:
            assert float(missing[names.index(name)]) == pytest.approx(share, abs=0.001), name
