"""`tfmp/startup.py`: what is reported, when, and what stays as it was. Stand-ins take the place of TensorFlow and Keras."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import zipapp

import pytest

from tests.startup.environments import Environment, add_running_packages, copy_package, make_environment, write_script, write_stand_ins


def arrived(name: str) -> str:
    """The line that the stand-in for the hooks prints for a module that arrived as it should."""
    return f"arrived: {name} ran to its end: True is the module: True\n"


def output_of(result: subprocess.CompletedProcess[str]) -> str:
    """Standard output of a process that ended well and said nothing on standard error."""
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("name", ["tensorflow", "keras", "tf_keras"])
def test_a_watched_module_is_reported_once_when_it_has_run(stand_in_environment: Environment, name: str) -> None:
    code = f"import {name}; import {name}.part; from {name} import part; print('ready')"
    assert output_of(stand_in_environment.run("-c", code)) == arrived(name) + "ready\n"


def test_other_imports_load_no_hooks(stand_in_environment: Environment) -> None:
    code = "import json, email.message, sys; print(sorted(name for name in sys.modules if name.startswith('tfmp')))"
    assert output_of(stand_in_environment.run("-c", code)) == "['tfmp', 'tfmp.startup']\n"


def test_finding_a_spec_imports_nothing(stand_in_environment: Environment) -> None:
    code = "import importlib.util, sys; importlib.util.find_spec('tensorflow'); print('tensorflow' in sys.modules, 'tfmp.hooks' in sys.modules)"
    assert output_of(stand_in_environment.run("-c", code)) == "False False\n"


LOADER_ANSWERS = """
import importlib.util, importlib.machinery, inspect, sys
spec = importlib.util.find_spec("tensorflow")
if "import" in sys.argv:
    import tensorflow
    assert type(tensorflow.__loader__) is type(tensorflow.__spec__.loader) is importlib.machinery.SourceFileLoader
    spec = tensorflow.__spec__
loader = spec.loader
folder = loader.path.removesuffix("__init__.py")
print(isinstance(loader, importlib.machinery.SourceFileLoader), loader.is_package("tensorflow"), loader.name, spec.origin == loader.path)
print(loader.get_source("tensorflow") == open(loader.path).read(), loader.get_code("tensorflow").co_name, loader.get_data(folder + "data.txt"))
print(loader.get_resource_reader("tensorflow").open_resource("data.txt").read())
print(spec.submodule_search_locations == [folder.rstrip("/")])
"""


@pytest.mark.parametrize("when", ["find", "import"])
def test_the_loader_answers_as_without_tfmp(own_environment: Environment, tmp_path: pathlib.Path, when: str) -> None:
    script = write_script(tmp_path / "answers.py", LOADER_ANSWERS)
    with_tfmp = output_of(own_environment.run(script, when)).replace(arrived("tensorflow"), "")
    (own_environment.site_packages / "tfmp.pth").unlink()
    assert with_tfmp == output_of(own_environment.run(script, when))
    assert with_tfmp.splitlines()[2] == "b'data of tensorflow'"


def test_resources_and_source_are_found_after_the_import(stand_in_environment: Environment) -> None:
    code = (
        "import tensorflow, importlib.resources, inspect, pkgutil; "
        "print((importlib.resources.files('tensorflow') / 'data.txt').read_text(), pkgutil.get_data('tensorflow', 'data.txt'), "
        "'END = True' in inspect.getsource(tensorflow))"
    )
    assert output_of(stand_in_environment.run("-c", code)) == arrived("tensorflow") + "data of tensorflow b'data of tensorflow' True\n"


def test_a_reload_is_reported_again(stand_in_environment: Environment) -> None:
    code = "import importlib, tensorflow; importlib.reload(tensorflow); importlib.reload(tensorflow)"
    assert output_of(stand_in_environment.run("-c", code)) == 3 * arrived("tensorflow")


LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("tensorflow")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["tensorflow"] = module
spec.loader.exec_module(module)
print("not yet")
print(module.END)
"""


def test_a_lazily_loaded_module_is_reported_when_it_is_used(stand_in_environment: Environment, tmp_path: pathlib.Path) -> None:
    printed = output_of(stand_in_environment.run(write_script(tmp_path / "lazy.py", LAZY)))
    assert printed == "not yet\n" + arrived("tensorflow") + "True\n"


THREADS = """
import threading
import tfmp.hooks.arrival
report = tfmp.hooks.arrival.arrived
def attach(name, module):
    import time; time.sleep(0.1)
    report(name, module)
    module.attached = True
tfmp.hooks.arrival.arrived = attach
ready, seen = threading.Barrier(8), []
def work():
    ready.wait()
    import tensorflow
    seen.append(tensorflow.attached)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(seen)
"""


def test_threads_see_one_arrival_and_no_unattached_module(stand_in_environment: Environment, tmp_path: pathlib.Path) -> None:
    printed = output_of(stand_in_environment.run(write_script(tmp_path / "threads.py", THREADS)))
    assert printed == arrived("tensorflow") + str([True] * 8) + "\n"


def test_a_package_run_with_m_is_reported(stand_in_environment: Environment) -> None:
    assert output_of(stand_in_environment.run("-m", "tensorflow")) == arrived("tensorflow") + "this is tensorflow\n"


def test_a_child_process_is_watched(stand_in_environment: Environment) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import tensorflow'], check=True)"
    assert output_of(stand_in_environment.run("-c", code)) == arrived("tensorflow")


def test_a_spawned_worker_is_watched(stand_in_environment: Environment, tmp_path: pathlib.Path) -> None:
    script = write_script(
        tmp_path / "workers.py",
        """
        import multiprocessing

        def work():
            import tensorflow

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=work)
            process.start()
            process.join()
        """,
    )
    assert output_of(stand_in_environment.run(script)) == arrived("tensorflow")


def test_commands_typed_at_the_interpreter_are_watched(stand_in_environment: Environment) -> None:
    result = stand_in_environment.run("-q", "-i", text="import tensorflow\n")
    assert result.stdout == arrived("tensorflow")


def test_a_zip_application_that_imports_tfmp_is_watched(tmp_path: pathlib.Path) -> None:
    environment = make_environment(tmp_path / "venv")
    copy_package(tmp_path / "application")
    write_stand_ins(tmp_path / "application")
    write_script(tmp_path / "application" / "__main__.py", "import tfmp\nimport tensorflow\nimport keras\n")
    zipapp.create_archive(tmp_path / "application", tmp_path / "application.pyz")
    assert output_of(environment.run(tmp_path / "application.pyz")) == arrived("tensorflow") + arrived("keras")


def test_modules_loaded_before_tfmp_are_reported_at_once(own_environment: Environment) -> None:
    (own_environment.site_packages / "tfmp.pth").unlink()
    code = "import keras, tensorflow; print('loaded'); import tfmp; print('ready')"
    assert output_of(own_environment.run("-c", code)) == "loaded\n" + arrived("tensorflow") + arrived("keras") + "ready\n"


def test_a_module_that_itself_imports_tfmp_is_reported_when_it_has_run(own_environment: Environment) -> None:
    (own_environment.site_packages / "tfmp.pth").unlink()
    init = own_environment.site_packages / "tensorflow" / "__init__.py"
    init.write_text("import tfmp\nprint('half way')\nEND = True\n", encoding="utf-8")
    code = "import tensorflow; print('loaded'); import colorsys"
    assert output_of(own_environment.run("-c", code)) == "half way\nloaded\n" + arrived("tensorflow")


def test_installing_twice_or_after_a_reload_leaves_one_watcher(stand_in_environment: Environment) -> None:
    code = (
        "import importlib, sys, tfmp.startup as startup; first = startup.install(); startup = importlib.reload(startup); "
        "print(startup.install() is first, [type(finder).__name__ for finder in sys.meta_path].count('Watcher')); import tensorflow"
    )
    assert output_of(stand_in_environment.run("-c", code)) == "True 1\n" + arrived("tensorflow")


@pytest.mark.parametrize("first", ["wrapt", "tfmp"])
def test_import_hooks_of_wrapt_work_beside_ours(own_environment: Environment, tmp_path: pathlib.Path, first: str) -> None:
    add_running_packages(own_environment)
    order = "" if first == "wrapt" else "import sys; sys.meta_path.insert(0, sys.meta_path.pop(1))\n"
    script = write_script(
        tmp_path / "hooked.py",
        "import wrapt\nwrapt.register_post_import_hook(lambda module: print('wrapt saw it:', module.END), 'tensorflow')\n"
        f"{order}import tensorflow\n",
    )
    printed = output_of(own_environment.run(script))
    assert sorted(printed.splitlines(keepends=True)) == sorted([arrived("tensorflow"), "wrapt saw it: True\n"])


def test_a_folder_named_keras_without_code_is_imported_as_ever(own_environment: Environment, tmp_path: pathlib.Path) -> None:
    shutil.rmtree(own_environment.site_packages / "keras")
    (tmp_path / "keras").mkdir()
    assert output_of(own_environment.run("-c", "import keras; print(list(keras.__path__) != [])", cwd=tmp_path)) == "True\n"
