"""One file per sub-command of ./train.sh, each with `main(argv) -> exit code`; thin: the work is done in the rooms."""
