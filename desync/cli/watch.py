"""``desync watch``: runs a launch line and says what goes wrong in it."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from desync.errors import UsageError

NAME = "watch"
HELP = "run a launch line, and say which rank, which collective and which line of code holds it up"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; everything from the command on belongs to the command."""
    parser.usage = "desync watch [options] [--] COMMAND…"
    parser.add_argument(
        "--run-dir", metavar="DIR", type=Path, help="where to leave everything (default: desync-runs/<time>-<command>)"
    )
    parser.add_argument(
        "--hang-after",
        metavar="SECONDS",
        type=_seconds,
        default=10.0,
        help="how long a rank that others wait for must not move to be called stuck (default: 10)",
    )
    parser.add_argument(
        "--on-hang",
        choices=("report", "kill"),
        default="report",
        help="what to do with a job that hangs (default: report, and let it be)",
    )
    _add_levels(parser)
    annotate = "write a finding as an annotation for GitHub, at the line of code (default: where GITHUB_ACTIONS or CI is set)"
    parser.add_argument("--annotate", action=argparse.BooleanOptionalAction, help=annotate)
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the launch line, as without desync")


def _add_levels(parser: argparse.ArgumentParser) -> None:
    """How much torch and NCCL say of themselves."""
    from desync.watch.environment import NCCL_DEBUG_LEVELS, TORCH_DEBUG_LEVELS

    parser.add_argument(
        "--torch-debug",
        metavar="LEVEL",
        type=str.upper,
        choices=TORCH_DEBUG_LEVELS,
        help="TORCH_DISTRIBUTED_DEBUG (default: yours, else DETAIL)",
    )
    parser.add_argument(
        "--nccl-debug",
        metavar="LEVEL",
        type=str.upper,
        choices=NCCL_DEBUG_LEVELS,
        help="NCCL_DEBUG (default: yours, else INFO into the run directory)",
    )
    parser.add_argument(
        "--torch-wrapper",
        action="store_true",
        help="keep torch's own check around each collective (slow, and it crashes DDP on gloo)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status of ``desync watch``."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command given", "put the launch line after it: desync watch torchrun --nproc-per-node 4 train.py")
    from desync.diagnosis import diagnose
    from desync.watch.environment import DebugLevels
    from desync.watch.session import Options, watch

    options = Options(
        command=tuple(command),
        run_dir=arguments.run_dir,
        hang_after_s=arguments.hang_after,
        kill_on_hang=arguments.on_hang == "kill",
        levels=DebugLevels(arguments.torch_debug, arguments.nccl_debug, arguments.torch_wrapper),
        annotate=_in_ci() if arguments.annotate is None else arguments.annotate,
    )
    return watch(options, diagnose)


def _in_ci() -> bool:
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("GITHUB_ACTIONS", "CI"))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value
