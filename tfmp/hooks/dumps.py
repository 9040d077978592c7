"""Graph dumps in TensorFlow's own form (`PrintDebugLogs` in `auto_mixed_precision.cc`), for TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH."""

from __future__ import annotations

import pathlib
import time

from google.protobuf import text_format

from tfmp import tf_api
from tfmp.conversion import Conversion
from tfmp.graph.fragment import graph_of
from tfmp.oplists import KINDS
from tfmp.reports import overlay


def write(conversion: Conversion, folder: str) -> list[pathlib.Path]:
    """Writes the program before and after, as binary and as text GraphDef (functions in the library), the lists in force, and the colours of the program
    before for Google's Model Explorer (`overlay`), which TensorFlow's own pass does not; returns the files.

    The folder is made if it is not there. File names hold the root's name and the time in milliseconds, so that nothing is overwritten.
    """
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    stamp = f"{conversion.root or 'main'}_{time.time_ns() // 1_000_000}"
    files = []
    for suffix, graph in (("preop", _before(conversion)), ("AutoMixedPrecision", _after(conversion))):
        files.append(target / f"graphdef_{suffix}_{stamp}.pb")
        files[-1].write_bytes(graph.SerializeToString())
        files.append(target / f"graphdef_{suffix}_{stamp}.pb.txt")
        files[-1].write_text(text_format.MessageToString(graph), encoding="utf-8")
    files.append(target / f"paintbuckets_AutoMixedPrecision_{stamp}.txt")
    files[-1].write_text("\n".join(_bucket(conversion, kind) for kind in KINDS), encoding="utf-8")
    files.append(target / f"model_explorer_{stamp}.json")
    files[-1].write_text(overlay.overlay(overlay.of_conversion(conversion), conversion.format.name), encoding="utf-8")
    return files


def _before(conversion: Conversion) -> tf_api.GraphDef:
    if not conversion.root:
        return conversion.originals[""]
    return graph_of((), [conversion.originals[name] for name in dict.fromkeys(body.function for body in conversion.bodies.values())])


def _after(conversion: Conversion) -> tf_api.GraphDef:
    if not conversion.root:
        return conversion.graph_def
    functions = conversion.functions(lambda name, version: f"{name}_{version}" if version else name)
    return graph_of((), [function.proto for function in functions])


def _bucket(conversion: Conversion, kind: str) -> str:
    return "\n".join([f"{kind.capitalize()}List:", *sorted(conversion.lists.ops(kind)), ""])
