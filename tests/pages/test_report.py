"""The report in a real browser: zoom, axes, runs to hide, and pictures to leaf through."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torchbus import session

pytest.importorskip("selenium")
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from site_browser import BROWSER, DRIVER, browser, served

from torchbus_report import live, page
from torchbus_report.runs.reading import read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and its driver are missing"),
]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """The folder of a page about two runs, with a loss and three pictures each."""
    for _ in range(2):
        with session(strategy=None, log_dir=tmp_path / "runs") as s:
            for step in range(120):
                s.log("loss", 1.0 + step % 7, step=step)
            for step in range(3):
                s.log_image("picture", torch.full((2, 2), step / 2), step=step)
    runs = [read(folder) for folder in sorted((tmp_path / "runs").iterdir())]
    (tmp_path / "site").mkdir()
    (tmp_path / "site/report.html").write_text(page(runs), "utf-8")
    return tmp_path / "site"


def test_a_reader_zooms_hides_runs_and_leafs_through_pictures(report: Path) -> None:
    with served(report) as address, browser() as chromium:
        chromium.get(f"{address}/report.html")
        chart = chromium.find_element(By.CSS_SELECTOR, ".chart[data-hover]")
        plot = chart.find_element(By.CSS_SELECTOR, ".plot")
        whole, log = chart.find_elements(By.CSS_SELECTOR, ".tools button")
        curves = chart.find_elements(By.CSS_SELECTOR, "path[data-y]")
        before = curves[0].get_attribute("d")

        chromium.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
        drag = ActionChains(chromium).move_to_element_with_offset(plot, -60, 0)
        drag.click_and_hold().move_by_offset(100, 5).release().perform()
        assert "zoomed" in str(chart.get_attribute("class")) and whole.is_displayed()
        assert curves[0].get_attribute("d") != before
        whole.click()
        assert "zoomed" not in str(chart.get_attribute("class")) and not whole.is_displayed()

        log.click()
        assert log.get_attribute("aria-pressed") == "true"
        assert chart.find_element(By.CSS_SELECTOR, ".logs").is_displayed()

        chromium.find_element(By.CSS_SELECTOR, ".legend button").click()
        assert [curve.is_displayed() for curve in curves] == [False, True]

        pictures = chromium.find_element(By.CSS_SELECTOR, ".pictures")
        frames = pictures.find_elements(By.CSS_SELECTOR, "img")
        assert [frame.is_displayed() for frame in frames] == [False, False, True]
        slider = pictures.find_element(By.CSS_SELECTOR, "input")
        move = "arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))"
        chromium.execute_script(move, slider)
        assert [frame.is_displayed() for frame in frames] == [True, False, False]
        assert pictures.find_element(By.CSS_SELECTOR, "output").text == "0"


def test_a_page_follows_a_run_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reader has done to a chart stays, on a desk and on a phone."""
    monkeypatch.setattr(live, "SHORTEST_PAUSE_S", 0.0)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    options = {"log_dir": tmp_path / "runs", "log_every_n_steps": 1, "autolog": False}
    server = live._server(live.Site(tmp_path / "runs"), 0, "key")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/?key=key"
    with server, session(strategy=None, **options) as s:

        def log(name: str, value: float) -> None:
            s.log(name, value)
            weight.sum().backward()
            optimizer.step()  # which is a log point

        for width, scheme in ((1280, "light"), (390, "dark")):
            for number in range(20):
                log("loss", 1.0 + number % 7)
            with browser(width, scheme) as chromium:
                chromium.get(address)
                assert "running" in chromium.find_element(By.CSS_SELECTOR, "#runs").text
                assert chromium.execute_script("return innerWidth >= document.body.scrollWidth")
                chromium.find_element(By.CSS_SELECTOR, "#runs tbody th a").click()
                chart = chromium.find_element(By.CSS_SELECTOR, "[data-name=loss]")
                chart.find_elements(By.CSS_SELECTOR, ".tools button")[1].click()  # log
                curve = chart.find_element(By.CSS_SELECTOR, "path[data-y]").get_attribute("d")
                for name, value in ((f"at {width}", 1.0), ("loss", 99.0), ("loss", math.nan)):
                    log(name, value)

                def is_new(
                    _: object, width: int = width, chart: Any = chart, curve: Any = curve
                ) -> bool:
                    path = chart.find_element(By.CSS_SELECTOR, "path[data-y]")
                    there = chromium.find_elements(By.CSS_SELECTOR, f"[data-name='at {width}']")
                    return bool(there) and path.get_attribute("d") != curve

                WebDriverWait(
                    chromium, 120, ignored_exceptions=[StaleElementReferenceException]
                ).until(is_new)
                assert chart.find_element(By.CSS_SELECTOR, ".logs").is_displayed()
                assert "not finite" in chart.text
                assert chromium.execute_script("return innerWidth >= document.body.scrollWidth")
                ground = chromium.execute_script(
                    "return getComputedStyle(document.body).backgroundColor"
                )
                assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
                assert chromium.find_element(By.ID, "live").text == "live"
                assert chromium.get_log("browser") == []
        server.shutdown()
