"""``torch.save`` by all ranks: once, whole, without a collective."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from ranks import facts, run

from torchbus_rank0 import whole_files


def test_a_path_is_written_once_and_whole(tmp_path: Path) -> None:
    found = facts(f"""
        path = {str(tmp_path / "model.pt")!r}
        writes = []
        import torch.serialization as serialization
        for epoch in range(3):
            torch.save({{"epoch": epoch, "rank": s.rank}}, path)
            read = torch.load(path)
            found[str(epoch)] = [read["epoch"], read["rank"]]
        found["reads"] = s.all_gather_object(read["epoch"])
    """)
    assert found == {"0": [0, 0], "1": [1, 0], "2": [2, 0], "reads": [2, 2]}
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_an_open_file_is_written_once(tmp_path: Path) -> None:
    found = facts(f"""
        import os
        os.chdir({str(tmp_path)!r})
        path = "model.pt"
        net = nn.Linear(300, 300)
        good = 0
        for _ in range(10):
            net(torch.ones(1, 300)).sum().backward()
            with open(path, "wb") as file:
                torch.save(net.state_dict(), file)
            with open(path, "rb") as file:
                good += torch.equal(torch.load(file)["weight"], net.weight)
        found["good"] = s.all_gather_object(good)
    """)
    assert found["good"] == [10, 10]


def test_a_path_that_is_not_rank_0s_is_the_rank_s_own_and_said(tmp_path: Path) -> None:
    """Unless it has the rank or the process in it, or ``tempfile`` made it."""
    result = run(
        f"""
        import os, sqlite3, tempfile, uuid
        os.chdir({str(tmp_path)!r})
        torch.save(s.rank, f"rank{{s.rank}}.pt")
        open(f"{{os.getpid()}}.log", "w").close()
        for number in range(2):
            with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
                file.write(f"{{s.rank}}")
            os.replace(file.name, "named")
            folder = tempfile.mkdtemp(dir=".")
            open(f"{{folder}}/of-rank-{{s.rank}}", "w").close()
            s.barrier()
            os.rename(folder, f"published{{number + 5}}")
        print("NOTES")
        folder = uuid.uuid4().hex
        for name in ("first", "second"):
            os.makedirs(f"{{folder}}/{{name}}")
            torch.save(1, f"{{folder}}/{{name}}/x.pt")
        with sqlite3.connect("history") as table:
            table.execute("create table if not exists history (step integer)")
            table.execute("insert into history values (1)")
        """,
    ).ok()
    assert {"rank0.pt", "rank1.pt"} < {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "named").read_text() == "0"
    assert [path.name for path in tmp_path.glob("published*/*")] == ["of-rank-0"] * 2
    notes = [line for line in result.stderr.splitlines() if line.startswith("torchbus:")]
    assert len(notes) == 2, notes
    assert "rank 0 made no makedirs of" in notes[0], notes
    assert "if the clock or chance names the path" in notes[0]
    assert f"every rank writes to {tmp_path / 'history'}" in notes[1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_hdf5_file_is_rank_0s(tmp_path: Path, ranks: int) -> None:
    """New files and small ones that the loop adds to; not one that is too large to copy."""
    pytest.importorskip("h5py", reason="h5py is not installed")
    found = facts(
        f"""
        import os, h5py, numpy
        os.chdir({str(tmp_path)!r})
        net = nn.Linear(2, 1)
        table = h5py.File("table.h5", "w")
        rows = table.create_dataset("rows", (3,))
        for epoch in range(3):
            net(torch.ones(1, 2)).sum().backward()
            rows[epoch] = epoch + 10 * s.rank
            with h5py.File("added.h5", "a") as file:
                file[f"epoch{{epoch}}"] = [epoch, s.rank]
                count = len(file)
            with h5py.File("last.h5", "w") as file:
                file["rank"] = s.rank
            with h5py.File("added.h5", "r") as file, h5py.File("last.h5") as last:
                read = len(file), int(file[f"epoch{{epoch}}"][1]), int(last["rank"][()])
            found[str(epoch)] = s.all_gather_object((count, *read))
        table.close()
        with h5py.File("table.h5") as file:
            found["table"] = s.all_gather_object(file["rows"][:].tolist())
        with h5py.File(f"rank{{s.rank}}.h5", "a") as file:
            file["rank"] = s.rank
        try:
            h5py.File("table.h5", "x")
        except OSError as error:
            found["exists"] = s.all_gather_object(type(error).__name__)
        with h5py.File("large.h5", "w") as file:
            file["zeros"] = numpy.zeros(50_000)
        s.barrier()
        try:
            h5py.File("large.h5", "a").close()
            error = ""
        except Exception as caught:
            error = str(caught)
        found["large"] = s.all_gather_object(error)
        """,
        ranks=ranks,
    )
    for epoch in range(3):
        assert found[str(epoch)] == [[epoch + 1, epoch + 1, 0, 0]] * ranks
    assert found["table"] == [[0.0, 1.0, 2.0]] * ranks
    assert found["exists"] == ["FileExistsError"] * ranks
    assert not found["large"][0] and all("h5py adds to" in one for one in found["large"][1:])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"table.h5", "added.h5", "last.h5", "large.h5"} | {
        f"rank{rank}.h5" for rank in range(ranks)
    }


def test_files_that_the_script_opens_are_rank_0s(tmp_path: Path) -> None:
    """Appended lines are there once, what a rank reads back is what rank 0 wrote, and a file that
    only one rank writes stays.
    """
    found = facts(f"""
        import json, os
        from pathlib import Path
        folder = Path({str(tmp_path)!r})
        os.chdir(folder)
        net = nn.Linear(2, 1)
        for epoch in range(3):
            net(torch.ones(1, 2)).sum().backward()
            with open(folder / "log.csv", "a") as log:
                print(epoch, file=log)
            (folder / "state.json").write_text(json.dumps([epoch, s.rank]))
            found["read"] = s.all_gather_object(json.loads((folder / "state.json").read_text()))
            with open(folder / "new.tmp", "w") as file:
                file.write("whole")
            os.replace(folder / "new.tmp", folder / "new.txt")
            with open(folder / f"rank{{s.rank}}.txt", "a") as file:
                file.write(f"{{epoch}} ")
        found["explain"] = s.explain()
    """)
    assert found["read"] == [[2, 0], [2, 0]]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "log.csv": "0\n1\n2\n",
        "state.json": "[2, 0]",
        "new.txt": "whole",
        "rank0.txt": "0 1 2 ",
        "rank1.txt": "0 1 2 ",
    }


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path) -> None:
    result = run(f"""
        class Bad:
            def __reduce__(self):
                raise ValueError("can't be saved")

        path = {str(tmp_path / "model.pt")!r}
        torch.save("old", path)
        try:
            torch.save([torch.zeros(1000), Bad()], path)
        except ValueError as error:
            found["error"] = str(error)
            found["read"] = torch.load(path)
    """)
    assert result.ok()
    assert '"read": "old"' in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_what_a_killed_save_has_left_is_swept_by_the_next_run(tmp_path: Path) -> None:
    """Also where that saves under another name; what belongs to a save that still runs stays, and
    so does a file of the script's own.
    """
    own = tmp_path / ".model.pt.original"
    own.write_text("the script's")
    killed = run(f"""
        import os, signal

        class Deadly:
            def __reduce__(self):
                os.kill(os.getpid(), signal.SIGKILL)

        torch.save([torch.zeros(1000), Deadly()], {str(tmp_path / "model.pt")!r})
    """)
    assert killed.status == -signal.SIGKILL and not killed.orphans
    left = [path for path in tmp_path.iterdir() if path != own]
    assert len(left) >= 1 and all(path.name.startswith(".model.pt.") for path in left)
    descriptor, alive = whole_files.make(str(tmp_path), "other.pt")
    assert run(f"torch.save('new', {str(tmp_path / 'last.pt')!r})").ok()
    os.close(descriptor)
    assert {path.name for path in tmp_path.iterdir()} == {
        "last.pt",
        own.name,
        os.path.basename(alive),
    }


def test_a_save_into_a_missing_folder_is_torchs_own_error_on_every_rank_at_once(
    tmp_path: Path,
) -> None:
    found = facts(f"""
        import time
        from torchbus_testing.processes import stretched
        begun_s = time.monotonic()
        for attempt in range(2):
            try:
                torch.save({{}}, {str(tmp_path / "missing" / "model.pt")!r})
            except Exception as error:
                found[f"said {{attempt}}"] = s.all_gather_object([type(error).__name__, str(error)])
        found["in time"] = s.all_gather_object(time.monotonic() - begun_s < stretched(15))
        torch.save({{"rank": s.rank}}, {str(tmp_path / "model.pt")!r})
        found["read"] = torch.load({str(tmp_path / "model.pt")!r})["rank"]
    """)
    said = ["RuntimeError", f"Parent directory {tmp_path / 'missing'} does not exist."]
    assert found == {"said 0": [said] * 2, "said 1": [said] * 2, "in time": [True, True], "read": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_changes_that_build_on_each_other_are_rank_0s(tmp_path: Path) -> None:
    """Whichever rank is late: what is there at the end, and what each rank reads, is as with one
    process; no file of another rank is left.
    """
    (tmp_path / "cfg").mkdir()
    (tmp_path / "cfg" / "a.yaml").write_text("a")
    found = facts(
        f"""
        import json, os, shutil, time
        from pathlib import Path
        os.chdir({str(tmp_path)!r})
        net = nn.Linear(2, 1)
        shutil.copytree("cfg", "run/cfg")
        shutil.copy2("cfg/a.yaml", "run")
        seen = [Path("run/a.yaml").read_text()]
        for step in range(6):
            net(torch.ones(1, 2)).sum().backward()
            time.sleep(0.03 * (step % 3 == s.rank))
            torch.save(step, "new.tmp")
            os.replace("new.tmp", "new.pt")
            seen.append(torch.load("new.pt"))
            if os.path.exists("best.pt"):
                os.remove("best.pt")
            torch.save(step, "best.pt")
            if os.path.exists("last.pt"):
                os.replace("last.pt", "previous.pt")
            torch.save(step, "last.pt")
            if os.path.islink("link.pt"):
                os.unlink("link.pt")
            os.symlink("last.pt", "link.pt")
            json.dump(step, open("state.json", "w"))
            seen.append(json.load(open("state.json")))
            Path("done").touch()
            Path("done").unlink()
            shutil.copy("state.json", "copy.tmp")
            shutil.move("copy.tmp", "copy.json")
        s.barrier()
        names = ("best.pt", "last.pt", "previous.pt", "link.pt")
        found["seen"] = s.all_gather_object([*seen, *map(torch.load, names)])
        found["copy"] = Path("copy.json").read_text()
        """,
        ranks=3,
    )
    assert found["seen"] == [["a", *(n for n in range(6) for _ in "12"), 5, 5, 4, 5]] * 3
    assert found["copy"] == "5"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [
            "best.pt",
            "cfg",
            "copy.json",
            "last.pt",
            "link.pt",
            "new.pt",
            "previous.pt",
            "run",
            "state.json",
        ]
    )


def test_a_file_of_one_rank_is_at_its_path_from_the_first_byte(tmp_path: Path) -> None:
    result = run(f"""
        import os, signal
        net = nn.Linear(2, 1)
        log = open({str(tmp_path)!r} + f"/rank{{s.rank}}.txt", "w")
        for step in range(5):
            net(torch.ones(1, 2)).sum().backward()
            print(step, file=log, flush=True)
        if s.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        s.barrier()
    """)
    assert result.status != 0 and not result.orphans
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "rank0.txt": "0\n1\n2\n3\n4\n",
        "rank1.txt": "0\n1\n2\n3\n4\n",
    }


def test_a_rank_does_not_wait_for_a_rank_0_that_has_ended(tmp_path: Path) -> None:
    """The terminal says so."""
    result = run(f"""
        import sys, warnings
        if s.rank == 0:
            sys.exit(0)
        torch.save(s.rank, {str(tmp_path / "late.pt")!r})
    """)
    assert result.status == 0
    assert f"rank 0 ended its loop before the save of {tmp_path}/late.pt" in result.stderr
    assert torch.load(tmp_path / "late.pt") == 1


def test_descriptors_of_the_system_are_rank_0s(tmp_path: Path) -> None:
    """Locks that a file is, and lines that are written by a descriptor."""
    found = facts(f"""
        import os
        os.chdir({str(tmp_path)!r})
        net = nn.Linear(2, 1)
        log = os.open("raw.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for epoch in range(3):
            os.close(os.open("lock", os.O_CREAT | os.O_EXCL))
            net(torch.ones(1, 2)).sum().backward()
            os.write(log, f"{{epoch}}\\n".encode())
            try:
                os.open("lock", os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                os.remove("lock")
        os.close(log)
        found["read"] = s.all_gather_object(open("raw.log").read())
        own = os.open(f"rank{{s.rank}}.txt", os.O_WRONLY | os.O_CREAT)
        os.write(own, b"mine")
        os.close(own)
    """)
    assert found["read"] == ["0\n1\n2\n"] * 2
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "raw.log": "0\n1\n2\n",
        "rank0.txt": "mine",
        "rank1.txt": "mine",
    }


def test_a_rank_that_is_late_reads_what_rank_0_has_read(tmp_path: Path) -> None:
    """Although rank 0 has changed the file since, in whatever way."""
    found = facts(
        f"""
        import json, os, time
        from pathlib import Path
        os.chdir({str(tmp_path)!r})
        seen = []

        def read(name):
            time.sleep(0.1 * s.rank)
            seen.append(Path(name).read_text())
            return seen[-1]

        for number in range(3):
            for name in ("state", "replaced", "log", "counter"):
                if not number:
                    Path(name).write_text("0000")
            Path("state").write_text(str(int(read("state")) + 1))
            Path("new").write_text(str(int(read("replaced")) + 1))
            os.replace("new", "replaced")
            lines = read("log").count("\\n")
            with open("log", "a") as log:
                print(lines, file=log)
            count = int(read("counter"))
            with open("counter", "r+") as file:
                file.write(f"{{count + 1:04d}}")
            os.remove("state") if number == 2 else None
        found["seen"] = s.all_gather_object(seen)
        if s.is_main:
            Path("log").write_text("rank 0 alone")
        s.barrier()
        found["alone"] = s.all_gather_object(Path("log").read_text())
        """,
        ranks=3,
    )
    mine = found["seen"][0]
    assert mine[-4:] == ["2", "2", "00000\n1\n", "0002"]
    assert found["seen"] == [mine] * 3
    assert found["alone"] == ["rank 0 alone"] * 3


def test_a_file_of_an_earlier_run_is_read_as_rank_0_has_read_it(tmp_path: Path) -> None:
    """Even if rank 0 empties the file after another rank has asked how old it is."""
    found = facts(
        f"""
        import json, os, time
        from pathlib import Path
        from torchbus_rank0 import visible_files
        os.chdir({str(tmp_path)!r})

        def is_old(self, path):
            time.sleep(0.5)
            return True

        visible_files.Seeing._is_old = is_old
        if s.is_main:
            Path("rows.json").write_text("[1]")
        s.barrier()
        rows = json.loads(Path("rows.json").read_text())
        time.sleep(0.1) if s.is_main else None
        with open("rows.json", "w") as file:
            time.sleep(1.0) if s.is_main else None
            json.dump([*rows, 2], file)
        found["rows"] = s.all_gather_object(rows)
        """
    )
    assert found["rows"] == [[1], [1]]


def test_libraries_write_on_rank_0_and_the_others_wait(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = facts(
        f"""
        import os, time
        os.chdir({str(tmp_path)!r})
        from safetensors.torch import load_file, save_file
        from transformers import BertConfig, BertModel
        sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        model = BertModel(BertConfig(vocab_size=9, **sizes))
        values = []
        for number in range(3):
            time.sleep(0.1 * (s.is_main and number == 1))
            save_file({{"x": torch.full((3,), float(number + 10 * s.rank))}}, "x.safetensors")
            values.append(load_file("x.safetensors")["x"].sum().item())
            model.save_pretrained(f"saved{{number}}")
            BertModel.from_pretrained(f"saved{{number}}")
            s.barrier()
        found["values"] = s.all_gather_object(values)
        """
    )
    assert found["values"] == [[0.0, 3.0, 6.0]] * 2


def test_a_rank_that_is_late_finds_what_rank_0_has_found(tmp_path: Path) -> None:
    """What is there, how large it is, and what a folder has, although rank 0 has changed it since:
    caches, numbered folders, files that are moved when they are full.
    """
    (tmp_path / "count").write_text("7")
    (tmp_path / "out").mkdir()
    found = facts(
        f"""
        import glob, json, os, random, shutil, time
        from pathlib import Path
        os.chdir({str(tmp_path)!r})
        seen = []

        def late(value):
            seen.append(value)
            time.sleep(0.05 * s.world.rank)
            return value

        late(0)
        number = late(int(open("count").read()))
        open("count", "w").write(str(number + 1))
        if late(os.path.exists("split.json")):
            json.load(open("split.json"))
        else:
            with open("split.json", "w") as file:
                json.dump(random.sample(range(9), 3), file)
        for step in range(3):
            late(0)
            if late(os.path.exists("out")):
                shutil.rmtree("out")
            os.makedirs("out/img")
            late(0)
            folder = f"runs/exp{{len(os.listdir('runs')) if os.path.isdir('runs') else 0}}"
            os.makedirs(late(folder))
            late(sorted(path.name for path in Path("runs").iterdir()))
            Path("full.txt").open("a").write("x" * 10)
            if late(os.path.getsize("full.txt")) == 20:
                os.rename("full.txt", f"full{{step}}.txt")
            late(sorted(glob.glob("full*")))
            try:
                late(Path("full.txt").read_text())
            except FileNotFoundError as error:
                late(error.filename)
        found["seen"] = s.all_gather_object(seen)
        found["next"] = s.all_gather_object(random.random())
        """,
        ranks=3,
    )
    mine = found["seen"][0]
    assert found["seen"] == [mine] * 3 and len(set(found["next"])) == 1
    assert mine.count("full.txt") == 1 and 7 in mine
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("count", "full.txt", "full1.txt", "out", "runs", "split.json")
    ]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["exp0", "exp1", "exp2"]


def test_a_rank_sees_what_rank_0_alone_has_written(tmp_path: Path) -> None:
    found = facts(f"""
        import os
        from pathlib import Path
        os.chdir({str(tmp_path)!r})
        if s.is_main:
            os.makedirs("a")
            Path("a/first").write_text("1")
        s.barrier()
        found["listed"] = s.all_gather_object([os.listdir("a"), os.path.exists("a/first")])
    """)
    assert found["listed"] == [[["first"], True]] * 2


def test_functions_that_write_by_themselves_are_rank_0s(tmp_path: Path) -> None:
    """Of numpy and torch, of modules that have Python's own by name, and in temporary folders."""
    result = run(
        f"""
        import bz2, os, tempfile
        import numpy
        os.chdir({str(tmp_path)!r})
        net = nn.Linear(2, 1)
        net(torch.ones(1, 2)).sum().backward()
        traced = torch.jit.trace(net, torch.ones(1, 2))
        program = torch.export.export(net, (torch.ones(1, 2),))
        good = 0
        for step in range(4):
            numpy.savetxt("losses.txt", numpy.full(300, step))
            traced.save("method.pt"), torch.jit.save(traced, f="function.pt")
            torch.export.save(program, "program.pt2")
            makedirs(f"out{{step}}"), copy("losses.txt", f"out{{step}}")
            with bz2.open("packed.bz2", "wb") as file:
                file.write(bytes([step]) * 3000)
            read = bz2.open("packed.bz2").read(), numpy.loadtxt(f"out{{step}}/losses.txt").tolist()
            good += read == (bytes([step]) * 3000, [step] * 300)
            for name in ("method.pt", "function.pt"):
                good += torch.equal(torch.jit.load(name)(torch.ones(1, 2)), net(torch.ones(1, 2)))
            good += torch.export.load("program.pt2").module()(torch.ones(1, 2)).shape == (1, 1)
            with tempfile.TemporaryDirectory() as folder:
                torch.save(s.world.rank, os.path.join(folder, "x.pt"))
                shutil.move(os.path.join(folder, "x.pt"), "moved.pt")
            with tempfile.NamedTemporaryFile("w", delete=False) as file:
                file.write(str(s.world.rank))
            shutil.move(file.name, "named")
            good += (torch.load("moved.pt"), open("named").read()) == (0, "0")
            s.barrier()  # native code reads what is there now
        found["good"] = s.all_gather_object(good)
        """,
        before="import shutil\nfrom os import makedirs\nfrom shutil import copy",
    )
    assert result.json()["good"] == [20, 20] and "rank 0 made no" not in result.stderr


def test_a_question_for_a_missing_file_keeps_no_variable_of_the_loop(tmp_path: Path) -> None:
    found = facts(f"""
        import gc, os, weakref
        def ask():
            batch = torch.zeros(3)
            there = os.path.exists({str(tmp_path / "missing")!r})
            return weakref.ref(batch), there
        gc.disable()
        batch, there = ask()
        found["asked"] = s.all_gather_object([there, batch() is None])
        gc.enable()
    """)
    assert found == {"asked": [[False, True]] * 2}
