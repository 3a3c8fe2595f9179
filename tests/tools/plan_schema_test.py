#!/usr/bin/env python3
"""The JSON Schema of pipeline plans agrees with the reader in C++.

Properties: the schema is valid, every object refuses unknown fields, and every field is described; good plans are
accepted with and without the fields that have defaults, and so is the plan in pipeline/README.md; a bad plan is
refused if its entry in expected.json says so.

Usage: plan_schema_test.py ROOT_OF_THE_TREE [unittest options]
"""

import json
import sys
import unittest
from pathlib import Path

try:
    from jsonschema import Draft202012Validator
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = Path()


def read_json(text):
    """The document, or None if |text| is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def objects_of(schema, path=""):
    """Every subschema with properties, and its path."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield path, schema
        for name, each in schema.items():
            yield from objects_of(each, f"{path}/{name}")
    elif isinstance(schema, list):
        for i, each in enumerate(schema):
            yield from objects_of(each, f"{path}/{i}")


class Schema(unittest.TestCase):
    def setUp(self):
        self.plans = ROOT / "tests/unit/pipeline/plans"
        self.schema = json.loads((ROOT / "pipeline/plan/plan.schema.json").read_text())
        self.validator = Draft202012Validator(self.schema)

    def faults(self, document):
        return [f"{fault.json_path}: {fault.message}" for fault in self.validator.iter_errors(document)]

    def test_schema_is_valid(self):
        Draft202012Validator.check_schema(self.schema)

    def test_every_object_is_closed_and_every_field_described(self):
        count = 0
        for path, schema in objects_of(self.schema):
            self.assertIs(schema.get("additionalProperties"), False, path)
            self.assertLessEqual(set(schema.get("required", [])), set(schema["properties"]), path)
            for name, field in schema["properties"].items():
                with self.subTest(f"{path}/{name}"):
                    field = {**self.schema["$defs"].get(field.get("$ref", "").split("/")[-1], {}), **field}
                    self.assertTrue(field.get("title"))
                    self.assertRegex(field.get("description", ""), r"^[A-Z].*\.$")
                    count += 1
        self.assertGreater(count, 50)

    def test_good_plans_are_accepted(self):
        plans = sorted((self.plans / "good").glob("*.json"))
        self.assertGreaterEqual(len(plans), 10)
        for path in plans:
            with self.subTest(path.name):
                self.assertEqual(self.faults(json.loads(path.read_text(encoding="utf-8"))), [])

    def test_fields_with_defaults_can_be_omitted(self):
        def without_defaults(value, schema):
            if "$ref" in schema:
                return without_defaults(value, self.schema["$defs"][schema["$ref"].split("/")[-1]])
            if "oneOf" in schema:
                schema = next(each for each in schema["oneOf"] if set(each["required"]) <= set(value))
            if isinstance(value, list):
                return [without_defaults(each, schema.get("items", {})) for each in value]
            if isinstance(value, dict):
                return {name: without_defaults(each, schema["properties"][name])
                        for name, each in value.items() if name in schema.get("required", ())}
            return value

        for path in (self.plans / "good").glob("*.json"):
            with self.subTest(path.name):
                plan = without_defaults(json.loads(path.read_text(encoding="utf-8")), self.schema)
                self.assertEqual(self.faults(plan), [])

    def test_plan_in_the_readme_is_accepted(self):
        blocks = (ROOT / "pipeline/README.md").read_text(encoding="utf-8").split("```json\n")[1:]
        plans = [json.loads(block.split("```")[0]) for block in blocks]
        plans = [plan for plan in plans
                 if isinstance(plan, dict) and plan.get("format") == "hetcomm pipeline plan"]
        self.assertEqual(len(plans), 1)
        self.assertEqual(self.faults(plans[0]), [])

    def test_schema_refuses_the_bad_plans_it_can_detect(self):
        expected = json.loads((self.plans / "bad/expected.json").read_text())
        self.assertGreaterEqual(len(expected), 30)
        for name, entry in expected.items():
            with self.subTest(name):
                document = read_json((self.plans / "bad" / name).read_text(encoding="utf-8"))
                self.assertEqual(document is None, entry["refused_by"] == "syntax")
                is_refused = document is None or self.faults(document) != []
                self.assertEqual(is_refused, entry["refused_by_schema"])


if __name__ == "__main__":
    ROOT = Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
