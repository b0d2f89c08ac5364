"""The embedded engine: GRPO in one process with plain torch and transformers, on a CPU or one GPU."""
