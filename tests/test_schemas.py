"""test_schemas.py WALK - JSON schemas against jsonschema: what is written is valid, what is valid is taken.

For each of some 250 schemas the program WALK (tests/walk/walk.c) makes random answers by the masks;
each must parse and be valid. Instances made here from the schema must be taken. Runs in the
environment that tools/setup.sh makes (build/venv-test)."""
import json, random, subprocess, sys

import suite

suite.use_venv()
results = suite.Results()
try:
    import jsonschema
except ImportError:
    results.skip("test_schemas", "jsonschema is not installed")
    sys.exit(results.end())

rng = random.Random(7)
S, I, N, B = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}

# ---- schemas ------------------------------------------------------------------------------------


def obj(required=None, **properties):
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    schema["required"] = list(properties) if required is None else required
    return schema


def arr(items, **more):
    return {"type": "array", "items": items, **more}


def by_hand():
    address = obj(["street", "city"], street=S, city=S, zip={"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"})
    node = {"$ref": "#/$defs/node"}
    yield obj(name=S, age={"type": "integer", "minimum": 0, "maximum": 150})
    yield obj(["id"], id={"type": "string", "format": "uuid"}, created={"type": "string", "format": "date-time"},
              tags=arr(S, maxItems=5), score={"type": "number", "minimum": 0, "maximum": 1})
    yield {"$defs": {"node": obj(["value"], value=I, children=arr(node))}, **node}
    yield {"$defs": {"node": obj(["value"], value=I, next={"anyOf": [node, {"type": "null"}]})}, **node}
    yield {"$defs": {"address": address}, **obj(home={"$ref": "#/$defs/address"}, work={"$ref": "#/$defs/address", "description": "x"})}
    yield obj(kind={"enum": ["cat", "dog", "caterpillar", "do", "\u00e9t\u00e9", "a\"b\\c\n"]}, n={"const": 42})
    yield {"oneOf": [obj(type={"const": "circle"}, r=N), obj(type={"const": "square"}, side=N)]}
    yield {"oneOf": [S, I, {"type": "null"}]}
    yield {"oneOf": [{"type": "object", "properties": {"a": I}, "required": ["a"]},
                     {"type": "object", "properties": {"b": I}, "required": ["b"]}]}
    yield {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 4}]}
    yield {"anyOf": [{"type": "integer", "minimum": 100}, {"type": "string", "maxLength": 3}, B]}
    yield {"type": ["string", "null"]}
    yield {"type": ["integer", "array"], "items": B, "maximum": 9, "maxItems": 2}
    yield {"type": "object", "properties": {"a": I}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    yield {"allOf": [{"type": "object", "properties": {"a": I}, "required": ["a"]}, {"type": "object", "properties": {"b": S}, "required": ["b"]}]}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]}
    yield {"allOf": [{"enum": [1, 2, 3, "x"]}, {"type": "integer"}, {"minimum": 2}]}
    yield {"type": "object", "additionalProperties": I}
    yield {"type": "object", "properties": {"na": S, "name": I, "n": B}, "additionalProperties": N}
    yield {"type": "object", "properties": {"id": I}, "required": ["id", "extra"], "additionalProperties": True}
    yield {"type": "object", "patternProperties": {"^[a-z]{2,4}_id$": I}, "additionalProperties": False}
    yield {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": N, "minProperties": 1, "maxProperties": 2}
    yield {"type": "object"}
    yield {"type": "array"}
    yield {}
    yield True
    yield {"type": "array", "prefixItems": [I, S, B], "items": False}
    yield {"type": "array", "prefixItems": [I, S], "minItems": 2, "maxItems": 4, "items": B}
    yield {"type": "array", "prefixItems": [I], "minItems": 2}
    yield obj(["b"], a={"const": "x", "enum": ["y", 1]}, b={"const": 1, "enum": ["y", 1.0]})
    yield {"allOf": [{"type": "string", "nullable": True, "maxLength": 3}, {"type": "string"}]}  # both allow null, or it is not
    yield {"allOf": [{"nullable": True}, {"type": "integer"}]}
    yield {"type": ["object", "string"], "maxProperties": 1, "minProperties": 1, "enum": [{}, {"a": 1}, {"a": 1, "b": 2}, "x"]}
    # additionalProperties hold for all that no property and pattern of their own names, also for another schema's patterns
    yield {"allOf": [{"type": "object", "additionalProperties": I}, {"type": "object", "patternProperties": {"^a": {"type": ["string", "integer"]}}, "minProperties": 1, "additionalProperties": False}]}
    yield {"allOf": [{"type": "object", "patternProperties": {"^a": I}, "additionalProperties": S}, {"type": "object", "properties": {}, "additionalProperties": False}]}
    # items hold for all that their own prefixItems do not name, also for what another schema's name
    yield {"allOf": [{"type": "array", "prefixItems": [{}, {"type": ["integer", "string"]}]}, arr({"enum": [1, "a"]}, minItems=2, maxItems=2)]}
    yield {"type": "array", "prefixItems": [{"type": ["boolean", "string"]}], "minItems": 2, "items": {}, "anyOf": [arr(S, maxItems=3), S]}
    yield {"allOf": [{"type": "array", "prefixItems": [I], "items": S}, {"type": "array", "prefixItems": [{"minimum": 3}, {"maxLength": 2}, {"maxLength": 1}], "items": False, "minItems": 3}]}
    yield {"allOf": [{"type": "array", "prefixItems": [I, S], "items": False}, {"type": "array", "prefixItems": [I], "items": {"type": ["string", "null"]}, "minItems": 1}]}
    # numbers that f64 does not tell apart; 1 and 1.0 inside of others; the stricter of two limits, and those of draft 4
    for low, high in ((9007199254740993, 9007199254740994), (9223372036854775806, 9223372036854775807)):
        yield {"allOf": [{"enum": [low, high]}, {"minimum": high}]}
        yield {"allOf": [{"enum": [low, high, 1]}, {"enum": [high]}]}
    yield {"allOf": [{"type": "integer", "minimum": 9007199254740993}, {"minimum": 9007199254740992, "maximum": 9007199254740994}]}
    yield {"allOf": [{"enum": [[1], {"a": [1, 2]}, [True]]}, {"enum": [[1.0], {"a": [1.0, 2.0]}, [1]]}]}
    yield {"type": "integer", "minimum": 100, "exclusiveMinimum": 0, "maximum": 101}
    yield {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 5, "exclusiveMinimum": True, "enum": [5, 6]}
    yield {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer",
           "oneOf": [{"maximum": 100}, {"minimum": 100, "exclusiveMinimum": True, "maximum": 110, "exclusiveMaximum": False}]}
    yield arr({"enum": [1.5, -2, 0, 1e6, None, True, [1, {"a": 2}]]}, minItems=1, maxItems=3)
    yield arr(arr(arr(I, maxItems=2), maxItems=2), minItems=1, maxItems=2)
    yield arr(I, minItems=3)
    yield arr(I, minItems=20, maxItems=25)
    yield obj([], a=I, b=I, c=I, d=I)
    yield obj(["c"], a=I, b=I, c=I, d=I)
    yield {**obj([], a=I, b=I), "minProperties": 1}
    yield {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 50}
    yield {"type": "integer", "multipleOf": 100}
    yield {"type": "integer", "multipleOf": 5}
    yield obj(**{f"property_number_{i}": [S, I, B, N][i % 4] for i in range(40)})
    yield obj([], **{f"p{i}": [S, I, B, N][i % 4] for i in range(60)})
    # many numbers once were refused; required ones between optional ones; others after them
    yield obj(**{f"p{i}": I for i in range(90)})
    yield obj([f"p{i}" for i in range(0, 150, 20)], **{f"p{i}": [I, N][i % 2] for i in range(150)})
    yield obj([], **{f"p{i}": {"type": "integer", "minimum": i, "maximum": 10**9 + i} for i in range(200)})
    yield {**obj([], a=I, b=S, c=I), "minProperties": 1}
    for required in ([], ["a"], ["b"], ["c"], ["a", "c"]):
        yield {**obj(required, a=I, b=I, c=I), "additionalProperties": I}
    yield {"enum": [f"country-{i:03}" for i in range(300)]}
    yield {"type": "string", "enum": [f"{i * 7919 % 20011:05}" for i in range(20000)]}
    yield obj(text={"type": "string", "minLength": 10, "maxLength": 40})
    yield obj(text={"type": "string", "minLength": 100})
    yield {"type": "string", "minLength": 3, "maxLength": 3}
    # a function's arguments, and other things people send
    yield obj(["location"], location={"type": "string", "description": "City, e.g. Paris"}, unit={"type": "string", "enum": ["celsius", "fahrenheit"]})
    yield obj(query=S, limit={"type": "integer", "minimum": 1, "maximum": 100, "default": 10}, filters=arr(obj(field=S, op={"enum": ["=", "<", ">"]}, value={"anyOf": [S, N, B]})))
    yield obj(invoice=obj(number={"type": "string", "pattern": "^INV-\\d{6}$"}, date={"type": "string", "format": "date"},
              lines=arr(obj(sku={"type": "string", "pattern": "^[A-Z]{3}[0-9]{3,8}$"}, qty={"type": "integer", "exclusiveMinimum": 0}, price={"type": "number", "minimum": 0}), minItems=1, maxItems=4)))
    yield {"title": "Steps", "$defs": {"Step": obj(explanation=S, output=S)}, **obj(steps=arr({"$ref": "#/$defs/Step"}), final_answer=S)}
    yield {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/x", "type": "object",
           "properties": {"latitude": {"type": "number", "minimum": -90, "maximum": 90}, "longitude": {"type": "number", "minimum": -180, "maximum": 180}}, "required": ["latitude", "longitude"]}
    yield {"definitions": {"n": {"type": "integer", "minimum": 1}}, "type": "object", "properties": {"x": {"allOf": [{"$ref": "#/definitions/n"}], "title": "t"}}, "required": ["x"]}
    yield {"$defs": {"expr": {"anyOf": [N, obj(op={"enum": ["+", "*"]}, args=arr({"$ref": "#/$defs/expr"}, minItems=1, maxItems=2))]}}, "$ref": "#/$defs/expr"}


PATTERNS = ["^[a-z]+$", "^\\d{3}-\\d{4}$", "^(foo|bar)(baz)?$", "^[^\"\\s]{1,8}$", "^\\w+@\\w+\\.(com|org)$", "^#[0-9a-fA-F]{6}$",
            "^$|^x+$", "abc", "^a", "z$", "^[\\w.-]{2,20}$", "^\\S+$", "^v\\d+(\\.\\d+){0,2}$", "^[\u00e4\u00f6\u00fc\u20ac]+$",
            "^(?:[01]\\d|2[0-3]):[0-5]\\d$", "^\\+?[1-9]\\d{1,14}$", "^[A-Z][a-z]*( [A-Z][a-z]*)*$", "^\\\\\"$", "^.{2,5}$", "^\\D*\\W$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "uri", "duration", "json-pointer", "byte"]


def by_table():
    for p in PATTERNS:
        yield {"type": "string", "pattern": p}
    for f in FORMATS:
        yield obj(x={"type": "string", "format": f})
    for low, high in [(0, 0), (-1, 1), (5, 1234), (-999, -10), (99, 101), (-128, 127), (10, 99999), (0, 999), (7, 1000),
                      (-1000, 1000), (100, 100000), (1, 10**17 - 1), (1, None), (None, -1), (None, 77), (10**9, 10**12)]:
        for kind in ("integer", "number"):
            for open_ in (False, True):
                s = {"type": kind}
                if low is not None:
                    s["exclusiveMinimum" if open_ and low != high else "minimum"] = low
                if high is not None:
                    s["exclusiveMaximum" if open_ and low != high and high - (low or -9**9) > 1 else "maximum"] = high
                yield s
    for low, high in [(0.5, 0.75), (-0.25, 0.125), (0.1, 0.9), (-3.75, -1.5), (2.5, 1000.001), (0.001, None), (None, 99.95), (1e-3, 1e-2)]:
        for open_ in (False, True):
            s = {"type": "number"}
            if low is not None:
                s["exclusiveMinimum" if open_ else "minimum"] = low
            if high is not None:
                s["exclusiveMaximum" if open_ else "maximum"] = high
            yield s


def leaf():
    return rng.choice([S, I, N, B, {"type": "null"}, {"type": "string", "maxLength": rng.randint(1, 30)},
                       {"type": "string", "minLength": rng.randint(1, 4)}, {"enum": rng.sample(["red", "green", "blue", "re", 1, None], 3)},
                       {"type": "integer", "minimum": rng.randint(-50, 0), "maximum": rng.randint(1, 5000)},
                       {"type": "string", "format": rng.choice(FORMATS[:8])}, {"type": "string", "pattern": rng.choice(PATTERNS)},
                       {"type": ["string", "null"]}, {"const": rng.choice(["on", 7, False])}])


def generated(depth=0):
    kind = rng.random()
    if depth >= 3 or kind < 0.25:
        return leaf()
    if kind < 0.45:
        return arr(generated(depth + 1), minItems=rng.randint(0, 2), maxItems=rng.randint(2, 5))
    if kind < 0.55:
        return {"anyOf": [generated(depth + 1) for _ in range(rng.randint(2, 3))]}
    names = rng.sample(["id", "name", "items", "price", "price_unit", "na", "owner", "created-at", "x y", "\u00fcber", "data", "type"], rng.randint(1, 6))
    schema = obj([n for n in names if rng.random() < 0.6], **{n: generated(depth + 1) for n in names})
    if rng.random() < 0.2:
        schema["additionalProperties"] = leaf()
    return schema


REFUSED = {"not": {"not": {"type": "string"}}, "if": {"if": S, "then": S}, "uniqueItems": arr(I, uniqueItems=True), "contains": arr(I, contains=I),
           "dependentRequired": obj(a={"type": "object", "dependentRequired": {"x": ["y"]}}), "foo": {"foo": 1}, "format regex": {"type": "string", "format": "regex"},
           "oneOf": {"oneOf": [I, N]}, "alternatives 0 and 1": {"oneOf": [{"const": [1]}, {"const": [1.0]}]},
           "0 and 1, expected": {"oneOf": [{"type": "integer", "maximum": 100}, {"type": "integer", "minimum": 100, "exclusiveMinimum": 0}]},
           "oneOf: a value": {"oneOf": [{"type": "integer", "maximum": 100}, {"type": "integer", "minimum": 100, "exclusiveMinimum": False}]},
           "may be valid": {"type": "integer", "oneOf": [{"maximum": 9007199254740993}, {"exclusiveMinimum": 9007199254740992}]}, "multipleOf": {"type": "number", "multipleOf": 0.01}, "$ref": {"$ref": "https://example.com/x"},
           "leads to no schema": {"$ref": "#/$defs/none"}, "refers to itself": {"$ref": "#"}, "look ahead": {"type": "string", "pattern": "^(?=a)b$"},
           "maxLength": {"type": "string", "pattern": "^a+$", "maxLength": 5}, "a schema is an object": {"items": 5, "type": "array"}, "never ends": False,
           "enum or const beside propertyNames": {"enum": [{"k": 1}], "propertyNames": {"maxLength": 3}}, "enum or const beside patternProperties": {"const": {"a": 1}, "patternProperties": {"^a": S}},
           "more than 4000000 comparisons": {"allOf": [{"enum": list(range(3000))}, {"enum": list(range(5000, 8000))}]},
           "262144 instructions": {**{f"x-{i}": 1 for i in range(30000)}, **{"anyOf": [{"anyOf": [{"required": [f"p{i}"]} for i in range(64)], **{f"x-{i}": 1 for i in range(3000)}} for _ in range(64)]}},
           "more than 262144 instructions": {"enum": [f"{i:>40}"[::-1] for i in range(9000)]},
           "expressions take more than 48 MB": obj([], **{f"p{i}": {"type": "number", "minimum": -1.23456789, "maximum": 9876.54321} for i in range(3000)}),
           "more than 40000 schemas": {"allOf": [{"anyOf": [{"required": [f"p{i}{k}"]} for i in range(60)]} for k in range(4)]},
           "1 to 64 schemas": {"anyOf": [obj(**{f"k{i}": I}) for i in range(2000)]},
           "type is not one of": {"type": "text"}, "/properties/a/properties/b": obj(a=obj(b={"not": {}}))}

# ---- instances ----------------------------------------------------------------------------------


def instance(schema, root, depth=0):
    """A random valid value; None where this simple way finds none."""
    s = schema
    if s is True or s == {}:
        return rng.choice([1, "x", None, [1], {"a": {}}])
    if "$ref" in s:
        target = root
        for part in s["$ref"].split("/")[1:]:
            target = target[part]
        return instance(target, root, depth + 1)
    if "allOf" in s or "oneOf" in s:
        raise LookupError
    if "const" in s:
        return s["const"]
    if "enum" in s:
        value = rng.choice(s["enum"])
        return int(value) if isinstance(value, float) and value.is_integer() else value  # of 1e6, 1000000.0 and 1000000 the last is written
    if "anyOf" in s:
        if "properties" in s:
            raise LookupError
        return instance(s["anyOf"][-1 if depth > 6 else rng.randrange(len(s["anyOf"]))], root, depth + 1)
    if "pattern" in s or "format" in s or "multipleOf" in s or "patternProperties" in s or "propertyNames" in s:
        raise LookupError
    kind = s.get("type")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        names = list(s.get("properties", {}))
        if set(s.get("required", [])) - set(names) or s.get("minProperties"):
            raise LookupError
        out = {n: instance(s["properties"][n], root, depth + 1) for n in names if n in s.get("required", []) or (rng.random() < 0.5 and depth < 5)}
        rest = s.get("additionalProperties")
        if rest not in (None, False):
            out["namex"] = instance(rest, root, depth + 1)
        return out
    if kind == "array":
        prefix = s.get("prefixItems", [])
        if prefix:
            raise LookupError
        n = s.get("minItems", 0) + (rng.randint(0, 2) if depth < 5 else 0)
        return [instance(s.get("items", True), root, depth + 1) for _ in range(min(n, s.get("maxItems", n)))]
    if kind == "string":
        low = s.get("minLength", 0)
        n = rng.randint(low, min(s.get("maxLength", low + 9), low + 9))
        return "".join(rng.choice("ab \"\\\n\u00e9\u20ac\U0001f600/{},:") for _ in range(n))
    if kind in ("integer", "number"):
        low = s.get("minimum", s.get("exclusiveMinimum", -1000) + (1 if "exclusiveMinimum" in s else 0))
        high = s.get("maximum", s.get("exclusiveMaximum", max(low, 0) + 1000) - (1 if "exclusiveMaximum" in s else 0))
        if low > high:
            low = high - 5 if not ("minimum" in s or "exclusiveMinimum" in s) else low
        if kind == "number" and isinstance(low + high, float):
            x = round(rng.uniform(low, high), 4)
            return x if low <= x <= high and abs(x) > 1e-4 else high
        if low > high:
            raise LookupError
        return rng.randint(int(low), int(high))
    return {"boolean": rng.random() < 0.5, "null": None}[kind]


# ---- the test -----------------------------------------------------------------------------------


def main():
    schemas = list(by_hand()) + list(by_table()) + [generated() for _ in range(120)]
    checker = jsonschema.FormatChecker(["date", "uuid", "email", "ipv4", "ipv6"])  # others need further packages
    tries, lines = [], []
    for i, schema in enumerate(schemas):
        own = []
        for k in range(4):
            try:
                value = instance(schema, schema)
            except (LookupError, RecursionError):
                break
            try:
                jsonschema.validate(value, schema)
            except jsonschema.ValidationError:
                continue
            own.append(json.dumps(value, ensure_ascii=False, indent=[None, 2, None, 1][k], separators=(",", ":") if k == 2 else None))
        tries.append(own)
        lines.append(json.dumps({"schema": schema, "seed": i + 1, "walks": 12, "tries": own}))
    for schema in REFUSED.values():
        lines.append(json.dumps({"schema": schema, "seed": 1, "walks": 0, "tries": []}))
    done = subprocess.run([suite.PROGRAM], input="\n".join(lines) + "\n", capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    failures = []
    if done.returncode or len(answers) != len(lines):
        failures.append(f"{suite.PROGRAM}: status {done.returncode}, {len(answers)} answers of {len(lines)}: {done.stderr[-500:]}")
    n_walks = n_tries = 0
    for schema, own, answer in zip(schemas, tries, answers):
        text = json.dumps(schema)[:150]
        if "error" in answer:
            failures.append(f"{text}: {answer['error']}")
            continue
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema, format_checker=checker)
        for walk in answer["walks"]:
            if walk is None and any(p in json.dumps(schema) for p in ('"abc"', 'z$"')):
                continue  # a walk at random may never come to what has to be found
            try:
                error = "no end" if walk is None else jsonschema.exceptions.best_match(validator.iter_errors(json.loads(walk)))
                n_walks += 1
            except ValueError as e:
                error = e
            if error:
                failures.append(f"{text}: {str(walk)[:200]}: {str(error)[:200]}")
        for one, taken in zip(own, answer["tries"]):
            n_tries += 1
            if not taken:
                failures.append(f"{text}: refuses {one[:200]}")
    for says, answer in zip(REFUSED, answers[len(schemas):]):
        if not all(word in answer.get("error", "") for word in says.split()):
            failures.append(f"expected {says!r} in {answer}")
    for failure in failures:
        results.fail(failure)
    ms = sorted(a["ms"] for a in answers if "ms" in a)
    print(f"{len(schemas)} schemas: {n_walks} random answers are valid, {n_tries} instances are taken; compiled in {ms[len(ms) // 2]:.2f} ms, at most {ms[-1]:.1f}")
    results.passed = len(schemas) + len(REFUSED) - len(failures)
    return results.end()


sys.exit(main())
