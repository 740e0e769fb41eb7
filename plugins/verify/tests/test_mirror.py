"""A run reads its folder as it is, and writes into a folder of its own."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "mirrored.py"


def test_only_the_mirror_is_written(tmp_path):
    original, own = tmp_path / "original", tmp_path / "own"
    files = {
        "log.txt": "begun, ",
        "model.pt": "kept",
        "old.txt": "old",
        "data/deep/a.txt": "a",
        "data/deep/b.txt": "b",
        "gone/c.txt": "c",
    }
    for name, text in files.items():
        (original / name).parent.mkdir(parents=True, exist_ok=True)
        (original / name).write_text(text)
    result = fork_script(SCRIPT, own, original, cwd=tmp_path).ok()
    assert result.stdout.split() == ["data/new.txt", "log.txt", "model.pt", "renamed.txt"]
    left = {
        str(path.relative_to(original)): path.read_text()
        for path in original.rglob("*")
        if path.is_file()
    }
    assert left == files


def test_ranks_that_make_a_folder_in_one_that_exists(tmp_path):
    """Each of them makes the mirror's link to the outer folder real."""
    (tmp_path / "original/outer").mkdir(parents=True)
    (tmp_path / "original/outer/kept.txt").write_text("kept")
    result = fork_script(
        """
        import os, sys
        from multiprocessing import get_context
        from pathlib import Path
        from torchbus_verify.runs.writes import FolderMirror

        original, own = Path(sys.argv[1]), Path(sys.argv[2])
        mirror = FolderMirror(original, own / "work")
        mirror.make()

        def make(start):
            start.wait()
            for number in range(20):
                mirror.make_real(str(mirror.place / "outer" / "new"))
                os.makedirs(mirror.place / "outer" / "new", exist_ok=True)

        context = get_context("fork")
        start = context.Barrier(4)
        ranks = [context.Process(target=make, args=(start,)) for _ in range(4)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        print([rank.exitcode for rank in ranks], sorted(os.listdir(mirror.place / "outer")))
        """,
        str(tmp_path / "original"),
        str(tmp_path / "own"),
    )
    assert result.ok() and result.stdout == "[0, 0, 0, 0] ['kept.txt', 'new']\n"
    assert [one.name for one in (tmp_path / "original/outer").iterdir()] == ["kept.txt"]
