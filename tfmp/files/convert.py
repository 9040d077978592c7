"""`tfmp.convert` and `tfmp.explain`: a file in, its 16-bit twin and a report out."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterable
from typing import Any

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.errors import CheckError, FileError, GraphError, TargetError
from tfmp.files import bundle, check, target
from tfmp.files.interface import retyped_interface, retyped_signatures
from tfmp.files.options import AUTO, IO_FORMATS, Options, make_options
from tfmp.files.programs import Outcome, Progress, Root, convert_programs
from tfmp.files.report import FileReport, Sizes
from tfmp.files.source import VARIABLES, GraphSource, SavedModelSource, Source, open_source
from tfmp.files.storing import stored
from tfmp.files.tally import import_all
from tfmp.files.views import GraphView, named_nodes, view_graph, view_meta_graph
from tfmp.files.weights import Storage, Target, plan_storage
from tfmp.graph import kernels
from tfmp.graph.objects import read_objects, set_types, without_slots
