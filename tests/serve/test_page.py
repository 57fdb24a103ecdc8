"""The page in headless Chromium: type, add a term, see it highlighted; wrong input shows
the server's sentence."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sizes

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
SOURCE = "Der Patient hat einen Port."
READY = "document.getElementById('model').textContent.startsWith('beam')"
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
    wrong = []
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
    goto(made, client)
    yield made
    context.close()
    assert not wrong


def goto(page, client):
    page.goto(str(client.base_url))
    page.wait_for_function(READY)


def give(page, name, content, at="#file"):
    """Put a file there."""
    file = {"name": name, "mimeType": "text/plain", "buffer": content}
    page.set_input_files(at, file)


def says(page, name, text):
    """Wait until an element has this text."""
    wanted = json.dumps(text)
    page.wait_for_function(f"document.getElementById('{name}').textContent.includes({wanted})")


def count(page, selector):
    return page.locator(selector).count()


def has_bases(page, count):
    """Wait until there is this number of term bases."""
    page.wait_for_function(f"document.querySelectorAll('#bases li').length === {count}")


def translated(page):
    """The translation, once it is there."""
    says(page, "facts", " s")
    return page.inner_text("#text")


def add(page, kind, term, target):
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
    assert count(page, "#rows tr") == 3
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
    assert page.inner_text(".chip.met").startswith("Patient → employee|nurse")
    add(page, "avoid", "", marked.first.inner_text())
    assert count(page, "#text mark") <= 1
    other = translated(page)
    assert ("nurse" if "employee" in text else "employee") in other
    page.get_by_label("Remove employee|nurse").click()
    page.locator(".chip button").first.click()
    translated(page)
    assert count(page, ".chip") == 0


def test_wrong_input_shows_the_sentence_of_the_server(page, client):
    page.fill("#source", SOURCE)
    add(page, "term", "", "</s>")
    said = client.post("/v1/translate", json={"source": SOURCE, "any_of": [["</s>"]]}).json()[
        "error"
    ]
    says(page, "error", " ")
    assert page.inner_text("#error") == said
    assert page.get_by_role("alert").all_inner_texts() == [said, ""]
    seen = page.evaluate(
        "document.getElementById('error').getBoundingClientRect().bottom <= innerHeight"
    )
    assert seen, "it stands on the screen"


def test_a_glossary_file_is_dropped_on_the_page(page):
    page.fill("#source", SOURCE)
    give(page, "terms.tsv", b"Port\thouse\nChef\tboss\n")
    has_bases(page, 1)
    translated(page)
    assert page.locator("#text mark").all_text_contents() == ["house"]
    assert page.inner_text("#bases li").startswith("terms.tsv · 2 terms")
    assert page.locator("#chips li").all_inner_texts() == ["Port → house"], "those of the text"
    give(page, "bad.tsv", b"Patient\tpatient\nnothing\n")
    says(page, "unread", " ")
    translated(page)
    assert page.inner_text("#unread").startswith("line 2 of bad.tsv has 1 column and needs 2"), (
        "it stays beside the translation"
    )
    assert page.inner_text("#unread").endswith("; 1 term taken") and count(page, "#bases li") == 2
    give(page, "t.csv", b"source,target\nTisch,table\n")
    has_bases(page, 3)
    assert not page.inner_text("#unread")
    dropped = """() => {
        const data = new DataTransfer();
        data.items.add(new File(["hat\\thas"], "more.tsv"));
        const how = {dataTransfer: data, bubbles: true, cancelable: true};
        dispatchEvent(new DragEvent("drop", how)); }"""
    page.evaluate(dropped)
    has_bases(page, 4)


def test_a_term_of_a_term_base_that_the_model_cannot_write_is_marked(page):
    page.fill("#source", SOURCE)
    terms = "Patient\tmoonlight\nPort\t漢\nChef\t字\n".encode()
    give(page, "a.tsv", terms)
    page.wait_for_selector("#chips .unmet")
    assert page.inner_text("#chips .unmet") == "Port → 漢\nnot used"
    assert page.inner_text("#chips .met") == "Patient → moonlight"
    assert "“漢” is not met" in page.inner_text("#error")


def test_two_term_bases_that_disagree(page):
    page.fill("#source", SOURCE)
    for name, terms in (("a.tsv", b"Port\thouse\nChef\tboss\n"), ("b.tsv", b"Port\tharbour\n")):
        give(page, name, terms)
        says(page, "bases", name)
    said = "“Port” is “house” in a.tsv and “harbour” in b.tsv. Either translation is used."
    assert page.inner_text("#disagree") == said
    translated(page)
    assert page.locator("#chips li").first.inner_text().startswith("Port → house|harbour")
    page.get_by_label("Remove b.tsv").click()
    translated(page)
    assert page.inner_text("#disagree") == ""
    assert page.locator("#text mark").all_text_contents() == ["house"]
    add(page, "term", "Chef", "boss")
    assert page.inner_text("#disagree") == "", "the same translation"
    add(page, "term", "Chef", "chief")
    assert "“boss|chief” in your terms" in page.inner_text("#disagree")


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
        and page.get_attribute(".chip", "title") == "in place"
    )
    mark, style = (
        page.locator("#text mark"),
        "e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).backgroundColor]",
    )
    assert mark.get_attribute("class") == "in place" and mark.evaluate(style) == ["none", YELLOW]
    for phrase in ("moonlight has", "moonlight's"):  # so it cannot stand there in any draft
        add(page, "avoid", "", phrase)
    assert (
        "moonlight" in translated(page).lower()
        and page.get_attribute(".chip.term", "title") == "elsewhere"
    )
    assert page.inner_text(".chip.term small") == "check its place"
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
    assert page.inner_text(".chip.unmet small") == "not used"
    assert "“漢” is not met" in page.inner_text("#error") and mark.count() == 1


@pytest.mark.parametrize("why", [True, "two places of the source are alike"])
def test_a_doubtful_term_is_marked(page, why):
    """Of terms in their places as well."""

    def answer(route):
        found = route.fetch()
        name, _, data = found.text().rpartition("\ndata: ")
        content = json.loads(data)
        for each in content["constraints"]:
            each["doubtful"] = why
        route.fulfill(response=found, body=f"{name}\ndata: {json.dumps(content)}\n\n")

    page.route("**/v1/translate/stream?*", answer)
    page.fill("#source", SOURCE)
    add(page, "term", "Patient", "moonlight")
    translated(page)
    assert page.get_attribute("#text mark", "class") == "elsewhere"
    assert page.inner_text(".chip.elsewhere small") == "check it"
    said = page.get_attribute(".chip", "title")
    assert said == ("in place" if why is True else why)
    page.unroute_all()


def test_the_documentation_needs_no_network(page, client):
    """`page` fails at a request to anywhere else."""
    page.goto(f"{client.base_url}/docs")
    page.wait_for_selector("#operations-default-translate_v1_translate_post")
    page.click("#operations-default-translate_v1_translate_post .opblock-summary-control")
    page.click("#operations-default-translate_v1_translate_post button.execute")
    page.wait_for_selector(".live-responses-table .response-col_status")
    assert page.inner_text(".live-responses-table tbody .response-col_status").split()[0] == "200"
    assert '"certificate": null' in page.inner_text(".live-responses-table .highlight-code")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_a_round_trip_at_each_width_in_light_and_dark(browser, two_ways, width, scheme):
    """Paste, term base, translate, copy, swap, reload."""
    context = browser.new_context(
        bypass_csp=True, viewport={"width": width, "height": 740}, color_scheme=scheme
    )
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    goto(page, two_ways)
    assert page.get_by_role("button", name="Copy").is_disabled()
    page.evaluate("text => navigator.clipboard.writeText(text)", SOURCE)
    page.focus("#source")
    page.keyboard.press("Control+V")
    assert page.input_value("#source") == SOURCE
    give(page, "a.tsv", b"Patient\tmoonlight\n")
    page.wait_for_selector("#chips .met")
    text = translated(page)
    assert "moonlight" in text
    page.click("summary")  # what is behind it, too
    assert page.evaluate("document.documentElement.scrollWidth") <= width, (
        "nothing is wider than the screen"
    )
    colours = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    dark, light = sorted(sum(map(int, re.findall(r"\d+", each)[:3])) for each in colours)
    assert dark < 150 < 600 < light
    first = sum(map(int, re.findall(r"\d+", colours[0])[:3]))
    assert (first == light) == (scheme == "light")
    page.click("#copy")
    says(page, "copy", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == text
    page.click("#swap")
    back = translated(page)
    assert page.input_value("#source") == text and page.inner_text("#to") == "German"
    page.reload()
    page.wait_for_function(READY)
    assert translated(page) == back and page.input_value("#source") == text
    page.click("#swap")
    translated(page)
    assert page.inner_text("#to") == "English" and count(page, "#bases li") == 1
    context.close()


def test_everything_can_be_reached_by_keyboard_with_one_outline(page):
    page.fill("#source", SOURCE)
    translated(page)
    page.focus("#source")
    outlined = """[...document.querySelectorAll("*")].filter(
        e => getComputedStyle(e).outlineStyle === "solid" && !e.matches("mark")).length"""
    assert page.evaluate(outlined) == 1
    reached = []
    for _ in range(16):  # Chromium stops at areas that scroll, too
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.type"))
        assert page.evaluate(outlined) <= 1, reached
    assert reached[:6] == ["copy", "kind", "term", "target", "submit", "choose"]
    assert {"go", "nbest", "pick", "key"} <= set(reached)


def test_a_screen_reader_has_a_name_for_everything(page):
    assert count(page, "h1") == 1 and page.inner_text("h1") == "Translate"
    nameless = """[...document.querySelectorAll("button, input, select, textarea, progress")]
        .filter(e => !(e.id === "done" || e.textContent.trim() || e.ariaLabel || e.labels?.length
            || e.getAttribute("aria-labelledby"))).map(e => e.outerHTML)"""
    assert page.evaluate(nameless) == []
    for name in ("Source language", "Target language", "Source term", "Target phrase"):
        assert page.get_by_label(name, exact=True).count() == 1, name
    assert page.get_by_role("button", name="Swap languages").is_disabled(), "there is one pair"


def test_the_text_and_the_terms_survive_a_reload(page):
    page.fill("#source", SOURCE)
    give(page, "a.tsv", b"Port\thouse\n")
    has_bases(page, 1)
    add(page, "term", "Patient", "moonlight")
    text = translated(page)
    page.reload()
    page.wait_for_function(READY)
    assert translated(page) == text and page.input_value("#source") == SOURCE
    assert count(page, "#bases li") == 1 and count(page, "#chips li.term") == 1
    assert "The server keeps neither" in page.inner_text("body")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Remove a.tsv").click()
    page.get_by_label("Remove moonlight").click()
    assert page.inner_text("#text") == "" and page.input_value("#source") == ""
    page.reload()
    page.wait_for_function(READY)
    assert page.input_value("#source") == "" and count(page, "#bases li, #chips li") == 0


def test_the_numbers_are_those_of_translators_and_the_others_are_details(page):
    page.fill("#source", SOURCE)
    translated(page)
    assert re.fullmatch(r"(under 0\.1|\d+\.\d) s · 3 suggestions", page.inner_text("#facts"))
    assert not page.is_visible("#numbers") and page.is_visible("#others")
    page.click("summary")
    assert "score -" in page.inner_text("#numbers") and "select:" in page.inner_text("#model")


def test_a_document_is_translated_with_its_progress(page, client):
    document = "a.txt", f"{SOURCE}\n".encode(), "#document"
    give(page, *document)
    page.wait_for_selector("#done:visible")
    assert page.inner_text("#left") == "Translated"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download a.txt").click()
    plain = client.post("/v1/translate", json={"source": SOURCE}).json()["text"]
    assert Path(download.value.path()).read_text(encoding="utf-8") == f"{plain}\n"
    assert download.value.suggested_filename == "a.txt"
    states = iter(["queued", "translating", "done"])

    def answer(route):
        state = next(states)
        more = {"seconds_remaining": 12} if state == "translating" else {}
        route.fulfill(json={"document_id": "x", "status": state, **more})

    page.route(re.compile(r"/v2/document/\w+$"), answer)
    give(page, *document)
    says(page, "left", "about 12 s")
    assert page.is_visible("#progress")
    page.wait_for_selector("#done:visible")
    page.unroute_all()
    add(page, "term", "Patient", "moonlight")
    give(page, *document)
    said = "Translated without these terms"
    says(page, "left", said)
    give(page, "b.docx", b"no archive", "#document")
    says(page, "error", "b.docx")
    assert not page.is_visible("#progress")


def test_languages_are_detected_and_swapped(browser, two_ways):
    page = browser.new_page(bypass_csp=True)
    goto(page, two_ways)
    page.fill("#source", SOURCE)
    add(page, "term", "Patient", "moonlight")
    text = translated(page)
    page.get_by_role("button", name="Swap languages").click()
    assert page.input_value("#source") == text
    assert page.input_value("#from-code") == "en" and page.inner_text("#to") == "German"
    assert count(page, "#chips li") == 0, "terms are of one pair"
    page.select_option("#from-code", "auto")
    page.fill("#source", "Der Arzt hat den Patienten gestern in der Klinik untersucht.")
    says(page, "from", "German")
    translated(page)
    chosen = page.inner_text("#from-code option:checked")
    assert chosen == "Detect language (German)" and page.input_value("#to-code") == "en"
    assert count(page, "#chips li") == 1
    page.reload()
    says(page, "from", "German")
    assert page.input_value("#from-code") == "auto"
    page.close()


def test_markup_in_texts_stays_text(page):
    page.fill("#source", "<img src=x onerror=alert(1)> Patient")
    add(page, "term", "<b>x</b>", "patient")
    translated(page)
    assert count(page, "#text img, #shade img, .chip b") == 0


def test_with_keys_it_requests_one(browser, guarded):
    with guarded("right") as client:
        page = browser.new_page(bypass_csp=True)
        page.goto(str(client.base_url))
        says(page, "error", "asks for a key")
        page.on("dialog", lambda dialog: dialog.accept("right"))
        page.click("#key")
        page.wait_for_function(READY)
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
