"""The parts of what a program prints with --help, as CLI11 writes it or by hand in the same form. Used by help_pages.py."""
import re

ENTRY = re.compile(r"^ {1,4}(-\S.*?)(?: {2,}(\S.*))?$")           # "  --option VALUE   text"
COMMAND = re.compile(r"^ {2}([a-z][a-z-]*)(?: {2,}(\S.*))?$")      # "  command          text"
POSITIONAL = re.compile(r"^ {2}(\S.*?)(?: {2,}(\S.*))?$")          # "  NAME TEXT        text"
SECTION = re.compile(r"^(options|positionals|subcommands|commands):\s*$", re.IGNORECASE)
WORD = re.compile(r"(?<![\w-])(--[a-z0-9][a-z0-9-]*|-[A-Za-z])(?![\w-])")


class Help:
    """usage: lines. about, notes: blocks (is_prose, lines) before and after the options. options: (head, text). commands: (name, text)."""

    def __init__(self, text):
        self.usage, self.about, self.notes, self.options, self.commands = [], [], [], [], []
        self._section = ""
        self._after_blank = True
        for line in text.expandtabs().splitlines():
            self._read(line.rstrip())
            self._after_blank = not line.strip()
        self.about = [block for block in self.about if block[1]]
        self.notes = [block for block in self.notes if block[1]]

    def _read(self, line):
        if not line:
            if self._section != "options" or not self.options:
                self._section = "" if self._section != "commands" else self._section
        elif line.lower().startswith("usage:"):
            self._section = "usage"
            self.usage.append(line[6:].strip())
        elif self._section == "usage" and line.startswith("   "):
            self.usage.append(line.strip())
        elif SECTION.match(line):
            self._section = "commands" if "commands" in line.lower() else "options"
        elif ENTRY.match(line) and self._section != "commands":
            self._add_option(*ENTRY.match(line).groups(default=""))
        elif self._section == "commands" and COMMAND.match(line):
            self.commands.append(COMMAND.match(line).groups(default=""))
        elif self._section in ("options", "commands") and line.startswith("      ") and (self.options or self.commands):
            rows = self.commands if self._section == "commands" else self.options
            head, text = rows[-1]
            rows[-1] = (head, f"{text} {line.strip()}".strip())
        elif self._section == "options" and not self._after_blank and POSITIONAL.match(line):
            self.options.append(POSITIONAL.match(line).groups(default=""))
        else:
            self._add_text(line)

    def _add_option(self, head, text):
        self._section = "options"
        if self.options and not self.options[-1][1] and self.options[-1][0].endswith(","):  # a list of options over several lines
            self.options[-1] = (f"{self.options[-1][0]} {head}", text)
        else:
            self.options.append((head, text))

    def _add_text(self, line):
        self._section = ""
        blocks = self.notes if self.options or self.commands else self.about
        is_prose = not line.startswith(" ")
        if not blocks or self._after_blank or blocks[-1][0] != is_prose:
            blocks.append((is_prose, []))
        blocks[-1][1].append(line.strip() if is_prose else line)

    def summary(self, name):
        """The first sentence, in one line without its full stop."""
        prose = " ".join(" ".join(lines) for is_prose, lines in self.about if is_prose)
        sentence = re.split(r"(?<=[A-Za-z)])\.(?:\s|$)", prose, maxsplit=1)[0]
        return re.sub(rf"^{re.escape(name)}: ", "", sentence).rstrip(".") or name

    def words(self):
        """(word, takes_value, short text) of each option, for completion."""
        found = {}
        for head, text in self.options:
            if not head.startswith("-"):
                continue
            short = re.split(r"[;:(\[]|\. ", text)[0].strip()[:80]
            head = re.split(r" (?:Excludes:|Needs:|REQUIRED|\(Env:)", head)[0]
            for part in re.split(r", (?=-)", head):  # several options, or "-h,--help"
                takes_value = bool(WORD.sub("", part).strip(" ,"))
                for word in WORD.findall(part):
                    found.setdefault(word, (word, takes_value, short))
        return list(found.values())
