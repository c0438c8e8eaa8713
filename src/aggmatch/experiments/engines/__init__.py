"""Where planned runs train: in this machine's processes, on a Ray cluster, or as tasks of a Slurm array."""
