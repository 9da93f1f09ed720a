"""browser_test.py BUILD SCREENSHOTS: the scheduler's web page in Debian's Chromium.

A pool of 300 simulated nodes with 8 GPUs each and hostile names of programs, and one of a real poold with softgpu and tokens. Screenshots
stay in SCREENSHOTS. Exits with 77 if Chromium is not installed.
"""
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "python"), str(HERE.parent.parent / "slurm")]
import cases  # noqa: E402
from chromium import Chromium, find  # noqa: E402
from cluster import Daemon, eventually  # noqa: E402
from gpu_pool import GpuPool  # noqa: E402
from hostile_proxy import HOSTILE, HostileProxy  # noqa: E402

NODES, GPUS, LEASES = 300, 8, 200
TENANTS = [f"tenant-{letter}" for letter in "abcdefghij"]
CELLS = "document.querySelectorAll('#map .cell').length"


class SimulatedPool:
    """pool-scheduler without tokens, and the program simulated_pool."""

    def __init__(self, build, folder):
        self.build, self.folder = build, folder

    def __enter__(self):
        config = self.folder / "pool.toml"
        config.write_text("".join(f"[[tenant]]\nname = \"{name}\"\n" for name in TENANTS))
        port = self.folder / "port"
        self.scheduler = Daemon("simulated-scheduler", [self.build / "bin/pool-scheduler", "--config", config, "--listen", "127.0.0.1:0", "--port-file", port,
                                                        "--store", f"sqlite:{self.folder}/simulated.db", "--key", self.folder / "simulated.pem",
                                                        "--metrics", "127.0.0.1:0"], self.folder, None)
        self.scheduler.start()
        eventually(port.exists, self.scheduler.said)
        address = f"127.0.0.1:{port.read_text().strip()}"
        self.nodes = subprocess.Popen([self.build / "tests/simulated_pool", address, str(NODES), str(GPUS), str(LEASES), *TENANTS], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        if (line := self.nodes.stdout.readline()) != "ready\n":
            self.__exit__()
            raise AssertionError(f"simulated_pool said '{line}'\n{self.scheduler.said()}")
        self.url = page_url(self.scheduler)
        return self

    def __exit__(self, *_):
        self.nodes.stdin.close()
        self.nodes.stdout.close()
        self.nodes.wait(60)
        self.scheduler.stop()

    def ask(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def state(self):
        return self.ask("pool.json")


def page_url(daemon):
    eventually(lambda: "/metrics" in daemon.said(), daemon.said)
    return re.findall(r"(http://127\.0\.0\.1:\d+/)metrics", daemon.said())[-1]


class PageTest(cases.unittest.TestCase):
    """A tab of its own for each test, which must raise no exception and violate no policy."""
    browser = pool = guarded = screenshots = None

    def setUp(self):
        self.page = self.browser.page()

    def open(self, url, wait=f"{CELLS} === {NODES * GPUS}"):
        self.page.open(url)
        self.page.wait(wait)

    def shoot(self, name):
        self.page.screenshot(self.screenshots / f"{name}.png")

    def assert_calm(self):
        self.assertEqual(self.page.complaints(), [])

    def test_overview_shows_all_gpus_and_totals(self):
        self.open(self.pool.url)
        self.assertIn(f"{NODES} of {NODES}", self.page.text())
        self.assertEqual(self.page.evaluate("document.querySelectorAll('#map h3').length"), (NODES + 15) // 16)
        self.assertEqual(self.page.evaluate("document.querySelectorAll('#map .tile[aria-label]').length"), NODES)
        leased = self.page.evaluate("document.querySelector('[data-total=leased] b').textContent")
        self.assertTrue(leased.endswith(f" of {NODES * GPUS}"), leased)
        self.assertIn("tenant-a", self.page.evaluate("document.querySelector('#shares').innerText"))
        self.assertIn("in its memory", self.page.evaluate("document.querySelector('#shares').innerText"))
        self.shoot("overview-light")
        self.assert_calm()

    def test_colours_follow_the_data(self):
        self.open(self.pool.url)
        self.page.wait("document.querySelectorAll('#map .level-unknown').length === 0")
        for kind, cell_class in (("leased", lambda gpu: level(gpu["compute_milli_leased"] / 1000)),
                                 ("memory", lambda gpu: level(gpu["memory_used_bytes"] / gpu["memory_bytes"])),
                                 ("use", lambda gpu: level(gpu["compute_milli_used"] / 1000))):
            self.page.evaluate(f"document.querySelector('#colours input[value={kind}]').click()")
            wanted = [cell_class(gpu) for node in self.pool.state()["nodes"] for gpu in node["gpus"]]
            shown = self.page.wait("[...document.querySelectorAll('#map .cell')].map(cell => cell.className.split(' ')[1])")
            different = sum(a != b for a, b in zip(wanted, shown))
            # Another measurement of the same use may differ a little between the two answers.
            self.assertLessEqual(different, 0 if kind != "use" else len(wanted) // 10, kind)
        fills = self.page.evaluate("[...new Set([...document.querySelectorAll('#map .cell')].map(cell => getComputedStyle(cell).backgroundColor))].length")
        self.assertEqual(fills, 7)
        self.shoot("overview-use")
        self.page.evaluate("document.querySelector('#colours input[value=tenant]').click()")
        self.assertIn("colour=tenant", self.page.evaluate("location.hash"))
        named = self.page.evaluate("[...document.querySelectorAll('#map .cell')].filter(cell => /tenant-[0-7]/.test(cell.className)).length")
        self.assertGreater(named, LEASES)
        self.shoot("overview-tenant")
        self.assert_calm()

    def test_filter_is_kept_in_the_url(self):
        self.open(self.pool.url)
        self.page.evaluate("(() => { const box = document.querySelector('#filter'); box.value = 'gpu-01'; box.dispatchEvent(new Event('input', {bubbles: true})); })()")
        self.page.wait(f"{CELLS} === {10 * GPUS}")
        self.assertEqual(self.page.evaluate("location.hash"), "#/?q=gpu-01")
        self.page.call("Page.reload")
        self.page.wait(f"{CELLS} === {10 * GPUS} && document.querySelector('#filter').value === 'gpu-01'")
        self.page.evaluate("location.hash = '#/?q=' + encodeURIComponent('job=<b')")
        self.page.wait(f"{CELLS} > 0 && {CELLS} < {NODES * GPUS}")
        self.page.evaluate("location.hash = '#/?q=nothing-has-this'")
        self.page.wait(f"{CELLS} === 0")
        self.assertIn("no node matches the filter", self.page.text())
        self.assert_calm()

    def test_pages_of_a_node_and_a_lease(self):
        lease = self.pool.state()["leases"][0]
        node = lease["parts"][0]["node"]
        self.open(f"{self.pool.url}#/nodes/{node}", "document.querySelectorAll('.gpus > li').length > 0")
        self.assertEqual(self.page.evaluate("document.querySelectorAll('.gpus > li').length"), GPUS)
        for words in ("last heartbeat", "condition", "drained", "poold", lease["id"][:8]):
            self.assertIn(words, self.page.text())
        self.shoot("node")
        self.page.evaluate(f"location.hash = '#/leases/{lease['id']}'")
        self.page.wait("document.querySelectorAll('main tbody tr').length > 0")
        for words in (lease["tenant"], node, "labels", "granted", "Moves and suspensions"):
            self.assertIn(words, self.page.text())
        self.shoot("lease")
        self.page.evaluate("location.hash = '#/leases/ffff'")
        self.page.wait("document.body.innerText.includes('There is no such lease')")
        self.page.evaluate("location.hash = '#/nodes/nowhere'")
        self.page.wait("document.body.innerText.includes('No node has this name')")
        self.page.evaluate("history.back()")
        self.page.wait("document.body.innerText.includes('There is no such lease')")
        self.assert_calm()

    def test_queue_has_the_reason_in_full(self):
        waiting = self.pool.state()["waiting"]
        self.open(f"{self.pool.url}#/queue", "document.querySelectorAll('main tbody tr').length > 0")
        self.assertEqual(len(waiting), 1)
        for words in (waiting[0]["id"], waiting[0]["why"], f"{NODES * GPUS} GPUs"):
            self.assertIn(words, self.page.evaluate("document.querySelector('main').textContent"))
        self.shoot("queue")
        self.assert_calm()

    def test_times_have_utc_in_their_title(self):
        self.open(self.pool.url)
        titles = self.page.evaluate("[...document.querySelectorAll('time')].map(one => one.title)")
        self.assertTrue(titles)
        for title in titles:
            self.assertRegex(title, r"\d\d:\d\d:\d\d UTC$")

    def test_refresh_replaces_no_element(self):
        self.open(self.pool.url)
        self.page.evaluate("window.kept = [...document.querySelectorAll('#map .cell, #map .tile, main tr')]; document.querySelector('#map .tile').focus(); window.before = document.querySelector('footer').textContent; true")
        self.page.wait("document.querySelector('footer').textContent !== before")
        self.assertTrue(self.page.evaluate("kept.every(one => one.isConnected)"))
        self.assertTrue(self.page.evaluate("document.activeElement === document.querySelector('#map .tile')"))

    def test_refresh_moves_no_cell(self):
        self.open(self.pool.url)
        self.page.evaluate("window.moved = 0; window.refreshed = 0; new MutationObserver(list => { moved += list.length; }).observe(document.querySelector('#map'), "
                           "{childList: true, subtree: true}); new MutationObserver(() => { ++refreshed; }).observe(document.querySelector('footer'), {childList: true}); true")
        self.page.wait("refreshed >= 2")
        self.assertEqual(self.page.evaluate("moved"), 0)

    def test_dark_and_light(self):
        backs = set()
        for scheme, choice in (("light", "auto"), ("dark", "auto"), ("light", "dark"), ("dark", "light")):
            self.page.colour_scheme(scheme)
            self.open(self.pool.url)
            self.page.evaluate(f"(() => {{ const box = document.querySelector('#theme'); box.value = '{choice}'; box.dispatchEvent(new Event('change')); }})()")
            back = self.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            is_dark = max(map(int, re.findall(r"\d+", back)[:3])) < 100
            self.assertEqual(is_dark, "dark" in (choice if choice != "auto" else scheme), (scheme, choice, back))
            backs.add(back)
            self.shoot(f"overview-{scheme}-{choice}")
        self.assertEqual(len(backs), 2)
        self.assert_calm()

    def test_telephone_needs_no_horizontal_scrolling(self):
        state = self.pool.state()
        lease = state["leases"][0]
        self.page.resize(360, 740, 2, True)
        for name, page in (("overview", ""), ("queue", "#/queue"), ("leases", "#/leases"), ("tenants", "#/tenants"),
                           ("node", f"#/nodes/{lease['parts'][0]['node']}"), ("lease", f"#/leases/{lease['id']}")):
            self.page.open("about:blank")
            self.open(self.pool.url + page, "document.querySelector('main h1') !== null")
            self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"), 360, name)
            self.shoot(f"telephone-{name}")
        self.assertGreaterEqual(self.page.evaluate("parseFloat(getComputedStyle(document.querySelector('main')).fontSize)"), 14)
        self.assert_calm()

    def test_keyboard_reaches_a_node(self):
        self.open(self.pool.url)
        self.page.evaluate("document.querySelector('#map .tile').focus()")
        self.page.press("Enter")
        self.page.wait("location.hash.startsWith('#/nodes/') && document.querySelectorAll('.gpus > li').length > 0")
        self.page.evaluate("history.back()")
        self.page.wait(f"{CELLS} === {NODES * GPUS}")
        self.page.evaluate("document.querySelector('#skip').focus()")
        self.page.press("Enter")
        self.assertEqual(self.page.evaluate("document.activeElement.id"), "main")
        self.assertNotIn("main", self.page.evaluate("location.hash"))

    def test_hostile_names_stay_text(self):
        with HostileProxy(int(re.search(r":(\d+)/", self.pool.url)[1])) as proxy:
            self.open(proxy.url)
            for page in ("#/", "#/queue", "#/leases", "#/tenants", f"#/nodes/{'x' * 4096}7", "#/nodes/%3Cimg%20src%3Dx%20onerror%3D%22document.title%3D'owned'%22%3E0", "#/leases/%3Cscript%3E"):
                for width in (1440, 360):
                    self.page.resize(width, 800)
                    self.page.evaluate(f"location.hash = {json.dumps(page)}")
                    self.page.wait("document.querySelector('main h1') !== null")
                    self.page.wait("new Promise(done => setTimeout(() => done(true), 300))")  # lets a handler of an inserted element run
                    self.assertNotIn("owned", self.page.evaluate("document.title.replace(/^(Node|Lease) .*/, '')"), page)
                    self.assertEqual(self.page.evaluate("document.querySelectorAll('main img, main script, main iframe, main b[onmouseover], main svg[onload]').length"), 0)
                    self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"), width, page[:40])
            self.page.evaluate("location.hash = '#/leases'")
            self.page.wait("document.body.innerText.includes('onerror')")
            self.assertTrue(self.page.evaluate("[...document.querySelectorAll('main bdi')].some(one => getComputedStyle(one).unicodeBidi === 'isolate')"))
            self.assertIn(HOSTILE[0], self.page.evaluate("document.querySelector('main').textContent"))
            self.assertEqual(self.page.evaluate("document.querySelectorAll('main a[href^=\"javascript\"]').length"), 0)
            self.shoot("hostile")
            self.assert_calm()

    def test_token_is_asked_for_and_stays_in_the_tab(self):
        url = page_url(self.guarded.scheduler)
        self.open(url, "document.querySelector('#token') !== null")
        self.shoot("login")
        self.assertNotIn("gpus", self.page.evaluate("document.querySelector('main').textContent"))
        enter = ("(() => {{ const box = document.querySelector('#token'); box.value = '{}'; box.form.requestSubmit(); }})()")
        self.page.evaluate(enter.format("x" * 43))
        self.page.wait("document.body.innerText.includes('unknown token')")
        token = (self.guarded.folder / "operator.token").read_text().strip()
        self.page.evaluate(enter.format(token))
        self.page.wait("document.querySelectorAll('#map .cell').length === 4")
        self.page.call("Page.reload")
        self.page.wait("document.querySelectorAll('#map .cell').length === 4")
        self.assertNotIn(token, self.page.evaluate("location.href + document.cookie + JSON.stringify(localStorage)"))
        self.assertTrue(self.page.evaluate(f"sessionStorage.length === 1 && Object.values(sessionStorage)[0] === '{token}'"))
        # The program's lease on the real poold.
        self.page.wait("document.querySelectorAll('#leases tbody tr').length === 1")
        self.assertIn("research", self.page.evaluate("document.querySelector('#leases').innerText"))
        self.shoot("softgpu")
        other = self.browser.page()
        other.open(url)
        other.wait("document.querySelector('#token') !== null")
        self.page.evaluate("document.querySelector('#forget').click()")
        self.page.wait("document.querySelector('#token') !== null")

    def test_z_page_says_that_its_data_are_old(self):
        """The last one: it ends the simulated pool's scheduler."""
        self.open(self.pool.url)
        self.assertTrue(self.page.evaluate("document.querySelector('#notice').hidden"))
        self.pool.scheduler.kill()
        self.page.wait("!document.querySelector('#notice').hidden")
        self.page.wait("/No answer for \\d+ s; below is the state of/.test(document.querySelector('#notice').innerText)")
        self.assertEqual(self.page.evaluate("document.querySelector('#notice-text').getAttribute('role')"), "status")
        self.assertTrue(self.page.evaluate("document.body.classList.contains('is-stale')"))
        self.assertEqual(self.page.evaluate(CELLS), NODES * GPUS)
        self.shoot("stale")


def level(part):
    return f"level-{0 if part <= 0 else min(6, 1 + int(part * 6))}"


def setUpModule():
    stack = contextlib.ExitStack()
    cases.unittest.addModuleCleanup(stack.close)
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupool-web-")))
    PageTest.screenshots = SCREENSHOTS
    PageTest.pool = stack.enter_context(SimulatedPool(BUILD, folder))
    (folder / "guarded").mkdir(mode=0o700)
    PageTest.guarded = guarded = stack.enter_context(GpuPool(BUILD, folder / "guarded", scheduler_options=("--metrics", "127.0.0.1:0")))
    program = Daemon("program", [BUILD / "bin/pool-run", "--server", f"pool://{guarded.address}", "--token-file", guarded.folder / "research.token", "--gpus", "1",
                                 "--", "sleep", "3600"], folder, None)
    program.start()
    stack.callback(program.stop)
    eventually(guarded.leases, lambda: f"the program has its lease\n{program.said()}\n{guarded.logs()}")
    # The page asks for the history once a minute.
    eventually(lambda: PageTest.pool.ask("history.json")["tenants"], "the history has a sample with leases")
    PageTest.browser = stack.enter_context(Chromium(SCREENSHOTS / "chromium.log"))


if __name__ == "__main__":
    BUILD, SCREENSHOTS = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
    if find() is None:
        print("SKIPPED: scheduler.web_browser: Chromium is not installed (Debian: apt install chromium)")
        sys.exit(77)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    cases.main()
