# Writes what Ansible does as one line of JSON for each event, to the file that SLIPWAY_EVENTS names.
#
# Short on purpose: no output of modules is in it but the message of what failed, without known secrets, and shortened. The file
# is bounded; beyond it results that are good are left out, and at twice of it everything.
import json
import os

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: slipway_events
type: notification
short_description: events of a playbook for Slipway
description: Writes one line of JSON for each play, task, result of a host and its sums.
requirements: [enabled by ANSIBLE_CALLBACKS_ENABLED]
"""

NAME_MAX = 200
MESSAGE_MAX = 1000
FILE_MAX = 24 << 20
# Shorter ones would be found in everything.
SECRET_MIN = 6


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "slipway_events"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._secrets = []
        try:
            with open(os.environ["SLIPWAY_SECRETS"], encoding="utf-8") as file:
                secrets = {line for secret in json.load(file) for line in secret.splitlines()}
            self._secrets = sorted((line for line in secrets if len(line) >= SECRET_MIN), key=len, reverse=True)
        except (KeyError, OSError, ValueError) as error:
            # Without knowing them nothing is told of messages.
            self._secrets = None
            self._display.warning("secrets are not known, so no messages are noted: %s" % error)
        path = os.environ.get("SLIPWAY_EVENTS")
        self.disabled = path is None
        if path is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
            self._size = os.fstat(self._file).st_size

    def _text(self, value, most):
        text = str(value)
        for secret in self._secrets or ():
            text = text.replace(secret, "***")
        return text[:most]

    def _tell(self, event, needed=True, **fields):
        if self._size > FILE_MAX * (2 if needed else 1):
            return
        line = (json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n").encode()
        try:
            # One write, so that a line is whole or not there.
            self._size += os.write(self._file, line)
        except OSError as error:
            self.disabled = True
            self._display.warning("cannot write events: %s" % error)

    def _message(self, result):
        fields = result._result
        if self._secrets is None or getattr(result._task, "no_log", False) is True or fields.get("_ansible_no_log") or "censored" in fields:
            return "(hidden by no_log)"
        for item in fields.get("results") or ():
            if isinstance(item, dict) and (item.get("failed") or item.get("unreachable")):
                if item.get("_ansible_no_log") or "censored" in item:
                    return "(hidden by no_log)"
                fields = item
                break
        said = [fields.get(key) for key in ("msg", "stderr", "module_stderr", "exception")]
        said = [value.strip() for value in said if isinstance(value, str) and value.strip()]
        # "non-zero return code" alone tells nothing. Of a program's output the end says why.
        return ": ".join([self._text(said[0], MESSAGE_MAX // 2), *(self._text(value, 1 << 20)[-MESSAGE_MAX // 2:] for value in said[1:2])]) if said else ""

    def _host(self, result, outcome, needed=False, **fields):
        self._tell("host", needed, host=result._host.get_name()[:NAME_MAX], result=outcome, **fields)

    def v2_playbook_on_start(self, playbook):
        self._tell("start", plays=len(playbook.get_plays()))

    def v2_playbook_on_play_start(self, play):
        self._tell("play", name=self._text(play.get_name(), NAME_MAX))

    def v2_playbook_on_task_start(self, task, is_conditional):
        self._tell("task", name=self._text(task.get_name(), NAME_MAX))

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result):
        self._host(result, "changed" if result._result.get("changed", False) else "ok")

    def v2_runner_on_skipped(self, result):
        self._host(result, "skipped")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        task = self._text(result._task.get_name(), NAME_MAX)
        self._host(result, "ignored" if ignore_errors else "failed", True, task=task, message=self._message(result))

    def v2_runner_on_unreachable(self, result):
        task = self._text(result._task.get_name(), NAME_MAX)
        self._host(result, "unreachable", True, task=task, message=self._message(result))

    def v2_playbook_on_no_hosts_matched(self):
        self._tell("no-hosts")

    def v2_playbook_on_stats(self, stats):
        for host in sorted(stats.processed):
            sums = stats.summarize(host)
            self._tell("sums", host=host[:NAME_MAX], **{key: int(value) for key, value in sums.items()})
        self._tell("end", hosts=len(stats.processed))
