"""Arms desync's recorder in a Python process of a watched job; :mod:`sitecustomize` beside it asks for that.

The recorder does nothing until ``torch.distributed`` is imported.
"""

import os
import sys
from importlib.machinery import PathFinder

_OTHER = "DESYNC_HIDDEN_BY"
"""Where a process has found another ``desync``, for those that multiprocessing starts from it."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arm() -> None:
    """Arm the recorder; whatever is wrong here becomes a note."""
    if _OTHER in os.environ and _is_multiprocessings():
        return  # it will be given the path of the process that started it, which has said why
    try:
        _find_package()
        from desync.recorder import imports

        imports.arm()
    except Exception as error:  # noqa: BLE001 - whatever is wrong here must never reach the job
        _complain(f"the recorder cannot start in {sys.executable}: {type(error).__name__}: {error}")


def _find_package() -> None:
    """Make ``desync`` importable: the job's interpreter may be another one than that which runs ``desync watch``."""
    if "desync" in sys.modules:
        return
    if (other := _programs_own()) is not None:
        os.environ[_OTHER] = other
        raise ImportError(f"another package is called desync: {other}")
    os.environ.pop(_OTHER, None)  # what an ancestor found is none of this program's
    spec = PathFinder.find_spec("desync")
    if spec is None:
        # Only this package: its neighbours in another environment's site-packages are none of the job's business.
        import importlib.util

        file = os.path.join(_PACKAGE, "__init__.py")
        if not os.path.isdir(os.path.join(_PACKAGE, "recorder")):
            raise ImportError(f"{_PACKAGE} is not desync's package")
        spec = importlib.util.spec_from_file_location("desync", file, submodule_search_locations=[_PACKAGE])
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} cannot be imported")
        sys.modules["desync"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    elif not os.path.isdir(os.path.join(os.path.dirname(spec.origin or ""), "recorder")):
        raise ImportError(f"another package is called desync: {spec.origin}")


def _programs_own() -> str | None:
    """A ``desync`` of the user's beside the program that runs: it is on no path yet, but the program must get it, not ours."""
    if getattr(sys.flags, "safe_path", False):
        return None
    program = sys.argv[0] if sys.argv else ""
    try:
        if program not in ("", "-", "-c", "-m"):
            program = os.path.realpath(program)
            folder = program if os.path.isdir(program) else os.path.dirname(program)
        elif _is_multiprocessings():
            return None
        else:
            folder = os.getcwd()
    except OSError:
        return None  # the working directory was removed
    package, module = os.path.join(folder, "desync", "__init__.py"), os.path.join(folder, "desync.py")
    if os.path.isfile(package):
        return None if os.path.isdir(os.path.join(folder, "desync", "recorder")) else package
    return module if os.path.isfile(module) else None


def _is_multiprocessings() -> bool:
    return any(word.startswith("from multiprocessing.") for word in sys.orig_argv)


def _complain(text: str) -> None:
    """Leave a note beside the journals if this is a rank; other Python processes of the job are not missed."""
    try:
        if os.environ.get("DESYNC_DEBUG"):
            sys.stderr.write(f"desync: {text}\n")
        rank, run_directory = os.environ.get("RANK"), os.environ.get("DESYNC_RUN_DIR")
        if rank is None or not run_directory:
            return
        folder = os.path.join(run_directory, "journals")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        handle = os.open(os.path.join(folder, f"{os.getpid()}.note"), flags, 0o600)
        os.write(handle, f"rank {rank} (pid {os.getpid()}): {text}\n".encode("utf-8", "backslashreplace"))
        os.close(handle)
    except Exception:  # noqa: BLE001, S110 - there is no other place to say it
        pass
