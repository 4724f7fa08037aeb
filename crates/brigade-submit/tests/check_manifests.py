"""Renders jobs with `brigade submit` and checks them against the CustomResourceDefinitions of a cluster.

Run by `cargo xtask check-manifests`. A field that a definition does not list is an error here, as it is to `kubectl`, which
validates strictly; rules in CEL (`x-kubernetes-validations`) are not evaluated.
"""

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile

import jsonschema
import yaml

SYSTEMS = ["jobset", "trainjob", "pytorchjob"]
GPUS = [["--gpus", "8", "--gpu-kind", "h100-80gb"], ["--gpus", "4", "--gpu-kind", "l4"], ["--gpus", "0"]]
NODES = ["1", "4"]
COMMON = ["--image", "registry/brigade:1", "--namespace", "team", "--service-account", "trainer", "--env", "NAME=value"]
COMMAND = ["--volume", "data:/data", "--", "train", "--out", "/data/run", "--zero", "3"]


def strict(schema):
    """Makes fields that are not listed errors, and understands what JSON Schema does not know."""
    if isinstance(schema, list):
        for part in schema:
            strict(part)
    if not isinstance(schema, dict):
        return
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    for part in list(schema.values()):
        strict(part)


def schemas(files):
    found = {}
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            if not document or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                strict(schema)
                # The definition leaves it to Kubernetes.
                schema["properties"]["metadata"] = {"type": "object"}
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def problems(schemas, item):
    if item["kind"] == "List":
        return [problem for inner in item["items"] for problem in problems(schemas, inner)]
    name = item["apiVersion"], item["kind"]
    if name not in schemas:
        return [f"{' '.join(name)}: no definition was given"]
    errors = jsonschema.Draft7Validator(schemas[name]).iter_errors(item)
    return [f"{item['kind']} {'/'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brigade", type=pathlib.Path, required=True)
    parser.add_argument("definitions", type=pathlib.Path, nargs="+")
    args = parser.parse_args()
    brigade = args.brigade.resolve()
    known = schemas(args.definitions)
    wrong = checked = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (system, gpus, nodes) in enumerate(itertools.product(SYSTEMS, GPUS, NODES)):
            out = pathlib.Path(folder) / str(number)
            line = [brigade, "submit", "--to", system, "--nodes", nodes, *gpus, *COMMON, "--render", out, *COMMAND]
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            for file in sorted(out.rglob("*.json")) + sorted(out.rglob("*.yaml")):
                for document in filter(None, yaml.safe_load_all(file.read_text())):
                    found = problems(known, document)
                    checked += 1
                    wrong += bool(found)
                    for problem in found:
                        print(f"{system}, {nodes} nodes, {' '.join(gpus)}: {problem}")
    print(f"{checked} manifests, {wrong} of which a cluster would refuse")
    sys.exit(wrong > 0 or checked == 0)


if __name__ == "__main__":
    main()
