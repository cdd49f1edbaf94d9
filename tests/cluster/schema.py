"""Check output of programs against docs/reference/status.schema.json."""

import copy
import json

import pytest

from cluster import ROOT

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = json.loads((ROOT / "docs" / "reference" / "status.schema.json").read_text())


def closed(x):
    """Return a schema that allows only documented fields."""
    if isinstance(x, list):
        return [closed(v) for v in x]
    if not isinstance(x, dict):
        return x
    x = {k: closed(v) for k, v in x.items()}
    if x.get("type") == "object" and "properties" in x:
        x["additionalProperties"] = False
    return x


STRICT = closed(copy.deepcopy(SCHEMA))


def validate(document, name):
    schema = dict(STRICT, **{"$ref": f"#/$defs/{name}"})
    del schema["anyOf"]
    jsonschema.Draft202012Validator(schema).validate(document)
