"""The engine for GPUs and clusters: our configuration as verl's Hydra overrides, and verl as a subprocess."""
