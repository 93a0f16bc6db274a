# Keeps the facts of a run's nodes in its folder, and of what nodes say nothing but facts.
#
# A result of a module may call anything a fact, and Ansible lets facts go before the inventory and before defaults of roles. So a node could
# decide what a playbook does on the appliance, by the name of a variable that a task there is made of. Kept is what `setup` and the modules
# of services and packages find out, and what the checkout itself says is to be kept (set_fact with `cacheable`). Names that begin as facts do
# and are settings of Ansible's own (of its connections, above all) are no facts.
import os
import re

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.executor import task_executor
from ansible.plugins.cache.jsonfile import CacheModule as JsonFile
from ansible.plugins.loader import become_loader, connection_loader, shell_loader
from ansible.vars import manager

DOCUMENTATION = """
name: slipway_facts
short_description: facts of a run's nodes for Slipway
description: Keeps facts as files of JSON, and drops what nodes call facts and is none.
options:
  _uri:
    required: true
    description: Folder of the files
    env: [{name: ANSIBLE_CACHE_PLUGIN_CONNECTION}]
    type: path
  _prefix:
    description: What names of files begin with
    env: [{name: ANSIBLE_CACHE_PLUGIN_PREFIX}]
  _timeout:
    default: 0
    description: Seconds that facts hold; 0 is as long as the run lasts
    env: [{name: ANSIBLE_CACHE_PLUGIN_TIMEOUT}]
    type: integer
"""

# What Ansible and its modules find out beside names that begin with "ansible_".
OF_MODULES = {"discovered_interpreter_python", "gather_subset", "module_setup", "packages", "services"}
# Files of a checkout that are looked through, and bytes of each.
FILES_MAX, FILE_MAX = 20_000, 1 << 20
CACHEABLE = re.compile(r"^( +)cacheable: *(?:true|yes)\b", re.IGNORECASE | re.MULTILINE)
NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):")


def settings():
    """Variables that set Ansible itself, or a plugin by which hosts are reached."""
    defined = [C.config.get_configuration_definitions()]
    for kind, loader in (("connection", connection_loader), ("shell", shell_loader), ("become", become_loader)):
        for plugin in loader.all(class_only=True):
            defined.append(C.config.get_configuration_definitions(kind, plugin._load_name))
    variables = (option.get("vars") or [] for options in defined for option in options.values())
    named = {variable["name"] for some in variables for variable in some}
    return named.union(*C.MAGIC_VARIABLE_MAPPING.values())


def of_text(text):
    """The names that tasks of a file set to be kept: those beside `cacheable`, at its depth."""
    lines = text.splitlines()
    found = set()
    for at, line in enumerate(lines):
        mark = CACHEABLE.match(line)
        if not mark:
            continue
        depth = len(mark[1])
        for beside in (range(at - 1, -1, -1), range(at + 1, len(lines))):
            for other in beside:
                text = lines[other]
                begins = len(text) - len(text.lstrip())
                if text.strip() and not text.lstrip().startswith("#"):
                    if begins < depth:
                        break
                    if begins == depth and (name := NAME.match(text.lstrip())):
                        found.add(name[1])
    return found - {"cacheable"}


def of_checkout(folder):
    """The names that a checkout's tasks set to be kept."""
    found, seen = set(), 0
    for top, _, names in os.walk(os.path.join(folder, "roles")):
        for name in names:
            if not name.endswith((".yml", ".yaml")) or os.path.basename(top) != "tasks":
                continue
            seen += 1
            if seen > FILES_MAX:
                return found
            with open(os.path.join(top, name), encoding="utf-8", errors="replace") as file:
                text = file.read(FILE_MAX)
            if "cacheable" in text:
                found |= of_text(text)
    return found


class CacheModule(JsonFile):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._kept = OF_MODULES | of_checkout(os.path.dirname(os.environ["ANSIBLE_CONFIG"]))
        self._settings = settings()
        # The items of a loop that come after one are given its facts, without a cache.
        for module in (task_executor, manager):
            if not hasattr(module, "clean_facts"):
                raise AnsibleError("slipway_facts does not know this version of Ansible: facts of nodes would be any variables")
            module.clean_facts = self._only_facts(module.clean_facts)

    def _only_facts(self, clean):
        def cleaned(facts):
            return {name: fact for name, fact in clean(facts).items() if self._is_kept(name)}

        return cleaned

    def _is_kept(self, name):
        return name in self._kept or (str(name).startswith("ansible_") and name not in self._settings)

    def set(self, key, value):
        super().set(key, {name: fact for name, fact in value.items() if self._is_kept(name)})
