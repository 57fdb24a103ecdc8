"""The page in headless Chromium: type, add a term, see it highlighted; wrong input shows
the server's sentence."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sizes
from serving import listening

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
SOURCE = "Der Patient hat einen Port."
SHOTS = os.environ.get("FAIRSEQ_EXT_SCREENSHOTS")  # a folder for screenshots, to look at
YELLOW = "rgb(255, 229, 138)"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        made = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser, client):
    """The page, whose requests to anywhere else and whose errors are failures."""
    context = browser.new_context(
        bypass_csp=True, viewport={"width": 1100, "height": 760}, color_scheme="light"
    )
    made = context.new_page()
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on(
        "request",
        lambda request: (
            wrong.append(request.url)
            if not request.url.startswith((str(client.base_url), "data:"))
            else None
        ),
    )
    made.set_default_timeout(60_000)
    made.goto(str(client.base_url))
    made.wait_for_function("document.getElementById('model').textContent.startsWith('beam')")
    yield made
    context.close()
    assert not wrong


def shot(page, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def translated(page) -> str:
    """The translation, once it is there."""
    page.wait_for_function("document.getElementById('facts').textContent.includes('ms')")
    return page.inner_text("#text")


def add(page, kind: str, term: str, target: str) -> None:
    page.select_option("#kind", kind)
    if term:
        page.fill("#term", term)
    page.fill("#target", target)
    page.press("#target", "Enter")


def test_type_add_a_term_see_it_highlighted(page, client):
    assert page.evaluate("document.activeElement.id") == "source", "the source has the focus"
    page.keyboard.type(SOURCE)
    page.keyboard.press("Control+Enter")
    plain = translated(page)
    assert plain == client.post("/v1/translate", json={"source": SOURCE, "nbest": 3}).json()["text"]
    assert page.locator("#rows tr").count() == 3
    shot(page, "1-translated")
    add(page, "term", "Patient", "employee|nurse")
    text = translated(page)
    marked = page.locator("#text mark")
    assert (
        marked.count() == 1
        and marked.first.inner_text() in ("employee", "nurse")
        and marked.first.inner_text() in text
    )
    assert marked.first.evaluate("e => getComputedStyle(e).backgroundColor") == YELLOW
    assert page.locator("#shade mark").all_text_contents() == ["Patient"]
    assert page.locator(".chip.met").inner_text().startswith("Patient → employee|nurse")
    shot(page, "2-term")
    add(page, "avoid", "", marked.first.inner_text())
    assert page.locator("#text mark").count() <= 1
    other = translated(page)
    assert ("nurse" if "employee" in text else "employee") in other
    shot(page, "3-avoided")
    page.get_by_label("Remove employee|nurse").click()
    page.locator(".chip button").first.click()
    translated(page)
    assert page.locator(".chip").count() == 0


def test_wrong_input_shows_the_sentence_of_the_server(page, client):
    page.fill("#source", SOURCE)
    add(page, "term", "", "</s>")
    said = client.post("/v1/translate", json={"source": SOURCE, "any_of": [["</s>"]]}).json()[
        "error"
    ]
    page.wait_for_function("document.getElementById('error').textContent !== ''")
    assert page.inner_text("#error") == said
    assert page.get_by_role("alert").all_inner_texts() == [said, ""]
    seen = page.evaluate(
        "document.getElementById('error').getBoundingClientRect().bottom <= innerHeight"
    )
    assert seen, "it stands on the screen"
    shot(page, "4-error")


def test_a_glossary_file_is_dropped_on_the_page(page):
    page.fill("#source", SOURCE)
    page.set_input_files(
        "#file",
        {"name": "terms.tsv", "mimeType": "text/plain", "buffer": b"Port\thouse\nChef\tboss\n"},
    )
    page.wait_for_function("document.querySelectorAll('.chip').length === 2")
    translated(page)
    assert page.locator("#text mark").all_text_contents() == ["house"]
    page.set_input_files(
        "#file",
        {"name": "bad.tsv", "mimeType": "text/plain", "buffer": b"Patient\tpatient\nnothing\n"},
    )
    page.wait_for_function("document.getElementById('unread').textContent !== ''")
    translated(page)
    assert page.inner_text("#unread").startswith("line 2 of bad.tsv has 1 column and needs 2"), (
        "it stays beside the translation"
    )
    assert (
        page.inner_text("#unread").endswith("; 1 term taken") and page.locator(".chip").count() == 3
    )
    page.set_input_files(
        "#file",
        {"name": "t.csv", "mimeType": "text/csv", "buffer": b"source,target\nTisch,table\n"},
    )
    page.wait_for_function("document.querySelectorAll('.chip').length === 4")
    assert not page.inner_text("#unread")
    dropped = """() => {
        const data = new DataTransfer();
        data.items.add(new File(["hat\\thas"], "more.tsv"));
        const how = {dataTransfer: data, bubbles: true, cancelable: true};
        dispatchEvent(new DragEvent("drop", how)); }"""
    page.evaluate(dropped)
    page.wait_for_function("document.querySelectorAll('.chip').length === 5")


def test_terms_are_placed_as_a_glossary_s_and_shown_so(page, client):
    page.fill("#source", SOURCE)
    add(page, "term", "Patient", "moonlight")
    text = translated(page)
    answer = client.post(
        "/v1/translate", json={"source": SOURCE, "glossary": {"Patient": "moonlight"}}
    ).json()
    (constraint,) = answer["constraints"]
    assert (
        text == answer["text"]
        and constraint["place"] == "in place"
        and page.locator(".chip").get_attribute("title") == "in place"
    )
    mark, style = (
        page.locator("#text mark"),
        "e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).backgroundColor]",
    )
    assert mark.get_attribute("class") == "in place" and mark.evaluate(style) == ["none", YELLOW]
    shot(page, "in-place")
    add(page, "avoid", "", "moonlight has")  # so it cannot stand there
    assert (
        "moonlight" in translated(page).lower()
        and page.locator(".chip.term").get_attribute("title") == "elsewhere"
    )
    assert mark.get_attribute("class") == "elsewhere" and mark.evaluate(style) == [
        "dashed",
        "rgba(0, 0, 0, 0)",
    ]
    add(page, "term", "Port", "漢")
    translated(page)
    of_border = (
        "chips => chips.map(e => [e.className, getComputedStyle(e).borderStyle, "
        "getComputedStyle(e).borderColor])"
    )
    found = page.locator(".chip.term").evaluate_all(of_border)
    assert found[0][:2] == ["chip term elsewhere", "dashed"] and found[1] == [
        "chip term unmet",
        "solid",
        "rgb(179, 38, 30)",
    ]
    assert "“漢” is not met" in page.inner_text("#error") and mark.count() == 1
    shot(page, "elsewhere-and-unmet")


def test_the_documentation_needs_no_network(page, client):
    """`page` fails at a request to anywhere else."""
    page.goto(f"{client.base_url}/docs")
    page.wait_for_selector("#operations-default-translate_v1_translate_post")
    shot(page, "7-docs")
    page.click("#operations-default-translate_v1_translate_post .opblock-summary-control")
    page.click("#operations-default-translate_v1_translate_post button.execute")
    page.wait_for_selector(".live-responses-table .response-col_status")
    assert page.inner_text(".live-responses-table tbody .response-col_status").split()[0] == "200"
    assert '"certificate": null' in page.inner_text(".live-responses-table .highlight-code")
    shot(page, "8-tried")


def test_it_is_usable_at_phone_width_and_in_the_dark(browser, client):
    context = browser.new_context(
        bypass_csp=True, viewport={"width": 360, "height": 740}, color_scheme="dark"
    )
    page = context.new_page()
    page.goto(str(client.base_url))
    page.wait_for_function("document.getElementById('model').textContent.startsWith('beam')")
    page.fill("#source", SOURCE)
    add(page, "term", "Patient", "patient")
    translated(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, (
        "nothing is wider than the screen"
    )
    colours = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
    assert light[0] < 150 < 600 < light[1]
    shot(page, "5-phone-dark")
    context.close()


def test_everything_can_be_reached_by_keyboard(page):
    page.fill("#source", SOURCE)
    page.focus("#source")
    reached = []
    for _ in range(14):  # Chromium stops at areas that scroll, too
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached[:5] == ["kind", "term", "target", "", "choose"] and {
        "go",
        "nbest",
        "key",
    } <= set(reached)


def test_markup_in_texts_stays_text(page):
    page.fill("#source", "<img src=x onerror=alert(1)> Patient")
    add(page, "term", "<b>x</b>", "patient")
    translated(page)
    assert page.locator("#text img, #shade img, .chip b").count() == 0


def test_with_keys_it_asks_for_one(browser, engine, settings, tmp_path):
    import hashlib
    from dataclasses import replace

    file = tmp_path / "keys"
    file.write_text(hashlib.sha256(b"right").hexdigest() + "\n", encoding="utf-8")
    with listening(engine, replace(settings, api_keys=str(file))) as guarded:
        page = browser.new_page(bypass_csp=True)
        page.goto(str(guarded.base_url))
        page.wait_for_function(
            "document.getElementById('error').textContent.includes('asks for a key')"
        )
        page.on("dialog", lambda dialog: dialog.accept("right"))
        page.click("#key")
        page.wait_for_function("document.getElementById('model').textContent.startsWith('beam')")
        page.fill("#source", SOURCE)
        assert translated(page)
        page.close()


@pytest.mark.skipif(
    not os.environ.get(sizes.ALL), reason="with --all: it starts a server of its own"
)
def test_the_script_takes_a_picture_in_light_and_one_in_dark(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "screenshots.py"
    done = subprocess.run(
        [sys.executable, script, "--out", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    light, dark = ((tmp_path / f"serve-{scheme}.png").read_bytes() for scheme in ("light", "dark"))
    assert light != dark and all(
        picture.startswith(b"\x89PNG") and 20_000 < len(picture) < 150_000
        for picture in (light, dark)
    )
