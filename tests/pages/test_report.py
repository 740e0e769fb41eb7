"""The report in a real browser: zoom, axes, runs to hide, and pictures to leaf through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchbus import session

pytest.importorskip("selenium")
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from site_browser import BROWSER, DRIVER, browser, served

from torchbus_report import page
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
