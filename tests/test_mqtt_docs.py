"""What docs/mqtt.md promises to dashboards is in the messages."""

from __future__ import annotations

import json
import re
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

from probes import topics
from tests.synthetic import whole_race

DOCS = (Path(__file__).parent.parent / "docs" / "mqtt.md").read_text("utf-8")
SAID = {
    topics.topic("lab", "0123abcd", event.engine, topics.kind_of(event)): json.loads(topics.pack(event, json=True))
    for event in whole_race(prompt_tokens=40, new_tokens=5)
}


def found(message: Any, path: str) -> Any:
    return reduce(lambda inner, key: inner[key], path.split("."), message)


def test_the_telegraf_configuration_names_topics_and_fields_that_there_are() -> None:
    (written,) = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    inputs = tomllib.loads(written)["inputs"]["mqtt_consumer"]
    assert len(inputs) == 2
    for consumer in inputs:
        (pattern,) = consumer["topics"]
        matching = [m for name, m in SAID.items() if re.fullmatch(pattern.replace("+", "[^/]+"), name)]
        assert len(matching) == 3
        (parser,) = consumer["json_v2"]
        for message in matching:
            assert all(isinstance(found(message, field["path"]), int) for field in parser["field"])
        assert all(isinstance(found(m, tag["path"]), str) for m in matching for tag in parser["tag"])


def test_every_kind_is_listed() -> None:
    listed = set(re.findall(r"`([a-z_]+)`", next(line for line in DOCS.splitlines() if line.startswith("| `KIND`"))))
    assert listed == set(topics.KINDS)


def test_the_other_fields_are_there_too() -> None:
    memory = SAID["lab/0123abcd/h2o/memory"]
    outcome = SAID["lab/0123abcd/h2o/outcome"]
    assert isinstance(memory["device_kv_peak_bytes"], int)
    assert isinstance(memory["device_bytes"]["kv"], int)
    assert isinstance(outcome["tpot_s"], float)


def test_the_node_red_flow_listens_to_what_is_said() -> None:
    flow = {node["id"]: node for node in json.loads((Path(__file__).parent.parent / "docs/node-red.json").read_text())}
    pattern = flow["kvtui-in"]["topic"].replace("+", "[^/]+")
    heard = [message for name, message in SAID.items() if re.fullmatch(pattern, name)]
    assert len(heard) == 3
    assert set(re.findall(r"msg\.payload\.([a-z_]+)", flow["kvtui-kv"]["func"])) == {"engine", "device_bytes"}
    assert all(isinstance(message["device_bytes"], dict) and message["engine"] for message in heard)
    assert all(target in flow for node in flow.values() for wires in node.get("wires", []) for target in wires)
