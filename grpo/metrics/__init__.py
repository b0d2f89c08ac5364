"""What a run measured: the table of names, the files it is written to, loggers, the live display, verdicts, curves."""
