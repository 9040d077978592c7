"""The hook on writing SavedModels. Files hold the float32 graphs, which are all that TensorFlow knows of; with `save_rewritten` they hold what is run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tfmp import tf_callbacks
from tfmp.hooks import activation
from tfmp.hooks.wrapping import Wrapped

_numbers = itertools.count()
_wrapped = Wrapped()

BUILD = "_build_meta_graph"
"""The function of TensorFlow's `saved_model/save.py` through which `tf.saved_model.save`, `Model.export` and tf_keras's `Model.save` come."""


def install() -> None:
    """Hooks the writer, once."""
    _wrapped.wrap(tf_callbacks.saved_model_writer(), BUILD, _build)


def uninstall() -> None:
    """Takes the hook out again."""
    _wrapped.restore()


def _build(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = wrapped(*args, **kwargs)
    active = activation.current()
    if active.graph_rewrite and active.settings.save_rewritten:
        from tfmp.hooks import hardware, notices

        with notices.falling_back("saved", active.settings.strict, what="what is saved with save_rewritten"):
            decision = hardware.decide(active.settings, hardware.detect())
            if decision.caution:
                notices.hardware_caution(decision.caution)
            if decision.settings is not None:
                _rewrite(result[0], decision.settings)
    return result


def _rewrite(meta_graph: Any, settings: Any) -> None:
    """Puts the converted form of every function that a loader knows by name in its place, with what it calls behind it."""
    from tfmp import engine
    from tfmp.graph.library import put_in
    from tfmp.hooks import notices

    library = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    roots, new = [name for name in meta_graph.object_graph_def.concrete_functions if name in library], []
    for root in roots:
        conversion = engine.convert_named(root, library.__getitem__, settings)
        if conversion.changed:
            number = next(_numbers)

            def new_name(name: str, version: int, root: str = root, end: str = f"_tfmp_{conversion.format.name}_{number}") -> str:
                return root if (name, version) == (root, 0) else f"{name}{end}" + (f"_{version}" if version else "")

            new += [function.proto for function in conversion.functions(new_name)]
            notices.something_converted()
    holders = {node.captured_tensor.concrete_function for node in meta_graph.object_graph_def.nodes if node.HasField("captured_tensor")}
    put_in(meta_graph.graph_def, new, [*roots, *holders])  # the loader looks for tensors in those by name
