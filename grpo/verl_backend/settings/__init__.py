"""What verl is told: our settings and the user's as Hydra overrides that fit its version. Starts nothing."""
