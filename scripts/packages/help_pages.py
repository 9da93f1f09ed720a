#!/usr/bin/env python3
"""Usage: scripts/packages/help_pages.py --name NAME --version VERSION --epoch SECONDS PROGRAM SHARE
Makes the manual page of a program, and its completion for bash, zsh and fish, from what PROGRAM --help prints, and writes them below the
folder SHARE: man/, bash-completion/, zsh/ and fish/. Commands of the program have a section each. A program with a command
`completion` makes its own for bash and fish. scripts/package.sh runs this.
"""
import argparse
import gzip
import pathlib
import re
import subprocess
import sys
import time

from help_text import Help

ADMINISTRATION = {"poold", "pool-scheduler", "pool-admin"}  # their pages are in section 8
SEE_ALSO = {"pool-admin": "poold(8), pool-scheduler(8)", "poold": "pool-admin(8), pool-run(1)", "pool-scheduler": "pool-admin(8), pool-run(1)",
            "pool-run": "pool-smi(1), pool-cdi(1), poold(8)"}


def output_of(program, *words):
    """The standard output of a command, in an environment without settings of this user."""
    done = subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"})
    if done.returncode != 0 or not done.stdout:
        sys.exit(f"error: {' '.join([str(program), *words])} failed with status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def commands_of(program, words, text):
    """The texts of all commands and of their commands, by the words that name them."""
    found = {}
    for name, _ in text.commands:
        if name != "completion":
            command = Help(output_of(program, *words, name, "--help"))
            found[(*words, name)] = command
            found |= commands_of(program, (*words, name), command)
    return found


# --- The manual page ---


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(blocks):
    out = ""
    for is_prose, lines in blocks:
        out += ".PP\n" + escaped(" ".join(lines)) + "\n" if is_prose else ".PP\n.nf\n" + escaped("\n".join(lines)) + "\n.fi\n"
    return out


def entries(rows):
    return "".join(f".TP\n.B {escaped(head)}\n{escaped(text) or chr(92) + '&'}\n" for head, text in rows)


def manual_page(name, version, epoch, text, groups):
    section = 8 if name in ADMINISTRATION else 1
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    out = f'.TH {name.upper()} {section} "{date}" "gpupool {version}" "gpupool"\n'
    out += f".SH NAME\n{escaped(name)} \\- {escaped(text.summary(name))}\n"
    out += ".SH SYNOPSIS\n.nf\n" + escaped("\n".join(text.usage)) + "\n.fi\n"
    out += ".SH DESCRIPTION\n" + paragraphs(text.about)
    if text.options:
        out += ".SH OPTIONS\n" + entries(text.options)
    for title, commands in groups:
        out += f".SH {title}\n"
        for words, command in commands.items():
            out += f".SS {escaped(' '.join(words))}\n" + escaped(" ".join(command.usage)) + "\n" + paragraphs(command.about)
            out += entries([row for row in command.options if not re.match(r"(-h,)?--help", row[0])])
    if text.notes:
        out += ".SH NOTES\n" + paragraphs(text.notes)
    if name in SEE_ALSO:
        out += ".SH SEE ALSO\n" + escaped(SEE_ALSO[name]) + "\n"
    return section, out


# --- Shell completion ---


def bash_completion(name, words):
    function = "_gpupool_" + name.replace("-", "_")
    return (f"# Completion of {name}, made from {name} --help.\n{function}() {{\n"
            f"  if [[ ${{COMP_WORDS[COMP_CWORD]}} == -* ]]; then\n"
            f"    mapfile -t COMPREPLY < <(compgen -W '{' '.join(words)}' -- \"${{COMP_WORDS[COMP_CWORD]}}\")\n  fi\n}}\n"
            f"complete -o default -F {function} {name}\n")


def quoted(text):
    """Text in single quotes, for zsh and fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "`") + "'"


def zsh_completion(name, options, commands):
    def specification(word, takes_value, about):
        about = re.sub(r"[][:\\]", " ", about)
        return quoted(f"{word}[{about}]" + (":value:_files" if takes_value else ""))

    lines = [f"#compdef {name}", f"# Completion of {name}, made from {name} --help.", "_arguments \\"]
    lines += [f"  {specification(*option)} \\" for option in options]
    if commands:
        lines.append(f"  '1:command:({' '.join(command for command, _ in commands)})' \\")
    return "\n".join([*lines, "  '*:argument:_default'"]) + "\n"


def fish_completion(name, options):
    out = f"# Completion of {name}, made from {name} --help.\n"
    for word, takes_value, about in options:
        kind = f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}"
        out += f"complete -c {name} {kind}{' -r' if takes_value else ''} -d {quoted(about)}\n"
    return out


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("share", type=pathlib.Path)
    given = parser.parse_args()
    name = given.name

    text = Help(output_of(given.program, "--help"))
    groups = [("COMMANDS", commands_of(given.program, (), text))] if text.commands else []
    if name == "pool-admin":  # with this option it has other commands
        pool = ("--scheduler", "HOST:9800")
        groups.append(("COMMANDS FOR A POOL", commands_of(given.program, pool, Help(output_of(given.program, *pool, "--help")))))
    section, page = manual_page(name, given.version, given.epoch, text, groups)
    write(given.share / f"man/man{section}/{name}.{section}.gz", gzip.compress(page.encode(), 9, mtime=0))

    options = text.words()
    own = any(command == "completion" for command, _ in text.commands)
    bash = output_of(given.program, "completion", "bash") if own else bash_completion(name, [word for word, _, _ in options])
    fish = output_of(given.program, "completion", "fish") if own else fish_completion(name, options)
    write(given.share / f"bash-completion/completions/{name}", bash)
    write(given.share / f"fish/vendor_completions.d/{name}.fish", fish)
    write(given.share / f"zsh/vendor-completions/_{name}", zsh_completion(name, options, text.commands))


if __name__ == "__main__":
    main()
