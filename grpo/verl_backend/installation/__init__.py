"""The environment that verl runs in: where it is, making it, whether its packages belong together, GPUs."""
