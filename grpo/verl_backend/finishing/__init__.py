"""What comes of checkpoints: a model that others open, or a run that goes on."""
