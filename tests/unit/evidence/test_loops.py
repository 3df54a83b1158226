from desync.evidence.loops import loops_of, parse
from desync.model import Call, CallSite, Frame, Kind, OperationTable, Trace

SOURCE = b"""for epoch in range(3):
    while True:
        step()
    else:
        done()
after()
"""


def _trace(file: str) -> Trace:
    call = Call("all_reduce", Kind.COLLECTIVE, site=CallSite((Frame("main", file, 1),)))
    return Trace(0, OperationTable(calls=(call,)))


def test_a_loop_ends_with_its_body_and_not_with_its_else():
    assert set(parse(SOURCE) or ()) == {(1, 5), (2, 3)}


def test_what_is_no_python_has_no_known_loops():
    assert parse(b"for for for") is None
    assert parse(b"\x00\xff") is None
    assert parse(b"(" * 100_000) is None


def test_only_small_regular_python_files_are_read(tmp_path):
    source = tmp_path / "train.py"
    source.write_bytes(SOURCE)
    folder = tmp_path / "folder.py"
    folder.mkdir()
    files = [str(source), str(folder), "/dev/zero", str(tmp_path / "missing.py"), "<string>"]
    assert loops_of(map(_trace, files)) == {str(source): parse(SOURCE)}
