"""The label page in a real browser: keys, undo, training, review, two tabs, a phone, a server that dies."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from tests.page.browser import BROWSER, CONTROL, SHIFT, Browser, Tab, wait
from tests.page.conftest import ODD, write_images

from aggmatch.page.listen import bind
from aggmatch.page.project import Project
from aggmatch.page.security import Access
from aggmatch.page.server import make_app

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: chromium, chromium-browser or google-chrome")


class Server:
    """The page of a project, in a thread."""

    def __init__(self, project: Project, port: int = 0, host: str = "127.0.0.1") -> None:
        self.project, self.socket = project, bind(host, [port])
        self.port = self.socket.getsockname()[1]
        access = Access(host)
        self.address = access.link(self.port)
        config = uvicorn.Config(make_app(project, access), log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        wait(lambda: self.server.started, "the start of the server")

    def stop(self) -> None:
        """End the server, as a kill does: the page does not know."""
        self.server.should_exit = True
        self.thread.join(20)
        self.socket.close()
        self.project.rounds.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Project], Server]]:
    servers: list[Server] = []

    def begin(project: Project, port: int = 0, host: str = "127.0.0.1") -> Server:
        servers.append(Server(project, port, host))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def add_class(tab: Tab, name: str) -> None:
    """Make a class by key, without labelling an image."""
    tab.press("c")
    tab.type(name)
    tab.click("button[value=second]")
    tab.until(f"[...document.querySelectorAll('.class .name')].some((each) => each.textContent === {json.dumps(name)})")
    saved(tab)


def saved(tab: Tab) -> None:
    """Wait until the page says that all is saved."""
    tab.until("document.querySelector('#saved').textContent === 'saved'")


def tags(tab: Tab) -> list[str]:
    """The labels in the grid."""
    return tab.run("[...document.querySelectorAll('.cell .tag')].map((each) => each.textContent)")


def test_labels_by_keys_survive_undo_and_a_reload(browser: Browser, serve, project: Project):
    server = serve(project)
    tab = browser.tab(server.address)
    for name in ("left", ODD):
        add_class(tab, name)
    for key in "121":
        tab.press(key)
    saved(tab)
    assert tags(tab) == ["left", ODD, "left"]
    assert list(project.notes.state.labels.values()) == ["left", ODD, "left"]
    assert tab.text("#counts") == "3 of 30 images labelled"
    tab.press("u")
    tab.until("document.querySelectorAll('.cell .tag').length === 2")
    tab.press("z", CONTROL)
    tab.until("document.querySelectorAll('.cell .tag').length === 1")
    assert len(project.notes.state.labels) == 1
    tab.press("n")
    tab.press("s")
    saved(tab)
    assert tags(tab) == ["left", "not sure", "skip"]
    tab.open(server.address)
    assert tab.text("#counts") == "1 of 30 images labelled"
    assert tab.text("[data-list=queue]") == "To label 27"
    tab.click("[data-list=labeled]")
    tab.until("document.querySelectorAll('.cell .tag').length === 1")
    assert tags(tab) == ["left"]
    tab.press("u")
    tab.until("document.querySelector('[data-list=skipped]').innerText === 'Skipped 0'")
    assert tab.errors() == []


def test_a_class_named_like_markup_stays_text(browser: Browser, serve, project: Project):
    tab = browser.tab(serve(project).address)
    add_class(tab, ODD)
    tab.press("1")
    saved(tab)
    tab.click(".class .edit")
    assert ODD in tab.text("#class-dialog h2")
    assert tab.run("document.querySelectorAll('img[src=x]').length") == 0
    assert tab.errors() == []


def test_several_images_at_once_and_classes_that_are_renamed_and_merged(browser: Browser, serve, project: Project):
    tab = browser.tab(serve(project).address)
    for name in ("rose", "tulip"):
        add_class(tab, name)
    tab.click('.cell[data-index="0"]')
    tab.click('.cell[data-index="3"]', SHIFT)
    assert tab.run("document.querySelectorAll('.cell[aria-selected=true]').length") == 4
    tab.press("1")
    tab.press("ArrowRight", SHIFT)
    tab.press("2")
    saved(tab)
    assert tags(tab) == ["rose"] * 4 + ["tulip"] * 2
    tab.click(".class .edit")
    tab.run("document.querySelector('#class-dialog input').select()")
    tab.type("tulip")
    assert "Merges rose into tulip (2 images)" in tab.text("#class-dialog .note")
    tab.click("button[value=first]")
    tab.until("document.querySelectorAll('.class').length === 1")
    saved(tab)
    tab.until("[...document.querySelectorAll('.cell .tag')].every((each) => each.textContent === 'tulip')")
    assert set(project.notes.state.labels.values()) == {"tulip"}
    tab.press("u")
    tab.until("document.querySelectorAll('.class').length === 2")
    tab.press("x")
    saved(tab)
    assert tab.errors() == []


def test_train_and_review(browser: Browser, serve, trained: Project):
    tab = browser.tab(serve(trained).address)
    assert tab.run("document.querySelectorAll('.hint').length") == 0  # a guess biases: it is shown on request
    tab.press("g")
    tab.until("document.querySelectorAll('.hint').length > 0")
    tab.click("[data-tab=train]")
    assert "on the images without a label, with 12 labels" in tab.text("#interval")
    tab.click("#train-now")
    tab.until("!document.querySelector('#busy').hidden")
    tab.until("document.querySelector('#busy').hidden && !document.querySelector('#train-now').disabled")
    assert tab.text("#failure") == ""
    assert len(trained.rounds.folders()) == 2
    tab.click("#train-now")
    tab.click("#stop")
    tab.until("document.querySelector('#busy').hidden && !document.querySelector('#train-now').disabled")
    assert trained.rounds.job is None

    tab.click("[data-tab=review]")
    tab.until("document.querySelectorAll('.hint').length > 0")
    tab.press("w")
    tab.until("document.querySelectorAll('#why .examples figure').length === 8")
    tab.press("Escape")
    tab.until("!document.querySelector('#why').open")
    tab.press("a")
    saved(tab)
    assert len(trained.notes.state.labels) == 13

    tab.click("[data-list=wrong]")
    tab.until("document.querySelectorAll('.cell .tag').length > 0")
    tab.press("a")
    saved(tab)
    assert trained.notes.state.labels["03.png"] == "top"

    tab.click("[data-list=confident]")
    tab.run("document.querySelector('#which select').value = 'top'")
    tab.run("document.querySelector('#which select').dispatchEvent(new Event('change'))")
    hints = "[...document.querySelectorAll('.hint')].map((each) => each.textContent)"
    tab.until(f"{hints}.length > 0 && {hints}.every((text) => text.startsWith('top'))")
    count = tab.run("document.querySelectorAll('.cell[aria-selected=true]').length")
    tab.click('.cell[data-index="0"]')
    tab.press("a")
    saved(tab)
    assert len(trained.notes.state.labels) == 13 + count - 1
    assert tab.errors() == []


def test_two_tabs_show_the_same_and_do_not_undo_what_the_other_did_unseen(browser: Browser, serve, project: Project):
    server = serve(project)
    one, other = (browser.tab(server.address) for _ in range(2))
    add_class(one, "rose")
    other.until("document.querySelectorAll('.class').length === 1")
    one.press("1")
    saved(one)
    other.until("document.querySelectorAll('.cell .tag').length === 1")
    other.run("Object.defineProperty(document, 'hidden', { value: true })")  # in the background: it does not ask
    time.sleep(3)
    one.press("1")
    saved(one)
    other.press("u")
    other.until("document.querySelector('#saved').textContent.includes('elsewhere')")
    assert len(project.notes.state.labels) == 2
    other.press("u")
    other.until("document.querySelectorAll('.cell .tag').length === 1")
    one.until("document.querySelectorAll('.cell .tag').length === 1")
    assert [error for error in one.errors() + other.errors() if "409" not in error] == []


def test_labels_wait_for_a_server_that_was_killed(browser: Browser, serve, project: Project):
    first = serve(project)
    tab = browser.tab(first.address)
    add_class(tab, "rose")
    first.stop()
    tab.press("1")
    tab.press("1")
    tab.until("document.querySelector('#saved').textContent.includes('Not saved yet: 2 changes')")
    serve(Project(project.root, project.out), first.port)
    saved(tab)
    assert len(project.notes.path.read_text().splitlines()) == 3
    tab.press("u")
    tab.until("document.querySelectorAll('.cell .tag').length === 1")


def test_labels_wait_until_the_new_link_of_a_server_on_the_network_is_opened(browser: Browser, serve, project: Project):
    first = serve(project, host="0.0.0.0")
    tab = browser.tab(first.address)
    add_class(tab, "rose")
    first.stop()
    second = serve(Project(project.root, project.out), first.port, "0.0.0.0")
    tab.press("1")
    tab.until("document.querySelector('#saved').textContent.includes('needs its token')")
    browser.tab(second.address)
    saved(tab)
    assert len(project.notes.path.read_text().splitlines()) == 2


def test_a_phone_labels_by_touch_and_nothing_is_wider_than_the_window(browser: Browser, serve, project: Project):
    tab = browser.tab(serve(project).address, 360, 720, phone=True)
    for name in ("left", "a class with a rather long name that has to fit", ODD):
        tab.tap('[data-do="new"]')
        tab.until("document.querySelector('#class-dialog').open")
        tab.type(name)
        tab.tap("button[value=second]")
        saved(tab)
    for view in ("label", "train", "review", "use"):
        tab.tap(f"[data-tab={view}]")
        assert tab.run("document.documentElement.scrollWidth") <= 360, view
    tab.tap("[data-tab=label]")
    tab.until("!document.querySelector('#single').hidden")
    tab.tap(".class .pick")
    saved(tab)
    assert list(project.notes.state.labels.values()) == ["left"]
    assert tab.text("#single figcaption span").startswith("2 of")
    tab.tap('[data-do="view"]')
    tab.tap('[data-do="several"]')
    for index in (2, 3):
        tab.tap(f'.cell[data-index="{index}"]')
    tab.tap(".class .pick")
    saved(tab)
    assert len(project.notes.state.labels) == 3
    assert tab.errors() == []


def test_thousands_of_images_need_few_elements(browser: Browser, serve, tmp_path: Path):
    photos = write_images(tmp_path / "many", 2)
    for number in range(2, 3000):
        shutil.copy(photos / "00.png", photos / f"{number:04d}.png")
    tab = browser.tab(serve(Project(photos, tmp_path / "out")).address)
    assert tab.text("[data-list=queue]") == "To label 3,000"
    assert tab.run("document.querySelectorAll('.cell').length") < 100
    tab.run("document.querySelector('#grid').scrollTop = 1e9")
    tab.until("document.querySelector('.cell[data-index=\"2999\"]') !== null")
    assert tab.run("document.querySelectorAll('.cell').length") < 100
    assert tab.errors() == []


def test_an_unreadable_image_shows_as_one(browser: Browser, serve, project: Project):
    for number in range(30):
        (project.root / f"{number:02d}.png").write_text("no image")
    tab = browser.tab(serve(project).address)
    tab.until("document.querySelectorAll('.cell.failed').length > 3")
    tab.until("document.querySelector('#notices').innerText.includes('cannot be read')")
