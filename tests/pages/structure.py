"""Reading a page back with the standard library's parser."""

import re
from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "link", "hr"}

PAYLOADS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><style>*{display:none}</style>",
    "</title><h1>x</h1>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)' x='",
    '" autofocus onfocus="alert(1)" tabindex="1',
    "<svg onload=alert(1)>",
    "<svg><style><img src=x onerror=alert(1)></style></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--><img src=1 onerror=1>'>",
    "<!-- x",
    "--><b>x</b><!--",
    "<![CDATA[<b>x</b>]]>",
    "&lt;b&gt;&#60;b&#62;",
    "{{7*7}}${7*7}{% raw %}<%= 7 %>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "a\u2028b\u2029c\r\nd\te",
    "nul\x00 bell\x07 escape\x1b[31m del\x7f",
    "lone surrogate \udcff and \ud800",
    "exe.\u202egpj\u2066",
    "`+alert(1)+`",
    "\\\"'/><base href=x>",
    "=HYPERLINK(1)",
)


class Structure(HTMLParser):
    """Elements with their attribute names, all text, and whether every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: Counter = Counter()
        self.values: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.content: dict[str, str] = {}
        self.feed(page)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements[tag, tuple(name for name, _ in attrs)] += 1
        self.values += [(tag, name, value or "") for name, value in attrs]
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} occurs twice: {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] in ("style", "script", "title"):
            self.content[self.open[-1]] = self.content.get(self.open[-1], "") + data

    def attribute(self, tag: str, name: str) -> list[str]:
        return [value for t, n, value in self.values if (t, n) == (tag, name)]


def without_data(page: str) -> str:
    """The page without the images and hashes, whose base64 may hold any letters."""
    return re.sub(r"(data:image/png;base64,|sha256-)[A-Za-z0-9+/=]+", "", page)
