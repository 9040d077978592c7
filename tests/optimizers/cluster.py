"""Clusters on the loopback interface for tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_workers(script: str, count: int = 2, timeout: float = 800) -> list[str]:
    """What each of `count` workers of one cluster prints when it runs `script`; none is left behind, whatever happens."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    processes = []
    for index in range(count):
        config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        environment = {**os.environ, "TF_CONFIG": config}
        processes.append(subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        results = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, results, strict=True):
        if process.returncode:
            sys.exit(f"A worker failed with status {process.returncode}:\n{errors[-4000:]}")
    return [output for output, _ in results]
