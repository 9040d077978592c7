"""The HTML page in a headless Chromium: what it says, searching, sorting, opening and closing, light and dark, and 20,000 nodes.

Screenshots are kept where a person can look at them, in `build/artefacts/report-*.png`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.graph_text import parse
from tests.reports.browser import Browser, chromium
from tests.reports.keras_steps import details, trained
from tests.reports.test_describe import PRODUCT_AND_SUM
from tfmp import engine
from tfmp.reports.account import Report, report_on
from tfmp.reports.page import page
from tfmp.reports.records import Cast, Details, Layer, Node

LOAD_SECONDS = 3.0


def several() -> Report:
    """Returns a report on two programs and one whose function is gone, with a warning that looks like markup."""
    (small,) = report_on(engine.convert_graph_def(parse(PRODUCT_AND_SUM), device="CPU"))
    (step,) = trained("keras")[1]
    return Report([small, step, dataclasses.replace(small, function="gone", source=lambda: None)], ["<b>look</b> out & about"])


def copies(found: Details, number: int) -> Details:
    """Returns a program of `number` copies of `found`, each in a scope of its own, the first node of each reading the last of the one before."""
    size = len(found.nodes)

    def node(one: Node, copy: int) -> Node:
        shift = copy * size
        return dataclasses.replace(
            one,
            function=0,
            name=f"copy_{copy}/{one.name}",
            layer=f"copy_{copy}/{one.layer}",
            root=one.root + shift if one.root >= 0 else -1,
            inputs=tuple((source + shift, port) for source, port in one.inputs) or (((shift - 1, 0),) if copy else ()),
            calls=(),
        )

    def cast(one: Cast, copy: int) -> Cast:
        return dataclasses.replace(one, source=one.source + copy * size, readers=tuple(reader + copy * size for reader in one.readers))

    def layer(one: Layer, copy: int) -> Layer:
        return dataclasses.replace(one, layer=f"copy_{copy}/{one.layer}")

    times: Any = range(number)
    return dataclasses.replace(
        found,
        functions=found.functions[:1],
        nodes=tuple(node(one, copy) for copy in times for one in found.nodes),
        casts=tuple(cast(one, copy) for copy in times for one in found.casts),
        layers=tuple(layer(one, copy) for copy in times for one in found.layers),
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("report-page")


@pytest.fixture
def opened(browser: Browser, pictures: pathlib.Path) -> Iterator[Browser]:
    """The page of `several`, opened; afterwards nothing must have gone wrong in it, nor anything been fetched."""
    path = pictures / "report.html"
    if not path.exists():
        several().save(path)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.open(path)
    yield browser
    assert browser.problems == []
    assert browser.requests == [path.as_uri()]


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.run(f"[...document.querySelectorAll({selector!r})].map((element) => element.textContent)")
    return found


LAYER_NAMES = "#table tr.layer td:first-child .mono"


def test_the_page_needs_nothing_else() -> None:
    text = page(several())
    assert set(re.findall(r"https?://[^\s\"'<>]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, which nothing fetches
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=|@import|url\(", text)
    assert "default-src 'none'" in text


def test_names_cannot_break_out_of_the_data() -> None:
    (record,) = report_on(engine.convert_graph_def(parse(PRODUCT_AND_SUM), device="CPU"))
    text = page(Report([dataclasses.replace(record, function="</script><script>alert(1)</script>")]))
    assert text.count("</script>") == 2 and "alert(1)" in text


def test_summary_advice_and_warnings(opened: Browser, artefacts: pathlib.Path) -> None:
    record = trained("keras")[1][0]
    found = details("keras")
    assert texts(opened, "#summary h1") == [record.function]  # of several programs, the one with most work
    assert texts(opened, "#summary .value")[:3] == [f"{record.converted} of {record.total:,}", "100.0%", f"{record.casts:,}"]
    assert texts(opened, "#warnings li") == ["<b>look</b> out & about"]
    assert [text for text in texts(opened, "#advice li") if found.advice[0].text in text] != []
    shown = opened.run("[...document.querySelectorAll('#advice li')].filter((item) => item.offsetHeight).length")
    assert shown == min(6, len(found.advice))
    opened.picture(artefacts / "report-light.png", whole=True)


def test_searching_layers(opened: Browser) -> None:
    everything = texts(opened, LAYER_NAMES)
    assert len(everything) == len(details("keras").layers) and "(no layer)" in everything
    opened.write("#search", "memory_1 lstm")
    assert texts(opened, LAYER_NAMES) == ["net_1/memory_1/lstm_cell_1"]
    opened.write("#search", "computes it in its stead")  # in a reason
    assert "net_1/normal_1" in texts(opened, LAYER_NAMES) and len(texts(opened, LAYER_NAMES)) < len(everything)
    opened.write("#search", "no such layer")
    assert texts(opened, LAYER_NAMES) == [] and texts(opened, "#found") == [f"0 of {len(everything)} layers"]
    opened.write("#search", "")
    opened.click("#only-kept")
    assert 0 < len(texts(opened, LAYER_NAMES)) < len(everything)


def test_sorting_layers(opened: Browser) -> None:
    layers = {layer.layer or "(no layer)": layer for layer in details("keras").layers}
    by_flops = [layers[name].flops for name in texts(opened, LAYER_NAMES)]
    assert by_flops == sorted(by_flops, reverse=True)
    opened.click("#table th:nth-child(1) button")
    names = texts(opened, LAYER_NAMES)
    assert sorted(names, key=str.lower) == sorted(names, key=names.index) or names[0] == "(no layer)"
    assert opened.run("document.querySelector('#table th').ariaSort") == "ascending"
    opened.click("#table th:nth-child(1) button")
    assert texts(opened, LAYER_NAMES) == names[::-1]
    opened.click("#table th:nth-child(6) button")
    written = [layers[name].bytes_before for name in texts(opened, LAYER_NAMES)]
    assert written == sorted(written, reverse=True)


def test_a_row_opens_and_closes(opened: Browser) -> None:
    layer = details("keras").layers[0]
    opened.click("#table tr.layer")
    assert texts(opened, "#table tr.inside li") == [f"{why.nodes}{why.reason}" for why in layer.why]
    opened.click("#table tr.layer")
    assert texts(opened, "#table tr.inside") == []
    opened.click("#table tr.layer")
    opened.click("#table tr.inside button")
    assert layer.layer in " ".join(texts(opened, "#panel dd"))


def test_boxes_open_and_close(opened: Browser, artefacts: pathlib.Path) -> None:
    before = opened.run("document.querySelectorAll('#picture .box').length")
    closed = "document.querySelector('#picture .box:not(.opened):not(.node)')"
    name = opened.run(f"{closed}.querySelector('text').textContent")
    box = opened.run(f"{closed}.dataset.box")
    opened.run(f"{closed}.scrollIntoView({{block: 'center'}})")
    opened.click_at(closed)
    assert opened.run(f"document.querySelector('[data-box=\"{box}\"]').classList.contains('opened')")
    assert opened.run("document.querySelectorAll('#picture .box').length") > before
    assert name.startswith("+ ") and texts(opened, "#panel h3") == [name.removeprefix("+ ").removesuffix(" ()")]
    opened.picture(artefacts / "report-graph.png")
    opened.click_at(f"document.querySelector('[data-box=\"{box}\"]')")
    assert not opened.run(f"document.querySelector('[data-box=\"{box}\"]').classList.contains('opened')")
    opened.click("#close-all")
    few = opened.run("document.querySelectorAll('#picture .box').length")
    opened.click("#deeper")
    assert opened.run("document.querySelectorAll('#picture .box').length") > few


def test_finding_a_node_opens_its_boxes_and_says_why(opened: Browser) -> None:
    opened.write("#find", "normal_1/moments/mean Mean")
    opened.click("#find-next")
    (mean,) = [node for node in details("keras").nodes if node.name == "net_1/normal_1/moments/mean"]
    assert texts(opened, "#panel h3") == ["Mean float32"]
    assert texts(opened, "#panel p")[0] == mean.reason == "a kernel that takes 16 bit computes it in its stead (through net_1/normal_1/batchnorm/add_1)"
    assert opened.run("document.querySelector('#picture .selected').textContent").startswith("Mean")
    inside = """
    (() => {
      const [a, b] = ['#picture .selected', '#picture'].map((selector) => document.querySelector(selector).getBoundingClientRect());
      return a.x >= b.x && a.right <= b.right && a.y >= b.y && a.bottom <= b.bottom;
    })()"""
    assert opened.run(inside)
    read = texts(opened, "#panel a")[0]
    opened.run("document.querySelector('#panel a').click()")
    assert texts(opened, "#panel h3")[0].split()[0] == read.split()[0]


def test_colours_of_nodes_and_edges_are_those_of_the_record(opened: Browser) -> None:
    opened.run("document.querySelector('#program').value = '0'; document.querySelector('#program').dispatchEvent(new Event('change'))")
    for _ in range(4):
        opened.click("#deeper")
    every = "[...document.querySelectorAll('#picture [data-node]')]"
    nodes = opened.run(f"Object.fromEntries({every}.map((node) => [node.querySelector('.small').textContent, node.getAttribute('class')]))")
    assert nodes == {
        "x": "node box float32 boundary",
        "product": "node box sixteen boundary",
        "relu": "node box sixteen boundary",
        "mean": "node box float32 boundary",
        "neg": "node box float32",
        "root": "node box float32",
        "out": "node box float32",
    }
    edges = opened.run("[...document.querySelectorAll('#picture path.edge')].map((edge) => edge.getAttribute('class').trim())")
    assert sorted(edges) == sorted(["edge cast"] * 2 + ["edge sixteen"] + ["edge"] * 3)


def test_light_and_dark(opened: Browser, artefacts: pathlib.Path) -> None:
    def ground() -> int:
        red: str = opened.run("getComputedStyle(document.body).backgroundColor")
        return int(re.findall(r"\d+", red)[0])

    assert ground() > 200 and texts(opened, "#theme") == ["Dark"]
    opened.click("#theme")
    assert ground() < 60 and texts(opened, "#theme") == ["Light"]
    opened.run("scrollTo(0, 0)")
    opened.picture(artefacts / "report-dark.png", whole=True)
    opened.click("#theme")
    assert ground() > 200


def test_the_page_starts_as_the_system_is(browser: Browser, opened: Browser, pictures: pathlib.Path) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.open(pictures / "report.html")
    assert browser.run("document.documentElement.dataset.theme") == "dark"


def test_text_can_be_read_in_both_themes(opened: Browser) -> None:
    """The contrast that WCAG 2.1 asks of text (4.5 : 1, success criterion 1.4.3), of every pair of text and ground that the page uses."""
    contrast = """
    (() => {
      const style = getComputedStyle(document.documentElement);
      const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
      const light = (name) => {
        const hex = style.getPropertyValue(`--${name}`).trim();
        const [r, g, b] = [1, 3, 5].map((at) => linear(parseInt(hex.slice(at, at + 2), 16) / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
      const onCards = ["ink", "muted", "sixteen", "float32", "cast"].map((name) => [name, "card"]);
      const others = [["ink", "ground"], ["muted", "ground"], ["muted", "hover"], ["ink", "sixteen-soft"], ["ink", "float32-soft"], ["muted", "sixteen-soft"],
        ["muted", "float32-soft"], ["sixteen", "sixteen-soft"], ["float32", "float32-soft"], ["muted", "shade"]];
      return [...onCards, ...others].map(([a, b]) => [a, b, ratio(a, b)]).filter(([, , found]) => found < 4.5);
    })()"""
    assert opened.run(contrast) == []
    opened.click("#theme")
    assert opened.run(contrast) == []


def test_programs_can_be_chosen_and_gone_ones_say_so(opened: Browser) -> None:
    assert len(texts(opened, "#program option")) == 3
    opened.run("document.querySelector('#program').value = '2'; document.querySelector('#program').dispatchEvent(new Event('change'))")
    assert texts(opened, "#summary h1") == ["gone"]
    assert "its function does not exist any more: no layers" in texts(opened, "#summary .note")
    assert opened.run("document.querySelector('#graph').offsetHeight") == 0


def test_a_report_of_nothing(browser: Browser, tmp_path: pathlib.Path) -> None:
    browser.open(Report([]).save(tmp_path / "nothing.html"))
    assert texts(browser, "#summary h1") == ["Nothing has been converted in this process."]
    assert browser.problems == []


def test_a_narrow_window_does_not_overflow(browser: Browser, opened: Browser) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=480, height=800, deviceScaleFactor=1, mobile=False)
    try:
        assert browser.run("document.documentElement.scrollWidth") <= 480
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_twenty_thousand_nodes_load_quickly_and_scroll(browser: Browser, pictures: pathlib.Path, artefacts: pathlib.Path) -> None:
    big = copies(details("keras"), -(-20_000 // len(details("keras").nodes)))
    assert len(big.nodes) >= 20_000
    (record,) = trained("keras")[1]
    path = pictures / "big.html"
    Report([dataclasses.replace(record, source=lambda: big)]).save(path)
    seconds = min(browser.open(path) for _ in range(3))
    print(f"{len(big.nodes)} nodes, {path.stat().st_size / 1e6:.1f} MB, loaded and drawn in {seconds:.2f} s")
    assert seconds < LOAD_SECONDS
    assert len(texts(browser, LAYER_NAMES)) == 100 < len(big.layers)
    for selector in ("#table", "#picture"):
        holder = "document.querySelector('.scroll')" if selector == "#table" else "document.querySelector('#picture')"
        if selector == "#picture":
            browser.click("#deeper")
        assert browser.run(f"{holder}.scrollHeight > {holder}.clientHeight")
        browser.roll(".scroll" if selector == "#table" else "#picture", 9000)
        browser.wait(f"{holder}.scrollTop > 1000")
    browser.wait("document.querySelectorAll('#table tr.layer').length > 100")  # more rows as they are scrolled to
    browser.write("#find", "copy_7/net_1 classes_1 MatMul")
    browser.click("#find-next")
    assert texts(browser, "#panel h3") == ["MatMul 16 bit"]
    browser.picture(artefacts / "report-20000-nodes.png")
    assert browser.run("document.querySelectorAll('#picture .box').length") < 1500
    assert browser.problems == []
