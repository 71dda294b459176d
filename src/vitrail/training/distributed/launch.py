"""The same command, started N times on this machine by torchrun's launcher; or a script that starts it on many."""

import logging
import os
import shlex
import sys
import uuid

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from vitrail.errors import INTERRUPTED, Hint, UsageError, counted
from vitrail.io import drop_options
from vitrail.runtime import cores, processors
from vitrail.training.distributed.meeting import LAUNCHER, seconds_of_silence, world_of

BESIDE_A_GPU = 8  # processor cores for each GPU, most of which decode
STOPPING = 600  # seconds that processes have to end their step and save, when they are to stop; torchrun's are 30
SLURM = """\
#!/bin/bash
#SBATCH --job-name=vitrail
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cores}
#SBATCH --signal=TERM@120
{gpus}# cores: of all processes of a machine and of what decodes for them
# sbatch --nodes 4 THIS_FILE; 120 s before its time is over it stops and saves; submitted again, it goes on
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110  # seconds for the step under way and the save; torchrun's own are 30
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {command}
"""
TORCHRUN = """\
#!/bin/sh
# on each machine: NODES=4 HEAD=name-of-one-of-them sh THIS_FILE; all see the same files under the same paths
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=600  # seconds for the step under way and the save; torchrun's own are 30
exec {command}
"""
PLACES = {
    "slurm": ('"$SLURM_JOB_NUM_NODES"', '"$SLURM_JOB_ID"', '"$head:${PORT:-29500}"'),
    "torchrun": ('"${NODES:-1}"', '"${JOB:-vitrail}"', '"${HEAD:-localhost}:${PORT:-29500}"'),
}


def script(kind: str, devices: int, command: str, device: str) -> str:
    """A script that has torchrun start a command on many machines, and goes on with the run if there is one.

    Args:
        kind: slurm or torchrun.
        devices: Processes of each machine.
        command: What was typed, with `--out`.
        device: As `--device` has it.

    Raises:
        UsageError: There would be no process.
    """
    if devices < 1:
        raise UsageError(f"--devices must be at least 1, got {devices}", Hint({"devices": 1}))
    others = drop_options(command, "--devices", "--print-launch", "--resume")
    nodes, job, place = PLACES[kind]
    run = shlex.join(["-m", *others, "--resume", "auto"])
    how = f"--nnodes {nodes} --nproc-per-node {devices} --rdzv-id {job} --rdzv-backend c10d --rdzv-endpoint {place}"
    gpus, each = ("", 1) if device == "cpu" else (f"#SBATCH --gpus-per-node={devices}\n", BESIDE_A_GPU)
    cores = devices * each
    return (SLURM if kind == "slurm" else TORCHRUN).format(gpus=gpus, cores=cores, command=f"torchrun {how} {run}")


def launch(devices: int, device: str, command: str) -> int:
    """Start the processes, and wait for them; they print.

    Args:
        devices: The number of processes, one for each GPU or processor core.
        device: As `--device` has it.
        command: What was typed.

    Returns:
        The exit code of the process that ended first in an error, or 0.

    Raises:
        UsageError: There are fewer GPUs, or processor cores; or VITRAIL_TIMEOUT is no number of seconds.
    """
    seconds_of_silence()
    gpus = torch.cuda.device_count() if device == "auto" or device.startswith("cuda") else 0
    there, what = (gpus, "GPU") if gpus else (cores(), "processor core")
    if not 1 <= devices <= there:
        problem = f"--devices wants 1 to {there}, since this machine has {counted(there, what)}, got {devices}"
        raise UsageError(problem, Hint({"devices": there}))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors() // devices)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(STOPPING))
    os.environ[LAUNCHER] = str(os.getpid())
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):  # the processes report what happened
            logging.getLogger(name).setLevel(logging.CRITICAL)
    how = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    try:
        elastic_launch(how, sys.executable)("-m", *shlex.split(command), *["--debug"] * ("--debug" in sys.argv))
    except ChildFailedError as error:
        _, failed = error.get_first_failure()
        return failed.exitcode if failed.exitcode > 0 else 1
    except SignalException:
        return INTERRUPTED  # which one of them reports
    return 0


def is_launched(devices: int) -> bool:
    """Whether this process is one of those that were started.

    Raises:
        UsageError: It is, of another number of them.
    """
    if "RANK" not in os.environ:
        return False
    if (world := world_of()) != devices:
        problem = f"--devices {devices}, and {counted(world, 'process', 'processes')} of this training were started"
        raise UsageError(problem, Hint(drop=["devices"], text="where torchrun starts the processes"))
    return True
