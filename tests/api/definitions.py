"""Holds the definitions of the kinds that others publish too against the newest that they publish.

    python3 tests/api/definitions.py check               every difference must be in definitions.toml, with its reason
    python3 tests/api/definitions.py list [PATTERN ...]  prints the differences, those that all the patterns find

Theirs are read out of Go modules, which `go` downloads and holds against their checksums, and are not kept here. With
`--git MODULE=FOLDER`, once for each, a module is read from the same version of a Git repository: for a machine whose
module proxy does not have it.

A difference is one line: where, what, ours, theirs. `[]` are the items of a list, `{}` the values of a map. Descriptions
are not compared, nor is what only says the same in other words (`meaning`).
"""

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

from servers import LabError, check_output, fail, programs, say, tools

OURS = tools.TOP / "src/api/definitions.json"
ACCEPTED = Path(__file__).resolve().parent / "definitions.toml"
# Where the definitions are: modules, the newest version of each that has been looked at, and the folders in them.
MODULES = [
    ("sigs.k8s.io/cluster-api", "v1.14.2",
     ["core/config/crd/bases", "bootstrap/kubeadm/config/crd/bases", "controlplane/kubeadm/config/crd/bases"]),
    ("github.com/metal3-io/cluster-api-provider-metal3", "v1.14.0-rc.0", ["config/crd/bases"]),
    ("github.com/metal3-io/ip-address-manager", "v1.14.0-rc.0", ["config/crd/bases"]),
    ("github.com/metal3-io/baremetal-operator", "v0.14.0-rc.0", ["config/base/crds/bases"]),
]
# The group of the kinds that nobody else publishes.
OWN_GROUP = "slipway.dev"
# Reads YAML documents, one to a JSON string; run where the Python client has brought the library.
READ_YAML = "import json, sys, yaml; json.dump([yaml.safe_load(text) for text in json.load(sys.stdin)], sys.stdout, default=str)"
# The parts of a schema that hold other schemas, or that say nothing to a machine.
INNER = {"description", "title", "properties", "required", "items", "additionalProperties"}
EITHER = [{"type": "integer"}, {"type": "string"}]


def published(repositories):
    """Every definition that upstream publishes, by its name."""
    texts = []
    for module, version, folders in MODULES:
        read = from_git(repositories[module], version, folders) if module in repositories else from_module(module, version, folders)
        if not read:
            raise LabError(f"{module} {version} has no definitions in {', '.join(folders)}")
        texts += read
    parsed = check_output([tools.python_client() / "bin/python", "-c", READ_YAML], deadline=300, input=json.dumps(texts))
    return {one["metadata"]["name"]: one["spec"] for one in json.loads(parsed)}


def from_module(module, version, folders):
    try:
        top = Path(programs.module(f"{module}@{version}")["Dir"])
    except LabError as error:
        raise LabError(f"{error}\nIs it kept elsewhere? `--git {module}=FOLDER` reads a Git repository that has {version}") from error
    return [path.read_text() for folder in folders for path in sorted((top / folder).glob("*.yaml"))]


def from_git(repository, version, folders):
    git = ["git", "-C", repository]
    names = check_output([*git, "ls-tree", "-r", "--name-only", version, "--", *folders]).splitlines()
    return [check_output([*git, "show", f"{version}:{name}"]) for name in names if name.endswith(".yaml")]


def meaning(schema):
    """What a schema says of a value itself, in one way where Kubernetes knows several."""
    said = {key: value for key, value in schema.items() if key not in INNER}
    if isinstance(schema.get("additionalProperties"), bool):
        said["additionalProperties"] = schema["additionalProperties"]
    # A list is atomic when nothing is said, a number has 64 bits, and no length is below zero.
    for key, value in (("x-kubernetes-list-type", "atomic"), ("format", "int64"), ("minLength", 0), ("minItems", 0)):
        if said.get(key) == value:
            del said[key]
    if said.get("x-kubernetes-int-or-string") and said.get("anyOf") == EITHER:
        del said["anyOf"]
    if "enum" in said:
        said["enum"] = sorted(said["enum"], key=str)
    if "pattern" in said:
        said["pattern"] = said["pattern"].replace("\\/", "/")
    # Their messages are descriptions.
    if "x-kubernetes-validations" in said:
        said["x-kubernetes-validations"] = sorted(rule["rule"] for rule in said["x-kubernetes-validations"])
    # 0.0 and 0 are the same.
    return {key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in said.items()}


def schemas(ours, theirs, path=""):
    """The differences of two schemas: (path, what, ours, theirs). A field that one lacks is one difference."""
    left, right = meaning(ours), meaning(theirs)
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            yield path, key, left.get(key), right.get(key)
    left, right = ours.get("properties", {}), theirs.get("properties", {})
    for name in sorted(left.keys() | right.keys()):
        inner = f"{path}.{name}".lstrip(".")
        if inner in ("apiVersion", "kind", "metadata"):
            continue  # The API server knows these by itself.
        if name not in left or name not in right:
            yield inner, "field", *("there" if name in side else None for side in (left, right))
            continue
        needed = [name in side.get("required", []) for side in (ours, theirs)]
        if needed[0] != needed[1]:
            yield inner, "required", *needed
        yield from schemas(left[name], right[name], inner)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        left, right = (side.get(key) if isinstance(side.get(key), dict) else None for side in (ours, theirs))
        if left is not None and right is not None:
            yield from schemas(left, right, path + mark)
        elif left is not right:
            yield path + mark, "schema", *("there" if side is not None else None for side in (left, right))


def versions(ours, theirs):
    """The differences of what two versions of a kind say beside their schemas."""
    for key in ("storage", "deprecated", "subresources", "selectableFields"):
        left, right = (side.get(key) or None for side in (ours, theirs))
        if left != right:
            yield "", key, left, right
    left, right = ({column["name"]: {key: value for key, value in column.items() if key != "description"}
                    for column in side.get("additionalPrinterColumns", [])} for side in (ours, theirs))
    for name in [*left, *(name for name in right if name not in left)]:
        if left.get(name) != right.get(name):
            yield "", f"column {name}", left.get(name), right.get(name)
    shared = [[name for name in side if name in left and name in right] for side in (left, right)]
    if shared[0] != shared[1]:
        yield "", "order of columns", *shared


def differences(ours, theirs):
    """Every difference as a line."""
    for name in sorted(ours.keys() | theirs.keys()):
        left, right = ours.get(name), theirs.get(name)
        if left is None or right is None:
            yield line(name, "", "kind", *("there" if side else None for side in (left, right)))
            continue
        kind = f"{left['names']['kind']}.{left['group']}"
        for key in ("scope", "group"):
            if left[key] != right[key]:
                yield line(kind, "", key, left[key], right[key])
        names = [{"listKind": side["names"]["kind"] + "List", **side["names"]} for side in (left, right)]
        for key in sorted(names[0].keys() | names[1].keys()):
            values = [sorted(side[key]) if isinstance(side.get(key), list) else side.get(key) for side in names]
            if values[0] != values[1]:
                yield line(kind, "", key, *values)
        served = [{version["name"]: version for version in side["versions"] if version["served"]} for side in (left, right)]
        for version in sorted(served[0].keys() | served[1].keys()):
            where, sides = f"{kind}/{version}", [side.get(version) for side in served]
            if None in sides:
                yield line(where, "", "version", *("there" if side else None for side in sides))
                continue
            for found in [*versions(*sides), *schemas(*(side["schema"]["openAPIV3Schema"] for side in sides))]:
                yield line(where, *found)


def line(where, path, what, ours, theirs):
    ours, theirs = ("none" if value is None else value if value == "there" else json.dumps(value, sort_keys=True, ensure_ascii=False)
                    for value in (ours, theirs))
    return f"{' '.join(filter(None, (where, path, what)))}: {ours}, theirs {theirs}"


def check(found):
    """Every line must be found by an entry, and every entry must find as many lines as it says."""
    entries = tomllib.loads(ACCEPTED.read_text())["difference"]
    patterns = [(number, re.compile(pattern)) for number, entry in enumerate(entries) for pattern in entry["lines"]]
    used, counts, wrong = set(), Counter(), []
    for text in found:
        hit = next(((number, pattern) for number, pattern in patterns if pattern.search(text)), None)
        if hit is None:
            wrong.append(f"not accepted: {text}")
            continue
        used.add(hit)
        counts[hit[0]] += 1
    wrong += [f"{ACCEPTED.name}: finds no difference any more: {hit[1].pattern}" for hit in patterns if hit not in used]
    # Else what comes new would hide behind a pattern that was made for something else.
    wrong += [f"{ACCEPTED.name}: {counts[number]} differences, not {entry['count']}: {entry['reason']}"
              for number, entry in enumerate(entries) if counts[number] != entry["count"]]
    if wrong:
        print("\n".join(wrong))
        raise LabError(f"{len(wrong)} faults: our definitions and upstream's differ otherwise than {ACCEPTED.name} says")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--git", action="append", default=[], metavar="MODULE=FOLDER")
    parser.add_argument("what", choices=["check", "list"])
    parser.add_argument("pattern", nargs="*")
    options = parser.parse_args()
    repositories = dict(pair.split("=", 1) for pair in options.git if "=" in pair)
    if len(repositories) != len(options.git) or not repositories.keys() <= {module for module, _, _ in MODULES}:
        parser.error(f"--git is MODULE=FOLDER, with one of {', '.join(module for module, _, _ in MODULES)}")
    ours = {name: one["spec"] for name, one in json.loads(OURS.read_text()).items() if one["spec"]["group"] != OWN_GROUP}
    found = list(differences(ours, published(repositories)))
    if options.what == "list":
        print("\n".join(text for text in found if all(re.search(pattern, text) for pattern in options.pattern)))
        return
    check(found)
    say(f"{len(ours)} kinds are as published, but for {len(found)} differences with a reason")


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        fail(error)
