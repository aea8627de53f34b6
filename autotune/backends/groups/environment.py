"""The environment of a worker process: as many threads as it has cores, and no GPUs but its own."""

from __future__ import annotations

import os

from autotune.backends.worker.process_settings import CUBLAS_WORKSPACE
from autotune.trial.scaling import Scaling


def environment(scaling: Scaling) -> dict[str, str]:
    """Variables for each rank of a trial, whatever the driver has set.

    Only the compiler's threads and cuBLAS's workspace stay as the driver has set them: the threads
    of OpenMP and MKL, and that there is no GPU, are what the trial was given.
    """
    threads = str(max(int(scaling.cpus), 1))
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    own = dict([("TORCHINDUCTOR_COMPILE_THREADS", threads), CUBLAS_WORKSPACE])
    variables |= {name: os.environ.get(name, value) for name, value in own.items()}
    if not scaling.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables
