"""Run files of other tools (verl, TRL, ms-swift, OpenRLHF, PaddleNLP) as settings of ours. Runs nothing of them."""
