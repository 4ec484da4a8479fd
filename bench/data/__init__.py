"""Click rows: generate them, prepare any table into checked shards, read shards as batches."""
