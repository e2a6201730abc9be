"""Every interpreter that finds this file at its start has the GPUs of played_gpu.py."""

import played_gpu

played_gpu.install()
