"""Renders jobs with `brigade submit` and checks them against the CustomResourceDefinitions of a cluster, and against Vertex AI's
discovery document.

Run by `cargo xtask check-manifests`. A field that a definition does not list is an error here, as it is to `kubectl`, which
validates strictly; rules in CEL (`x-kubernetes-validations`) are not evaluated. Discovery documents do not say which fields are needed.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import jsonschema
import yaml

# Lists with one line each, in JSON: the tests of the command render the same jobs.
SYSTEMS = ["jobset", "trainjob", "pytorchjob"]
NODES = ["1", "4"]
GPUS = [["--gpus", "8", "--gpu-kind", "h100-80gb"], ["--gpus", "4", "--gpu-kind", "l4"], ["--gpus", "0"]]
COMMON = ["--image", "registry/brigade:1", "--env", "NAME=value"]
OPTIONS = ["--namespace", "team", "--service-account", "trainer", "--volume", "data:/data"]
COMMAND = ["train", "--out", "/data/run", "--zero", "3", "--global-batch-size", "256"]
VERTEX_GPUS = [["--gpus", "8", "--gpu-kind", "h100-80gb"], ["--gpus", "4", "--gpu-kind", "l4"], ["--gpus", "0", "--machine-type", "n1-standard-16"]]
VERTEX_OPTIONS = ["--region", "europe-west4", "--token-file", "gs://bucket/token", "--service-account", "trainer@team.iam.gserviceaccount.com", "--time", "2-0", "--spot"]
VERTEX_COMMAND = ["train", "--out", "gs://bucket/run", "--zero", "3", "--global-batch-size", "256"]

CUSTOM_JOB_SPEC = "GoogleCloudAiplatformV1CustomJobSpec"


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


def documents(file):
    """What is in a file of JSON or YAML; YAML's reader would take minutes for a large one of JSON."""
    text = file.read_text()
    try:
        return [json.loads(text)]
    except ValueError:
        return list(yaml.safe_load_all(text))


def of_discovery(schema):
    """A schema of a discovery document as one of JSON Schema, in which fields that are not listed are errors."""
    if "$ref" in schema:
        return {"$ref": f"#/definitions/{schema['$ref']}"}
    made = {}
    if schema.get("type", "any") != "any":
        made["type"] = schema["type"]
    if "enum" in schema:
        made["enum"] = schema["enum"]
    if schema.get("type") == "string" and schema.get("format") in ("int64", "uint64"):
        made["pattern"] = "^-?[0-9]+$"
    if schema.get("format") == "google-duration":
        made["pattern"] = r"^-?[0-9]+(\.[0-9]+)?s$"
    if "items" in schema:
        made["items"] = of_discovery(schema["items"])
    if schema.get("type") == "object":
        made["properties"] = {name: of_discovery(field) for name, field in schema.get("properties", {}).items()}
        others = schema.get("additionalProperties")
        made["additionalProperties"] = of_discovery(others) if others else False
    return made


def schemas(files):
    """The schemas of objects by their API's version and kind, and that of Vertex AI's jobs by its name."""
    found = {}
    for file in files:
        before = len(found)
        for document in filter(None, documents(file)):
            if CUSTOM_JOB_SPEC in document.get("schemas", {}):
                definitions = {name: of_discovery(schema) for name, schema in document["schemas"].items()}
                found[CUSTOM_JOB_SPEC] = {"$ref": f"#/definitions/{CUSTOM_JOB_SPEC}", "definitions": definitions}
            if document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                strict(schema)
                # The definition leaves it to Kubernetes.
                schema["properties"]["metadata"] = {"type": "object"}
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
        if len(found) == before:
            sys.exit(f"{file} has neither a CustomResourceDefinition nor {CUSTOM_JOB_SPEC} of Vertex AI's discovery document")
    return found


def problems(schemas, item):
    if "workerPoolSpecs" in item:
        return wrong(schemas[CUSTOM_JOB_SPEC], "CustomJobSpec", item)
    if item["kind"] == "List":
        return [problem for inner in item["items"] for problem in problems(schemas, inner)]
    name = item["apiVersion"], item["kind"]
    if name not in schemas:
        return [f"{' '.join(name)}: no definition was given"]
    return wrong(schemas[name], item["kind"], item)


def wrong(schema, kind, item):
    errors = jsonschema.Draft7Validator(schema).iter_errors(item)
    return [f"{kind} {'/'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def jobs(known):
    """The words that render each job, for the systems whose definitions were given."""
    if any(name != CUSTOM_JOB_SPEC for name in known):
        for system, gpus, nodes in itertools.product(SYSTEMS, GPUS, NODES):
            yield ["--to", system, "--nodes", nodes, *gpus, *COMMON, *OPTIONS], COMMAND
    if CUSTOM_JOB_SPEC in known:
        for gpus, nodes in itertools.product(VERTEX_GPUS, NODES):
            yield ["--to", "vertex", "--nodes", nodes, *gpus, *COMMON, *VERTEX_OPTIONS], VERTEX_COMMAND


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brigade", type=pathlib.Path, required=True)
    parser.add_argument("definitions", type=pathlib.Path, nargs="+")
    args = parser.parse_args()
    brigade = args.brigade.resolve()
    known = schemas(args.definitions)
    refused = checked = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (options, command) in enumerate(jobs(known)):
            out = pathlib.Path(folder) / str(number)
            line = [brigade, "submit", *options, "--render", out, "--", *command]
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            for file in sorted(out.rglob("*.json")) + sorted(out.rglob("*.yaml")):
                for document in filter(None, documents(file)):
                    found = problems(known, document)
                    checked += 1
                    refused += bool(found)
                    for problem in found:
                        print(f"{' '.join(options)}: {problem}")
    print(f"{checked} manifests, {refused} of which a cluster would refuse")
    sys.exit(refused > 0 or checked == 0)


if __name__ == "__main__":
    main()
