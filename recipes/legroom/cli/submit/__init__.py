"""Files that hand a training over to a scheduler: SLURM, Kubernetes, SkyPilot, dstack and Ray."""
