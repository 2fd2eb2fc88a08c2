"""The pages of explain: one file, well formed, nothing of the input taken for markup, every link of the picture has its end."""

from __future__ import annotations

import html.parser
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from case_inputs import unpack
from explain_pages import pages
from podwire.explain import rules_report
from podwire.explain.explain import explain
from podwire.explain.html_figure import Box, Figure, cut, esc
from podwire.explain.html_page import page
from podwire.explain.html_reports import packet_page, rules_page
from podwire.explain.picture import picture
from podwire.explain.question import Question
from podwire.explain.snapshot import RuleText, Snapshot

pytestmark = pytest.mark.unit

VOID = {"meta", "br", "link", "img", "input"}
KINDS = ["packet", "port", "service", "rules"]


class Dom(html.parser.HTMLParser):
    """Ids, links, tags and text of a page; an element that is not closed in order is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.attributes, self.text = [], [], [], set(), [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name == "href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_well_formed_and_loads_nothing(made, kind):
    dom = Dom(made[kind])
    assert len(dom.ids) == len(set(dom.ids))
    assert all(link.startswith("#") for link in dom.links)
    assert set(dom.links) <= {f"#{one}" for one in dom.ids}
    assert not any(name in ("src", "style", "onclick") for name, _ in dom.attributes)
    assert not dom.tags & {"img", "link", "iframe", "object", "base"}
    assert not re.search(r"https?://", made[kind])
    assert "default-src 'none'" in made[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_is_valid_svg_and_says_which_ways_a_box_is_on(made, kind):
    pictures = re.findall(r"<svg .*?</svg>", made[kind], re.DOTALL)
    assert pictures
    for text in pictures:
        root = ET.fromstring(text)
        marked = [one for one in root.iter() if one.get("data-p")]
        assert marked
        width, height = (float(root.get(one)) for one in ("width", "height"))
        for rect in root.iter("rect"):
            assert 0 <= float(rect.get("x")) <= width - float(rect.get("width"))
            assert 0 <= float(rect.get("y")) <= height - float(rect.get("height"))


def test_without_a_script_the_packet_page_has_every_rule_on_the_way(made):
    text = " ".join(Dom(made["packet"]).text)
    assert text.count('-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:"') == 6
    assert "10.244.3.4:8080" in text
    assert "probability 1/3" in text


def test_each_step_of_the_packet_belongs_to_a_box(made):
    boxes = set(re.findall(r'<a href="#[^"]+" class="box [a-z]+" data-b="([^"]+)"', made["packet"]))
    steps = set(re.findall(r'<li id="[^"]+" data-b="([^"]+)"', made["packet"]))
    assert steps
    assert steps <= boxes


def test_boxes_do_not_overlap(made):
    for kind in KINDS:
        for text in re.findall(r"<svg .*?</svg>", made[kind], re.DOTALL):
            seen = []
            for rect in ET.fromstring(text).iter("rect"):
                x, y, w, h = (float(rect.get(one)) for one in ("x", "y", "width", "height"))
                assert not any(abs(x - a) < w and abs(y - b) < h for a, b in seen)
                seen.append((x, y))


EVIL = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'\x00\x1b[31m\u202e"


def test_nothing_of_the_input_becomes_markup():
    comment = EVIL.replace('"', "").replace("\x00", "")
    rules = (
        "*nat\n:PREROUTING ACCEPT [0:0]\n:<b>x</b> - [0:0]\n:KUBE-SERVICES - [0:0]\n"
        f'-A PREROUTING -m comment --comment "{comment}" -j <b>x</b>\n'
        f'-A <b>x</b> -p tcp -m tcp --dport 80 -m comment --comment "{comment}" -j DNAT --to-destination 10.0.0.1:80\nCOMMIT\n'
    )
    node = picture(Snapshot(label=EVIL, rules=[RuleText("iptables", 4, "save", rules, EVIL)]))
    for text in (
        packet_page(explain(Question("external", "192.0.2.1:80/tcp"), node)),
        rules_page(rules_report.report(node)),
    ):
        dom = Dom(text)
        assert not dom.tags & {"img", "b", "p>"}
        assert text.count("<script") == 1
        assert "\x1b" not in text
        assert "&lt;img src=x" in text


def test_escaped_text_is_what_a_browser_shows():
    assert esc('<a href="x">&\'\x00\ud800') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;\ufffd\ufffd"
    assert Dom(page(EVIL, EVIL, "")).tags == Dom(page("a", "b", "")).tags
    assert cut("KUBE-SEP-QXDNOBCCLOXLV7LV", 12) == "KUBE-SE…V7LV"


def test_ways_that_make_a_circle_are_drawn_too():
    figure = Figure("x", "label", boxes={key: Box(key, "") for key in "abc"}, ways=[["a", "b", "a", "c"], ["b", "a"]])
    assert len(list(ET.fromstring(figure.svg()).iter("rect"))) == 6


def test_a_thousand_ways_are_drawn_in_a_moment():
    ways = [["a", f"b{one}", "c"] for one in range(1000)]
    boxes = {key: Box(key, "") for way in ways for key in way}
    assert Figure("x", "label", across=True, boxes=boxes, ways=ways).svg().count("<rect") == 1002


def podwire(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "podwire", "explain", *arguments], capture_output=True, text=True, check=False
    )


def test_the_page_is_written_to_a_file_or_to_stdout_and_the_answer_is_still_said(tmp_path):
    (path,) = unpack("01", tmp_path, "iptables-save.txt")
    out = tmp_path / "page.html"
    done = podwire("port", "30450", path, "--html", str(out))
    assert done.stdout.startswith("The rules of default/web take port 30450/tcp")
    assert out.read_text().startswith("<!doctype html>")
    assert podwire("rules", path, "--html", "-").stdout.startswith("<!doctype html>")
    ask = ["--from", "external", "--to", "192.0.2.11:30450/tcp"]
    assert podwire("packet", path, *ask, "--html", "-").stdout.startswith("<!doctype html>")
    assert podwire("service", "default/web", path, "--html", "-").stdout.startswith("<!doctype html>")


def test_wrong_use_of_html_is_one_line(tmp_path):
    (path,) = unpack("01", tmp_path, "iptables-save.txt")
    for arguments in (["--html", "-", "--json"], ["--html", f"{tmp_path}/no/such.html"]):
        done = podwire("rules", path, *arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
