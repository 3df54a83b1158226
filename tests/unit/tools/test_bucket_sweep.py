from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from desync.errors import UsageError
from tests.conftest import ROOT, RunCommand
from tests.unit.report.ddp_samples import training
from tools import bucket_sweep
from tools.bucket_sweep import Run, compare, drawing, half_width, measured, orders, table, verdict

TOOL = ROOT / "tools" / "bucket_sweep.py"


def runs(**steps: list[float]) -> dict[float, list[Run]]:
    """Runs of sizes named s6, s25, … with these step times."""
    return {float(name[1:]): [Run(step, 0.02, 0.015, 0.005, 3, 40) for step in own] for name, own in steps.items()}


def test_a_run_is_measured_as_it_was_made() -> None:
    run = measured(training(count=12), skip=5)

    assert (run.step, run.communication, run.overlap, run.tail) == (0.04, 0.016, 0.0051, 0.0109)
    assert (run.buckets, run.steps) == (2, 14)
    with pytest.raises(UsageError, match="after the first 12"):
        measured(training(count=12), skip=12)


def test_each_round_has_every_size_and_the_next_is_its_reverse() -> None:
    made = orders([6, 12, 25, 50], 5)

    assert len(made) == 5
    assert all(sorted(order) == [6, 12, 25, 50] for order in made)
    assert made[1] == made[0][::-1]
    assert made[3] == made[2][::-1]
    assert made == orders([6, 12, 25, 50], 5)


def test_the_best_is_named_only_if_it_can_be_told_apart() -> None:
    clear = runs(s6=[0.110, 0.121, 0.131], s25=[0.100, 0.111, 0.120])  # the machine drifts, the difference does not
    noisy = runs(s6=[0.110, 0.100, 0.140], s25=[0.100, 0.120, 0.120])
    partly = runs(s6=[0.110, 0.121, 0.131], s12=[0.101, 0.112, 0.119], s25=[0.100, 0.111, 0.120])

    best, (other,) = compare(clear)
    assert (best, other.size, other.told_apart) == (25, 6, True)
    assert other.difference == pytest.approx(0.0103, abs=1e-4)
    assert verdict(clear)[-1] == "Best: 25 MiB (3 rounds, 95 % confidence)."
    assert verdict(noisy)[-1] == "The sizes cannot be told apart in 3 rounds."
    assert verdict(partly)[-1] == "Best: 25 MiB, not told apart from 12 MiB in 3 rounds."
    assert verdict(runs(s6=[0.2], s25=[0.1]))[-1] == "The sizes cannot be told apart in 1 round."


def test_the_interval_is_students() -> None:
    # Mean 2, standard deviation 1, three values: 4.30 / sqrt(3).
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(2.4826, abs=1e-3)
    assert half_width([1.0] * 40) == 0


def test_table_and_drawing_show_every_size() -> None:
    made = runs(s6=[0.110, 0.121], s25=[0.100, 0.111])

    lines = table(made)
    picture = ElementTree.fromstring(drawing(made))

    assert [line.split()[0] for line in lines] == ["MiB", "6", "25"]
    assert "(110 ms … 121 ms)" in lines[1]
    assert lines[1].endswith("75 %")
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"6 MiB", "25 MiB", "tail"} <= set(texts)
    bars = [float(element.attrib["width"]) for element in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert min(bars) > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "torchrun", "train.py"], r"no \{\}"),
        (["--sizes", "6,6", "--", "x", "{}"], "different sizes"),
        (["--sizes", "a", "--", "x", "{}"], "no list of numbers"),
        (["--sizes", "6", "--", "x", "{}"], "at least two sizes"),
    ],
)
def test_wrong_use_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bucket_sweep.main(arguments)

    assert caught.value.code == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_job_that_fails_is_said_with_its_last_lines(tmp_path: Path, run_command: RunCommand) -> None:
    done = run_command([sys.executable, TOOL, "--", sys.executable, "-c", "print('size {}'); raise SystemExit(7)"])

    assert done.status == 2
    assert re.search(r"the run with \d+ MiB ended with status 7.*size \d+", done.stderr, re.DOTALL)


@pytest.mark.job
def test_a_real_training_is_swept(tmp_path: Path, run_command: RunCommand) -> None:
    program = [ROOT / "fault_scenarios" / "healthy_ddp.py", "--epochs", "1", "--width", "512", "--layers", "3"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *program]
    options = ["--sizes", "1,25", "--rounds", "2", "--skip", "3", "--plot", tmp_path / "sweep.svg"]

    done = run_command([sys.executable, TOOL, *options, "--", *launch, "--bucket-cap-mb", "{}"], timeout_s=170)

    assert done.status == 0, done.output
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[:3]}
    assert (rows["1"][1], rows["25"][1]) == ("4", "1")  # buckets
    assert int(rows["25"][-2]) < int(rows["1"][-2])  # of one bucket nothing is hidden, of several something is
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")
    assert re.search(r"Best: |cannot be told apart", done.stdout)
