"""Finds the functions of C++ and Python sources and their sizes, for sizes.py.

C++ is not parsed but read by its braces, which takes seconds for the whole tree and needs neither compiler nor flags. A brace
outside of functions opens a namespace, a type, an initializer or a function; the words before it tell which. Functions in macros
are not found. The branches of #if and #else may each open the same braces.
"""
import ast
import re

TOKEN = re.compile(
    r'(?P<skip>//(?:[^\n\\]|\\.)*|/\*.*?\*/|(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")'
    r'|(?P<directive>^[ \t]*#(?:[^\n\\]|\\\n|\\.)*)'
    r'|(?P<string>"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')'
    r"|(?P<word>[A-Za-z_]\w*|\d(?:[\w.]|'\w)*)"
    r"|(?P<sign>->|::|&&|[^\s\w])", re.MULTILINE | re.DOTALL)
TYPES = {"class", "struct", "union", "enum"}
TESTS = {"TEST_CASE", "TEST_CASE_METHOD", "SCENARIO"}
SPECIFIERS = {"noexcept", "requires", "alignas", "decltype", "__attribute__", "throw", "explicit", "__launch_bounds__"}


def outer_tokens(tokens):
    """Returns the tokens outside of (), [] and <> and their indices. Each () leaves a token '()', but not that of a specifier such
    as alignas()."""
    kept, indices, depth, angles = [], [], 0, 0
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else ""
        if token in ("(", "["):
            if token == "(" and not depth and not angles and before not in SPECIFIERS:
                kept.append("()")
                indices.append(index)
            depth += 1
        elif token in (")", "]"):
            depth -= 1
        elif depth:
            continue
        elif token == "<" and (angles or (re.match(r"\w", before) and before != "operator")):
            angles += 1
        elif token == ">" and angles:
            angles -= 1
        elif not angles:
            kept.append(token)
            indices.append(index)
    return kept, indices


def lambda_at(tokens):
    """Returns the index of the `=` of a variable that holds a lambda, or 0."""
    return next((index for index in range(1, len(tokens) - 1) if tokens[index] == "=" and tokens[index + 1] == "["), 0)


def kind_of(tokens):
    """Classifies a brace outside of functions by the tokens since the last statement: 'scope' (namespace, type), 'function' or
    'initializer'."""
    outer, _ = outer_tokens(tokens)
    if "namespace" in outer or (len(outer) == 2 and outer[0] == "extern" and outer[1].startswith('"')):
        return "scope"
    first = next((index for index, word in enumerate(outer) if word in TYPES), None)
    head = outer[first:] if first is not None else []
    if head and "=" not in outer and "()" not in (head[:head.index(":")] if ":" in head else head):
        return "scope"
    if "()" not in outer:
        return "initializer"
    if "=" in outer and "operator" not in outer and not lambda_at(tokens):
        return "initializer"
    if ":" in outer[outer.index("()"):] and tokens[-1] not in (")", "}", "."):  # member{value} of a constructor
        return "initializer"
    return "function"


def name_of(tokens):
    """Returns a name for a function: the identifier before its parameters, or a test's title."""
    if tokens[0] in TESTS:
        return next((token[1:-1] for token in tokens if token.startswith('"')), tokens[2])
    if "operator" in tokens:
        at = tokens.index("operator")
        end = tokens.index("(", at + 3 if tokens[at + 1] == "(" else at)
        return "".join(tokens[at:end])
    if lambda_at(tokens):
        return tokens[lambda_at(tokens) - 1]
    outer, indices = outer_tokens(tokens)
    head = outer[:outer.index(":", outer.index("()"))] if ":" in outer[outer.index("()"):] else outer  # before a constructor's members
    names = [index - 1 for token, index in zip(head, indices) if token == "()" and index and re.match(r"[A-Za-z_]", tokens[index - 1])]
    if not names:
        return "?"
    at = names[1] if len(names) > 1 and tokens[names[0]].isupper() else names[0]  # a macro before the return type
    name = tokens[at]
    if at and tokens[at - 1] == "~":
        name, at = "~" + name, at - 1
    while at >= 2 and tokens[at - 1] == "::" and re.match(r"\w", tokens[at - 2]):
        name, at = f"{tokens[at - 2]}::{name}", at - 2
    return name


class Reader:
    """Reads the tokens of one source."""

    def __init__(self):
        self.open = []  # kinds of the open braces, the innermost last; a function's entry is (name, line)
        self.inside = 0  # open braces within the innermost function or initializer
        self.statement = []
        self.branches = []  # states at the open #ifs
        self.functions = []  # (name, line, lines)

    def directive(self, text):
        word = re.match(r"\s*#\s*(\w*)", text)[1]
        if word in ("if", "ifdef", "ifndef"):
            self.branches.append((list(self.open), self.inside, list(self.statement)))
        elif word in ("else", "elif") and self.branches:
            self.open, self.inside, self.statement = (part if isinstance(part, int) else list(part) for part in self.branches[-1])
        elif word == "endif" and self.branches:
            self.branches.pop()

    def token(self, token, line):
        if self.inside:
            self.inside += {"{": 1, "}": -1}.get(token, 0)
            if not self.inside:
                self.close(line)
        elif token == "{":
            self.begin(line)
        elif token == "}":
            if self.open:
                self.open.pop()
            self.statement = []
        elif token == ";":
            if self.statement.count("(") == self.statement.count(")"):
                self.statement = []
        elif token == ":" and self.statement[-1:] in (["public"], ["private"], ["protected"]):
            self.statement = []
        else:
            self.statement.append(token)

    def begin(self, line):
        in_parameters = self.statement.count("(") > self.statement.count(")")  # a default value
        kind = "initializer" if in_parameters else kind_of(self.statement) if self.statement else "initializer"
        if kind == "scope":
            self.open.append(kind)
            self.statement = []
        else:
            self.inside = 1
            self.open.append((name_of(self.statement), line) if kind == "function" else kind)

    def close(self, line):
        opened = self.open.pop()
        if opened == "initializer":
            self.statement.append("}")
        else:
            self.functions.append((*opened, max(line - opened[1] - 1, 0)))
            self.statement = []


def cpp_functions(text):
    """Returns (name, line, lines) of each function; `lines` are those between its braces."""
    reader, line, at = Reader(), 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        if match["directive"]:
            reader.directive(match[0])
        elif not match["skip"]:
            reader.token(match[0], line)
    return reader.functions


def python_functions(text):
    """Returns (name, line, lines) of each function of a Python source; `lines` are those after its head."""
    found = []

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append((prefix + child.name, child.lineno, child.end_lineno - child.body[0].lineno + 1))
            visit(child, f"{prefix}{child.name}." if isinstance(child, (ast.ClassDef, ast.FunctionDef)) else prefix)

    try:
        visit(ast.parse(text), "")
    except SyntaxError:  # pyflakes reports it
        pass
    return found
