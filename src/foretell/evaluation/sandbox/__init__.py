"""Running code that a model wrote, in a process that can do little else."""
