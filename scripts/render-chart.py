#!/usr/bin/env python3
"""Usage: scripts/render-chart.py [--namespace NAME] [--set NAME=VALUE]... [CHART]
Prints the manifests of a Helm chart (default: packaging/kubernetes/chart), without Helm.
Knows the part of Helm's templates that the chart uses: {{ .Values.NAME }}, {{ .Release.Namespace }}, {{ toYaml X | nindent N }},
and if, else and end, each on a line of its own. Fails on everything else. Needs PyYAML.
--namespace NAME  .Release.Namespace [gpupool]
--set NAME=VALUE  replaces a value, for example tls.secretName=gpupool-tls; VALUE is YAML
packaging/kubernetes/gpupool.yaml is the output with the default values.
"""
import argparse
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = "# Written by scripts/render-chart.py: change packaging/kubernetes/chart/ instead.\n"


class TemplateError(Exception):
    pass


def value_of(name, scope):
    """Returns the value of .A.B."""
    if not re.fullmatch(r"(\.\w+)+", name):
        raise TemplateError(f"'{name}' is not a value's name")
    value = scope
    for part in name[1:].split("."):
        if not isinstance(value, dict) or part not in value:
            raise TemplateError(f"there is no value {name}")
        value = value[part]
    return value


def replaced(action, scope):
    """Returns the text in place of {{ action }}."""
    yaml_of = re.fullmatch(r"toYaml (\S+) \| nindent (\d+)", action)
    if yaml_of:
        text = yaml.safe_dump(value_of(yaml_of[1], scope), default_flow_style=False).rstrip("\n")
        return "".join(f"\n{' ' * int(yaml_of[2])}{line}" for line in text.split("\n"))
    value = value_of(action, scope)
    return str(value).lower() if isinstance(value, bool) else str(value)


def render(template, scope):
    """Returns the manifests of a template, without the lines of its conditions."""
    out, conditions = [], []
    for line in template.splitlines():
        condition = re.fullmatch(r"\s*\{\{- (if (?P<value>\S+)|else|end) \}\}", line)
        if condition and condition["value"]:
            conditions.append(bool(value_of(condition["value"], scope)))
        elif condition and not conditions:
            raise TemplateError(f"no if before: {line.strip()}")
        elif condition and condition[1] == "else":
            conditions[-1] = not conditions[-1]
        elif condition:
            conditions.pop()
        elif all(conditions):
            whole = re.fullmatch(r"\s*\{\{- (.*) \}\}", line)  # takes the line break before it, too
            if whole:
                text = replaced(whole[1], scope)
                out[-1:] = ["".join(out[-1:]) + text]
            else:
                out.append(re.sub(r"\{\{ (.*?) \}\}", lambda action: replaced(action[1], scope), line))
    if conditions:
        raise TemplateError("an if has no end")
    return "".join(line + "\n" for line in out)


def render_chart(chart, namespace, settings=()):
    values = yaml.safe_load((chart / "values.yaml").read_text())
    for setting in settings:
        name, _, text = setting.partition("=")
        *path, last = name.split(".")
        table = values
        for part in path:
            table = table[part]
        if last not in table:
            raise TemplateError(f"there is no value {name}")
        table[last] = yaml.safe_load(text)
    scope = {"Values": values, "Release": {"Namespace": namespace}}
    texts = []
    for template in sorted((chart / "templates").glob("*.yaml")):
        try:
            texts.append(render(template.read_text(), scope))
        except TemplateError as wrong:
            raise TemplateError(f"{template.name}: {wrong}") from None
    return HEAD + "".join(f"---\n{text}" for text in texts if text.strip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chart", nargs="?", type=pathlib.Path, default=ROOT / "packaging/kubernetes/chart")
    parser.add_argument("--namespace", default="gpupool")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    words = parser.parse_args()
    try:
        sys.stdout.write(render_chart(words.chart, words.namespace, words.settings))
    except (TemplateError, OSError, KeyError, yaml.YAMLError) as wrong:
        sys.exit(f"render-chart.py: {wrong}")


if __name__ == "__main__":
    main()
