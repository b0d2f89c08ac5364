"""Prompts in (JSON, JSONL, CSV, parquet, a Hub data set), parquet in verl's schema out. Knows records, not training.

    records.py   what a user's file holds: `read_records`, `iter_records`, `from_rows`, `check_sources`
    convert.py   what the engines read: `convert`, `split`, `load_rows`

The other files are one concern each: record (one row), source (which file), json_rows and table_rows (how it is
written), encoding (bytes that are not UTF-8), hub (data sets of the Hugging Face Hub).
"""
