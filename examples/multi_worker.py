"""Two worker processes train one model in step, although one of them gets bad data: `python examples/multi_worker.py`.

Starts two real processes that talk over 127.0.0.1 (MultiWorkerMirroredStrategy). In step 3 the data of worker 0 alone hold an infinity. With
a loss scale that looks at its own worker only, that worker would skip the step while the other one takes it, and the run would hang or the
models drift apart. Here both skip it, both halve their loss scale, and the weights stay equal to the bit. The command fails if they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

WORKERS = 2
STEPS = 6
BAD_STEP, BAD_WORKER = 3, 0
FAMILIES = ("keras", "tf_keras", "legacy", "v1")


def main() -> int:
    """Starts the workers, or is one of them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=["keras"], help="families of optimizers to train with (default: keras)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds until a hanging run is given up (default: 120)")
    arguments = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        worker(arguments.family)
        return 0
    reports = run_workers(arguments.family, arguments.timeout)
    return max(compare(family, [[one for one in report if one["family"] == family] for report in reports]) for family in arguments.family)


def run_workers(families: list[str], timeout: float) -> list[list[dict[str, Any]]]:
    """Returns, for each worker, what it reported after each step."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]
    processes = []
    for index in range(WORKERS):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, __file__, "--family", *families]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            sys.exit(f"A worker failed with status {process.returncode}:\n{errors}")
    return [[json.loads(line) for line in output.splitlines() if line.startswith("{")] for output, _ in outputs]


def free_ports(count: int) -> list[int]:
    """Returns ports of the loopback interface that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def compare(family: str, reports: list[list[dict[str, Any]]]) -> int:
    """Prints the workers side by side; returns 0 if they were in step throughout and skipped the bad step, else 1."""
    print(f"{family}\n{'step':>4}" + "".join(f"   worker {index}: scale  skipped  checksum of the weights" for index in range(WORKERS)))
    for step in zip(*reports, strict=True):
        columns = [f"{report['scale']:18.0f} {report['skipped']:8d}  {report['weights']:>24}" for report in step]
        print(f"{step[0]['step']:4d}" + "".join(columns))
    in_step = all(report == reports[0] for report in reports)
    skipped = [report["skipped"] for report in reports[0]]
    expected = [int(step >= BAD_STEP) for step in range(1, STEPS + 1)]
    print("In step." if in_step else "OUT OF STEP.", "One step was skipped." if skipped == expected else f"Skipped: {skipped}.")
    return 0 if in_step and skipped == expected else 1


def worker(families: list[str]) -> None:
    """Trains as one of the workers, with one family after the other, and prints a report after each step."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for family in families:
        train(strategy, family)


def train(strategy: Any, family: str) -> None:
    """Trains with an optimizer of the family and prints a report after each step."""
    import tensorflow as tf

    with strategy.scope():
        variables = [tf.Variable(tf.ones([3, 2])), tf.Variable(tf.zeros([2]))]
        optimizer = make_optimizer(family)
    take_step = make_step(strategy, variables, optimizer, family)
    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    for step in range(1, STEPS + 1):
        value = float("inf") if (step, task) == (BAD_STEP, BAD_WORKER) else float(step + task)
        take_step(tf.fill([4, 3], value))
        print(json.dumps({"family": family, **report(step, optimizer, variables)}), flush=True)


def make_optimizer(family: str) -> Any:
    """Returns an Adam optimizer of the family under a dynamic loss scale."""
    import tensorflow as tf

    from tfmp.optimizers.wrap import wrap

    if family == "keras":
        import keras

        return wrap(keras.optimizers.Adam(0.1))
    if family == "v1":
        return wrap(tf.compat.v1.train.AdamOptimizer(0.1))
    import tf_keras

    return wrap((tf_keras.optimizers.legacy if family == "legacy" else tf_keras.optimizers).Adam(0.1))


def make_step(strategy: Any, variables: list[Any], optimizer: Any, family: str) -> Callable[[Any], None]:
    """Returns a function that takes one training step on all workers, in the idiom of the family."""
    import tensorflow as tf

    def replica_step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ variables[0] + variables[1]) ** 2)
            scaled = optimizer.scale_loss(loss) if family == "keras" else optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if family != "keras":
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    @tf.function
    def step(inputs: Any) -> None:
        strategy.run(replica_step, args=(inputs,))

    return step


def report(step: int, optimizer: Any, variables: list[Any]) -> dict[str, Any]:
    """Returns what must be equal on all workers: scale, number of skipped steps, and all bits of the weights."""
    import hashlib

    weights = hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in variables)).hexdigest()[:16]
    return {"step": step, "scale": float(optimizer.scale), "skipped": int(optimizer.skipped_steps), "weights": weights}


if __name__ == "__main__":
    sys.exit(main())
