"""The GRPO launcher: configuration, mathematics, two engines behind one seam. Start at `__main__`."""
