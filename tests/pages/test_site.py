"""The documentation as a site: it builds strictly, and works in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from site_browser import BROWSER, DRIVER, browser, served

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("docs", "core", "plugins", "contrib", "tests", "examples", "benchmarks")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
in_a_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "make.py", "docs", "--site-dir", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with served(site) as found:
        yield found


class Links(HTMLParser):
    """What a page links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attributes if name == "href" and value]


def test_every_page_is_reached_by_links(site: Path) -> None:
    seen, ahead = set(), ["index.html"]
    while ahead:
        page = ahead.pop()
        if page in seen:
            continue
        seen.add(page)
        links = Links((site / page).read_text("utf-8")).found
        paths = [urldefrag(urljoin(f"/{page}", link))[0].lstrip("/") for link in links]
        ahead += [path for path in paths if path.endswith(".html") and "://" not in path]
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert built - seen == {"404.html"}
    assert {"how-to/accumulate.html", "packages/ddp.html", "api/session.html"} < seen


def test_each_message_has_an_anchor(site: Path) -> None:
    page = (site / "troubleshooting/warnings.html").read_text("utf-8")
    anchors = re.findall(r'<div id="([^"]+)" class="message highlight">', page)
    assert len(anchors) == len({*anchors}) > 80


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[there](nowhere.md)", "nowhere.md"),
        ("[there](semantics.md#no-such-heading)", "no-such-heading"),
        ("::: torchbus.no_such_name", "no_such_name"),
    ],
)
def test_a_broken_link_or_name_fails(site: Path, tmp_path: Path, line: str, said: str) -> None:
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in [*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE"]:
        shutil.copy(file, tmp_path)
    with (tmp_path / "docs" / "concepts.md").open("a") as page:
        page.write(f"\n{line}\n")
    python = next((ROOT / ".venv-docs").glob("*/python"))
    command = [python, tmp_path / "docs/site/build.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    shown = re.sub(r"\x1b\[[\d;]*m", "", done.stderr + done.stdout)  # each letter has its colour
    assert done.returncode and said in shown


ALL = """
const all = (root) => [...root.querySelectorAll("*")].flatMap(
  (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])])
"""
OPEN = 'document.querySelector(".md-search__button").click()'
TYPE = f"""{ALL}
const input = all(document).find((one) => one.matches("input[type=text]"))
if (!input) return false
input.value = arguments[0]
input.dispatchEvent(new InputEvent("input", {{ bubbles: true, composed: true }}))
return true
"""
FOUND = f"""{ALL}
return all(document).filter((one) => one.matches("a[href]") && one.getRootNode() !== document)
  .map((one) => one.href)
"""


@in_a_browser
@pytest.mark.parametrize("is_served", [True, False], ids=["served", "from a folder"])
def test_search_finds_an_option(site: Path, address: str, is_served: bool) -> None:
    with browser() as driver:
        start = address if is_served else site.as_uri()
        driver.get(f"{start}/index.html")
        driver.execute_script(OPEN)
        wait = WebDriverWait(driver, 60)
        wait.until(lambda one: one.execute_script(TYPE, "accumulate_grad_batches"))
        pages = wait.until(lambda one: one.execute_script(FOUND))
        assert any("options.html" in page or "accumulate.html" in page for page in pages), pages


@in_a_browser
def test_tables_fit_a_laptop(address: str) -> None:
    with browser() as driver:
        for page in ("comparison", "choosing", "performance", "options", "limits"):
            driver.get(f"{address}/{page}.html")
            cut = driver.execute_script(
                "return [...document.querySelectorAll('.md-typeset__scrollwrap')]"
                ".filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"
            )
            assert cut == [], page


@in_a_browser
def test_code_fits_a_laptop(site: Path, address: str) -> None:
    """What a terminal shows wraps; code must fit, or a reader has to scroll it."""
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    assert len(pages) > 120
    with browser() as driver:
        for page in [one for one in pages if not one.startswith("source/")]:
            driver.get(f"{address}/{page}")
            cut = driver.execute_script(
                "return [...document.querySelectorAll('article pre code')]"
                ".filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"
            )
            assert cut == [], page


@in_a_browser
def test_code_copies(address: str) -> None:
    with browser() as driver:
        rights = {"permissions": ["clipboardReadWrite"], "origin": address}
        driver.execute_cdp_cmd("Browser.grantPermissions", rights)
        driver.get(f"{address}/how-to/clip.html")
        WebDriverWait(driver, 60).until(
            lambda one: one.find_elements(By.CSS_SELECTOR, "[data-clipboard-target]")
        )
        button = driver.find_element(By.CSS_SELECTOR, "[data-clipboard-target]")
        ActionChains(driver).move_to_element(button).click().perform()
        text = driver.execute_async_script(
            "const end = arguments[0]; setTimeout(() => navigator.clipboard.readText().then(end), 500)"
        )
        assert text.startswith("import torch\n") and "gradient_clip_val=1.0" in text


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_readable_at_phone_width(address: str, scheme: str) -> None:
    pages = ("index", "getting-started", "comparison", "options", "api/session", "coming-from/ddp")
    with browser(390, scheme) as driver:
        for page in pages:
            driver.get(f"{address}/{page}.html")
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 390, page
        colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
        assert (light > 200) == (scheme == "light"), colour


@in_a_browser
def test_nothing_is_loaded_from_outside(address: str) -> None:
    with browser() as driver:
        for page in ("index", "how-to/gans", "api/plugin"):
            driver.get(f"{address}/{page}.html")
            loaded = driver.execute_script(
                "return performance.getEntriesByType('resource').map(one => one.name)"
            )
            assert loaded and all(name.startswith(address) for name in loaded), loaded
