"""``torchbus report --live``: pages that follow runs, served to this machine alone."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from torchbus import session

from torchbus_cli.main import main
from torchbus_report import live
from torchbus_report.page import ranks
from torchbus_report.runs.reading import RunReader, read, stamp

from .conftest import lines

Write = Callable[..., Path]


@pytest.fixture
def site(write_run: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> live.Site:
    """A site of two runs, whose pages are made at each request."""
    monkeypatch.setattr(live, "SHORTEST_PAUSE_S", 0.0)
    monkeypatch.setattr(live, "PART_OF_TIME", 1e9)
    write_run("a", "alpha", lr=0.1)
    write_run("b", "omega", lr=0.3)
    return live.Site(tmp_path / "torchbus-logs")


def add(folder: Path, **values: float) -> None:
    with (folder / "metrics-rank0.jsonl").open("a") as file:
        file.write(lines([{"step": 99, "time_s": 99.0, **values}]))


def test_the_list_is_sorted_filtered_and_a_file(site: live.Site, tmp_path: Path) -> None:
    text = site.answer("/").text
    assert text.index("alpha") < text.index("omega") and 'href="/run?name=a"' in text
    text = site.answer("/?sort=lr&reverse=1").text
    assert text.index("omega") < text.index("alpha") and "sort=loss" in text
    found = site.answer("/?where=hyperparams.lr%3D0.3%2C+steps%3E3").text
    assert "omega" in found and "alpha" not in found
    assert "no run has logged &#x27;x&#x27;" in site.answer("/?where=x%3D1").text
    assert site.answer("/runs.csv?sort=lr").text.startswith("run,name,state,started,")
    add(tmp_path / "torchbus-logs/b", **{"val/acc": 0.75})
    assert 'data-head="val/acc">0.75' in site.answer("/").text


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_to_nothing_in_one_run(target: str, site: live.Site, tmp_path: Path) -> None:
    (tmp_path / "torchbus-logs/a/link").symlink_to(target)
    text = site.answer("/").text
    assert "alpha" in text and "omega" in text


def test_a_run_that_is_gone_has_a_stamp(tmp_path: Path) -> None:
    assert stamp(tmp_path / "gone") == ([], None)


def test_a_page_has_what_was_written_since(site: live.Site, tmp_path: Path) -> None:
    assert "newest" not in site.answer("/run?name=a").text
    add(tmp_path / "torchbus-logs/a", newest=1.0)
    assert 'data-name="newest"' in site.answer("/run?name=a").text
    both = site.answer("/run?name=a&name=b").text
    assert "2 runs" in both and 'href="/"' in both
    for address in (
        "/run",
        "/run?name=c",
        "/run?name=../torchbus-logs/a",
        "/x",
        "/run?name=a" * 99,
    ):
        assert site.answer(address).status == 404


def test_pages_are_made_in_a_small_part_of_the_time(write_run: Write, tmp_path: Path) -> None:
    site = live.Site(write_run("a", "alpha").parent)
    before = site.answer("/run?name=a")
    add(tmp_path / "torchbus-logs/a", newest=1.0)
    assert site.answer("/run?name=a") is before


def test_no_folder_yet(tmp_path: Path) -> None:
    assert "there is no folder" in live.Site(tmp_path / "none").answer("/").text


def test_only_new_lines_are_read(write_run: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run("a", ranks=1, steps=3)
    path, reader = folder / "metrics-rank0.jsonl", RunReader(folder)
    assert len(reader.read().metrics[0].points) == 3
    text = path.read_text()
    path.write_text(
        "?" * len(text) + '{"step": 3, "time_s": 1, "lo'
    )  # what was read is read no more
    cut = reader.read().metrics[0]
    assert (len(cut.points), cut.cut, cut.damaged) == (3, True, 0)
    with path.open("a") as file:
        file.write('ss": 7}\n')
    whole = reader.read().metrics[0]
    assert whole.points[3].values == {"loss": 7.0} and not whole.cut
    path.write_text(lines([{"step": 0, "time_s": 0.0, "loss": 1.0}]))  # another file
    assert len(reader.read().metrics[0].points) == 1


def test_states(tmp_path: Path, write_run: Write) -> None:
    def train(error: Exception | None = None) -> None:
        with session(strategy=None, log_dir=tmp_path / "runs"):
            (folder,) = [one for one in (tmp_path / "runs").iterdir() if one not in known]
            states.append(read(folder).state)
            known.append(folder)
            if error is not None:
                raise error

    known: list[Path] = []
    states: list[str] = []
    train()
    with pytest.raises(KeyError):
        train(KeyError("x"))
    assert states == ["running", "running"] and not list(tmp_path.glob("runs/*/*.lock"))
    assert [read(folder).state for folder in known] == ["finished", "crashed: KeyError"]
    killed = write_run("a")
    (killed / "config.json").write_text("{}")  # nothing says how it ended
    assert read(killed).state == ""
    (killed / "running.lock").touch()
    assert read(killed).state == "crashed: killed"
    assert read(tmp_path).state == ""


def test_the_rank_that_the_others_wait_for(write_run: Write) -> None:
    folder = write_run("a", ranks=3)
    for rank, own_s in enumerate((0.1, 0.3, 0.1)):
        one = {"time_s": 1.0, "own_work_s": own_s, "step_s": 0.5, "loop_in_loader_pct": 40.0}
        (folder / f"system-rank{rank}.jsonl").write_text(json.dumps(one) + "\n")
    found = ranks.measured(read(folder))
    assert ranks.slow_rank(found) == 1
    assert [found[rank]["waits_s"] for rank in range(3)] == [
        pytest.approx(0.2),
        0.0,
        pytest.approx(0.2),
    ]
    text = ranks.section([read(folder)], lambda number: "")
    assert (
        "wait for rank 1" in text
        and "<th scope=row>0</th><td>500</td><td>100</td><td>200</td><td>40</td>" in text
    )
    found[1]["own_work_s"] = 0.12
    assert ranks.slow_rank(found) is None


KEY = "the key of this test"


@pytest.fixture
def connection(site: live.Site) -> Iterator[http.client.HTTPConnection]:
    with live._server(site, 0, KEY) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        server.shutdown()


def test_only_this_machine_with_the_key_and_what_has_changed(
    connection: http.client.HTTPConnection,
) -> None:
    cookie = ""

    def ask(method: str = "GET", path: str = "/", **headers: str) -> http.client.HTTPResponse:
        connection.request(method, path, headers={"Cookie": cookie, **headers})
        answer = connection.getresponse()
        answer.read()
        return answer

    for path in ("/", "/run?name=a", "/runs.csv", "/?key=another"):
        stranger = ask(path=path)
        assert stranger.status == 403 and "Set-Cookie" not in stranger.headers
    opened = ask(path=f"/?key={quote(KEY)}")
    given = str(opened.headers["Set-Cookie"])
    assert opened.status == 200 and given.endswith("; HttpOnly; SameSite=Strict; Path=/")
    cookie = f"another=one; {given.partition('; ')[0]}"
    assert ask(Cookie=f"{cookie}, too").status == 403
    assert ask(Host="[").status == 500  # no host at all
    first = ask()
    assert first.status == 200 and "default-src 'none'" in str(
        first.headers["Content-Security-Policy"]
    )
    assert ask(**{"If-None-Match": str(first.headers["ETag"])}).status == 304
    assert ask(Host="elsewhere.example").status == 403
    assert ask("POST").status == 501


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report"], "name a RUN"),
        (["report", "--live", "last"], "--live follows all runs of --folder: leave RUN out"),
        (["report", "--live", "--port", "-1"], "port -1 can't be used"),
    ],
)
def test_bad_words(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    try:
        assert main(words) == 2
    except SystemExit as end:
        assert end.code == 2
    assert said in capsys.readouterr().err
