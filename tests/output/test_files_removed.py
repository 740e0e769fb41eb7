"""Files, folders and trees that ranks make and remove at once, and what a killed save leaves."""

from __future__ import annotations

from pathlib import Path

from ranks import facts, run


def test_ranks_that_write_and_rename_the_same_file_at_once_stay_apart(tmp_path: Path) -> None:
    """Whatever rank 0 does between two looks of another rank at a path."""
    facts(f"""
        import os
        os.chdir({str(tmp_path)!r})
        for number in range(3000):
            with open("new.tmp", "w") as file:
                file.write(f"{{s.rank}} {{number}}")
            os.replace("new.tmp", "new.txt")
    """)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"new.txt": "0 2999"}


def test_a_folder_that_another_rank_has_just_made_is_no_error(tmp_path: Path) -> None:
    result = run(f"""
        import os
        os.chdir({str(tmp_path)!r})
        os.mkdir("made")
        os.makedirs("deep/er", exist_ok=False)
        try:
            os.mkdir("made")
        except FileExistsError as error:
            found["own"] = "made twice by this rank"
    """)
    assert result.ok()
    assert "made twice" in result.stdout


def test_a_file_that_another_rank_has_just_removed_is_no_error(tmp_path: Path) -> None:
    """Loops that keep the last few checkpoints; one that was never there is an error still."""
    result = run(f"""
        import glob, os, time
        from pathlib import Path
        os.chdir({str(tmp_path)!r})
        for epoch in range(3):
            torch.save(epoch, f"{{epoch}}.pt")
            s.barrier()
            old = [name for name in glob.glob("*.pt") if int(name[0]) < epoch]
            s.barrier()
            time.sleep(0.1 * (s.rank == epoch % 2))
            for name in old:
                os.remove(name) if epoch % 2 else Path(name).unlink()
            s.barrier()
        found["left"] = glob.glob("*.pt")
        own = f"{{s.rank}}.txt"
        open(own, "w").close()
        os.remove(own)
        for name in ("other.pt", own):
            try:
                os.remove(name)
            except FileNotFoundError:
                found[name] = "is an error"
    """)
    assert result.ok()
    assert (
        '"left": ["2.pt"]' in result.stdout
        and '"other.pt": "is an error"' in result.stdout
        and '"0.txt": "is an error"' in result.stdout
    )


def test_folders_named_by_the_clock_cost_no_waiting(tmp_path: Path) -> None:
    result = run(f"""
        import os, time
        folder = f"{tmp_path}/run-at-12{{s.rank + 50}}"
        os.mkdir(folder)
        began_s = time.monotonic()
        torch.save(s.rank, folder + "/model.pt")
        found["own"] = s.all_gather_object(torch.load(folder + "/model.pt"))
        found["waited"] = max(s.all_gather_object(time.monotonic() - began_s)) > 15
    """)
    assert result.ok()
    assert '"own": [0, 1]' in result.stdout and '"waited": false' in result.stdout
    assert result.stderr.count("made no") == 1, result.stderr
    assert f"made no save of {tmp_path}/run-at-1251/model.pt" in result.stderr
    assert "all_gather_object(name)" in result.stderr


def test_a_tree_that_rank_0_has_removed_is_not_removed_again(tmp_path: Path) -> None:
    """Nor what rank 0 has written there since; and a tree is gone once ``rmtree`` is over."""
    for number in range(300):
        (tmp_path / "out" / f"{number}").mkdir(parents=True)
        (tmp_path / "out" / f"{number}" / "old").touch()
    found = facts(f"""
        import os, shutil, time
        os.chdir({str(tmp_path)!r})
        for turn in range(4):
            if s.rank == turn % 2:
                time.sleep(0.2)  # one rank is late
            shutil.rmtree("out", ignore_errors=True)
            os.makedirs("out/deep")
            with open("out/deep/new", "w") as file:
                file.write(f"{{turn}}")
            found[str(turn)] = s.all_gather_object(open("out/deep/new").read())
        found["old"] = os.path.exists("out/0")
    """)
    assert found == {
        "0": ["0", "0"],
        "1": ["1", "1"],
        "2": ["2", "2"],
        "3": ["3", "3"],
        "old": False,
    }
    assert (tmp_path / "out/deep/new").read_text() == "3"


def test_a_tree_of_a_rank_s_own_is_removed_by_it(tmp_path: Path) -> None:
    """At once where it has made it, else after a bounded wait."""
    (tmp_path / "old1").mkdir()
    result = run(
        f"""
        import os, shutil, tempfile
        os.chdir({str(tmp_path)!r})
        os.mkdir(f"rank{{s.rank}}")
        shutil.rmtree(f"rank{{s.rank}}")
        with tempfile.TemporaryDirectory(dir="."):
            pass
        if s.rank == 1:
            shutil.rmtree("old1")
        s.barrier()
        open("file", "w").close()
        for none in ("none", ""):
            try:
                shutil.rmtree(none)
            except FileNotFoundError:
                found["none"] = "not found"
        os.remove("file")
        """,
    )
    assert list(tmp_path.iterdir()) == []
    assert result.json()["none"] == "not found"
    assert result.stderr.count("made no") == 1, result.stderr
    assert f"rank 0 made no rmtree of {tmp_path}/old1, so rank 1 does: " in result.stderr
