#!/usr/bin/env python3
"""jinja_oracle.py - what Python's jinja2 makes of templates, for tests of ours.

    jinja_oracle.py make                 writes tests/data/templates/cases.jsonl
    jinja_oracle.py check                fails when that file is not what `make` would write
    jinja_oracle.py differ SEED COUNT    random templates through both; prints where they differ

Needs jinja2 (python3 -m venv build/venv-jinja && build/venv-jinja/bin/pip install jinja2); the
tests in C need only the file. The environment is that in which chat templates are written: trimmed
blocks, the immutable sandbox, loop controls, generation blocks, tojson without escapes.
"""
import copy
import datetime
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "tests/data/templates")
CASES = os.path.join(FOLDER, "cases.jsonl")
NOW = datetime.datetime(2024, 7, 4, 9, 5, 7)  # test_jinja.c has the same

warnings.simplefilter("ignore")


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant wrote; the text passes through."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_pass_through")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _pass_through(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def make_environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: NOW.strftime(f)
    return env


ENVIRONMENT = make_environment()


def render(template, variables):
    """The text, or None and the error."""
    try:
        return ENVIRONMENT.from_string(template).render(**copy.deepcopy(variables)), None
    except Exception as error:
        return None, error


def render_cached(template, variables, cache={}):
    try:
        if template not in cache:
            cache[template] = ENVIRONMENT.from_string(template)
        return cache[template].render(**copy.deepcopy(variables)), None
    except Exception as error:
        return None, error


# ---- conversations ------------------------------------------------------------------------------

def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id="abcdef123"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Tells the weather.\n",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "A city, e.g. Zürich"},
        "days": {"type": "integer", "default": 1},
        "units": {"enum": ["C", "F"]}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Finds <things> & \"others\".",
    "parameters": {"type": "object", "properties": {
        "terms": {"type": "array", "items": {"type": "string"}},
        "filter": {"type": "object", "properties": {"year": {"type": ["integer", "null"]}}},
        "limit": {"type": "number", "default": 0.5}}}}}
TIME = {"type": "function", "function": {"name": "time", "parameters": {}}}

CONVERSATIONS = [
    [say("user", "Hi")],
    [say("user", "  Was ist größer: π oder 😀?\n")],
    [say("system", "Be brief."), say("user", "Who are you?")],
    [say("system", "  "), say("user", "")],
    [say("user", "One"), say("assistant", "Two"), say("user", "Three")],
    [say("system", "S"), say("user", "a"), say("assistant", "<think>\nlong\n\nthought\n</think>\n\nb "),
     say("user", "c"), say("assistant", "<think>\nmore\n</think>\n\nd")],
    [say("user", "q"), say("assistant", "x", reasoning_content="\nbecause\n"), say("user", "why?")],
    [say("user", "q"), say("assistant", "x", reasoning_content="because")],
    [say("user", "Weather?"), say("assistant", "", tool_calls=[call("weather", {"city": "Zürich", "days": 3})]),
     say("tool", "{\"t\": 21.5}", tool_call_id="abcdef123")],
    [say("user", "Weather?"), say("assistant", None, tool_calls=[call("weather", {"city": "Ulm"})]),
     say("tool", "rain", tool_call_id="abcdef123"), say("assistant", "It rains."), say("user", "Thanks")],
    [say("system", "Use tools."), say("user", "Both?"),
     say("assistant", "<think>\nI need two.\n</think>\n\nLet me see.", tool_calls=[
         call("weather", {"city": "Ulm", "units": "C", "opts": {"a": [1, 2.0, None, True], "b": "\"q\""}}, "aaaaaaaaa"),
         call("search", {"terms": ["x", "y"], "limit": 1e-07}, "bbbbbbbbb")]),
     say("tool", "sun", tool_call_id="aaaaaaaaa"), say("tool", "none\n", tool_call_id="bbbbbbbbb"),
     say("assistant", "", reasoning_content="One more.", tool_calls=[call("time", {}, "ccccccccc")]),
     say("tool", "12:00", tool_call_id="ccccccccc")],
    [say("user", "go"), say("assistant", "", tool_calls=[call("search", {"terms": []})]),
     say("tool", [{"type": "text", "text": "nothing"}], tool_call_id="abcdef123"), say("user", "again")],
    [say("user", "go"), say("assistant", "", tool_calls=[call("search", '{"terms": ["as text"]}')])],
    [say("user", "<tool_response>\nnot mine\n</tool_response>"), say("assistant", "ok")],
    [say("user", [{"type": "text", "text": "See "}, {"type": "image", "image": "a.png"},
                  {"type": "text", "text": "this."}])],
    [say("system", [{"type": "text", "text": "Parts."}]), say("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
    [say("user", "a"), say("user", "b")],
    [say("user", "a"), say("system", "late")],
    [say("critic", "hm")],
    [say("assistant", "I begin.")],
    [say("user", "x", items=1, keys="k"), say("assistant", "\u2028 {{ not a tag }} {% nor this %} <|im_end|>")],
    [],
]

FAMILIES = ["qwen25", "qwen3", "qwen35", "llama3", "smollm2", "mistral", "schema"]


def conversations():
    """Every conversation, with the options that a template may look at in turn."""
    tools = [None, [WEATHER], [WEATHER, SEARCH, TIME]]
    options = [{}, {"enable_thinking": False}, {"enable_thinking": True}]
    for i, messages in enumerate(CONVERSATIONS):
        for k, (t, prompt) in enumerate(itertools.product(tools, [True, False])):
            if k not in (i % 2, 2 + i % 2, 4 + i % 2):
                continue
            yield {"messages": messages, "tools": t, "documents": None,
                   "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>",
                   **options[(i + k) % 3]}


LLAMA_OPTIONS = [
    {"date_string": "1 Jan 2025"}, {"tools_in_user_message": False},
    {"builtin_tools": ["code_interpreter", "brave", "weather"]},
    {"custom_tools": [TIME], "tools_in_user_message": False},
]


def family_cases():
    for name in FAMILIES:
        with open(os.path.join(FOLDER, name + ".jinja"), encoding="utf-8") as f:
            template = f.read()
        for i, variables in enumerate(conversations()):
            if name == "llama3" and i % 3 == 0:
                variables = {**variables, **LLAMA_OPTIONS[i // 3 % len(LLAMA_OPTIONS)]}
            yield {"file": name + ".jinja", "vars": variables}, template, variables


# ---- single constructs --------------------------------------------------------------------------

SETS = {
    "plain": {"a": 1, "b": 2.5, "s": "héllo wörld", "n": None, "l": [3, 1, 2],
              "d": {"x": 1, "y": [1, 2], "items": 5}, "t": True, "e": "",
              "names": ["Bob", "alice", "Carl"],
              "ms": [{"r": "u", "c": "hi"}, {"r": "a", "c": "yo", "z": 1}, {"r": "u", "c": "bye"}]},
    "random": {"a": 1, "b": 2.5, "s": "héllo Wörld", "n": None, "l": [3, 1, 2],
               "d": {"x": 1, "y": [1, 2], "get": "g", "k": {"z": "q"}}, "t": True, "f": False,
               "e": "", "names": ["Bob", "alice", "Carl", "ünal"], "neg": -7,
               "ms": [{"role": "user", "content": "hi there"},
                      {"role": "assistant", "content": " yo\n", "n": 1, "tool_calls": [
                          {"function": {"name": "f", "arguments": {"p": 1, "q": "é"}}}]},
                      {"role": "user", "content": ""}],
               "tools": [{"type": "function", "function": {
                   "name": "get_w", "parameters": {"type": "object",
                                                   "properties": {"c": {"type": "string"}}}}}],
               "txt": "  some <b>text</b>\nwith lines\r\n\nend  ", "emoji": "a😀b ß"},
}

# One a line; groups of lines are templates of their own, for what goes on between them.
LINES = r"""
{{ a }}|{{ b }}|{{ s }}|{{ n }}|{{ l }}|{{ d }}|{{ t }}
{{ 1+2*3-4/2//1%3**2 }}|{{ -7//2 }}|{{ -7%3 }}|{{ 7%-3 }}|{{ 7.5//-2 }}|{{ 2**-1 }}|{{ 2**10 }}|{{ -2**2 }}
{{ 1/3 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1e100 }} {{ 123456789.123 }} {{ 5.0 }} {{ 1e22 }} {{ -0.0 }}
{{ 'a' ~ 1 ~ none ~ x ~ [1] }}
{{ s[1] }} {{ s[-1] }} {{ s[::-1] }} {{ s[1:4] }} {{ s[10:2:-2] }} {{ s|length }} {{ l[::2] }} {{ l[5] }} {{ l[-1] }}
{{ d['items'] }} {{ d.y }} {{ d.q }} {{ d['q'] }}
{{ d.q.z }}
{% for m in ms %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem.r }}{{ loop.cycle('a','b') }}{{ loop.changed(m.r) }} {% endfor %}
{% for m in ms if m.r == 'u' %}{{ m.c }}{{ loop.length }}{{ loop.last }}{% else %}no{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for x in [] %}a{% else %}b{% endfor %}
{% set ns = namespace(x=0) %}{% for i in range(5) %}{% set ns.x = ns.x + i %}{% if i == 3 %}{% break %}{% endif %}{% endfor %}{{ ns.x }}{{ ns }}
{% macro m(a, b=2, c=a) %}[{{ a }},{{ b }},{{ c }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }}{{ m(1,3,4,5,z=3) }}{{ m() }}{{ m(b=1) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1,2) }}
{% macro m(a) %}{{ caller(a) }}{% endmacro %}{% call(q) m(3) %}<{{ q }}>{% endcall %}
{{ names|sort|join(',') }} {{ names|sort(case_sensitive=true) }} {{ names|sort(reverse=true) }} {{ ms|map(attribute='c')|join(' ') }} {{ ms|selectattr('r','equalto','u')|list|length }}
{{ ms|selectattr('z','defined')|map(attribute='z')|list }} {{ ms|rejectattr('z')|list }} {{ [1,0,2]|select|list }} {{ [1,2,3]|reject('odd')|list }}
{{ d|tojson }} {{ d|tojson(indent=2) }} {{ 'é"\n\x01/'|tojson }} {{ 'é😀'|tojson(ensure_ascii=true) }} {{ [1.5,none,true,{}]|tojson(separators=(',',':')) }} {{ {'b':1,'a':2}|tojson(sort_keys=true) }}
{{ '%s is %d and %5.2f|%-5s|%05d|%x|%%' % ('a', 3, 2.5, 'b', 42, 255) }}
{{ "it's" }} {{ ["it's", 'a"b', 'both\'"', '\n\t\\', 'é\x00\u200b'] }}
{{ 'a\é' }}
{{ 'a' 'b' }} {{ ('a', 'b') }} {{ ('a',) }} {{ () }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in 'abc' }} {{ 1 not in [1] }} {{ 'x' in d }} {{ not a }}
{{ x is defined }} {{ x is not defined }} {{ n is none }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ l is sequence }} {{ a is number }} {{ t is boolean }} {{ 4 is divisibleby 2 }} {{ 3 is odd }}
{{ x|default('q') }} {{ e|default('q', true) }} {{ e|d('q') }} {{ n|default('z', boolean=true) }}
{{ 'a' if a == 1 else 'b' }} {{ 'a' if a == 2 }}
{{ s.upper() }} {{ s.title() }} {{ s.capitalize() }} {{ s|title }} {{ 'ab-cd ef'|title }} {{ 'straße'.upper() }} {{ 'ΑΣ ΣΑ'.lower() }}
{{ ' a b  c '.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split(',') }} {{ ''.split() }}
{{ 'abc'.startswith(('x','a')) }} {{ 'abc'.endswith('c') }} {{ 'abc'.find('c') }} {{ 'abcabc'.rfind('b') }} {{ 'aaa'.count('a') }} {{ 'aXbX'.replace('X','--',1) }} {{ 'ab'.replace('','-') }}
{{ l.append(3) }}
{{ {1:2, 'a':[1,(2,)], none:true}|string }} {{ d.keys() }} {{ d.values() }} {{ d.items() }} {{ range(3) }} {{ range(5,0,-2)|list }}
{{ 'a\nb\n\nc'|indent }} {{ 'a\nb\n\nc'|indent(2, true, true) }} {{ 'a\nb'|indent('>') }}
{{ 3.7|int }} {{ '12'|int }} {{ '1.9'|int }} {{ 'x'|int(5) }} {{ '0x1f'|int(0,16) }} {{ '2.5'|float }} {{ 2.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(0,'ceil') }} {{ 3|round }} {{ -3|abs }}
{{ [1,2,3]|sum }} {{ [1,5,3]|max }} {{ names|min }} {{ [1,1,2]|unique|list }} {{ l|first }} {{ l|last }} {{ l|reverse|list }} {{ s|reverse }} {{ []|first }}
{% if a %}  x
  {% endif %}
  {% set q = 1 %}
 y {%- if t -%}  z  {%+ endif +%}
 w {# c #}
{#- c -#}  v
{% raw %}{{ a }} {% endraw %}|{%- raw -%}  {{ b }}  {%- endraw -%}  |
{% set q %}abc {{ a }}{% endset %}{{ q }}{% set q | upper %}x{{ a }}{% endset %}{{ q }}
{% filter upper|trim %} abc {{ s }} {% endfilter %}
{% with a=5, z=a %}{{ a }}{{ z }}{% endwith %}{{ a }}
{% set x, y = 1, 2 %}{{ x }}{{ y }}{% set a = 7 %}{{ a }}
{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% set a = i %}{% endfor %}{{ a }}
{% for i in [1] %}{% break %}{% else %}E{% endfor %}
{% generation %}x{{ a }}{% endgeneration %}
{{ raise_exception('no') }}
{{ strftime_now('%d %b %Y %H:%M %-d %f%z|') }}
{{ '<a>&"\''|e }} {{ '<'|safe + '>' }} {{ ('<'|e) ~ '>' }} {{ [('<'|e)] }}
{{ "{} {1} {x}".format(1,2,x=3) }}
{{ "{0} {1} {x} {{}}".format(1,2,x=3) }}
{{ [1,2] + [3] }} {{ 'ab' * 3 }} {{ [0] * 2 }} {{ (1,2) + (3,) }}
{{ d.get('x') }} {{ d.get('zz', 4) }} {{ dict(a=1, **d) }} {{ dict([('a',1)]) }}
{{ x + 1 }}
{{ x ~ 1 }}
{% for i in x %}{{ i }}{% else %}none{% endfor %}{{ x|length }}{{ x|join }}{{ x|list }}
{{ 1 if x else 2 }}{{ not x }}{{ x == y }}{{ x == none }}
{% set z = ms|map(attribute='c') %}{{ z|join }}{{ z|join }}{{ z is iterable }}{{ z is sequence }}
{{ l|length > 2 and ms[0].r == 'u' or n }} {{ ms[-1]['c'] }} {{ ms|last }} {{ (ms|first).c }}
{% if n is none and x is undefined %}A{% elif t %}B{% else %}C{% endif %}
{{ 'a.b.c'.split('.')[-1].upper() }} {{ 'abc'[1:] }} {{ "x"|upper|lower }} {{ l|join(', ') }} {{ ms|join(',', attribute='c') }}
{{ d|dictsort }} {{ {'B':1,'a':0}|dictsort }} {{ {'B':1,'a':0}|dictsort(true) }} {{ {'B':1,'a':0}|dictsort(by='value', reverse=true) }} {{ d|items|list }}
{{ ms|map('length')|list }} {{ names|map('upper')|list }} {{ names|map('replace','b','X')|list }} {{ ms|map(attribute='z', default='-')|list }}
{{ 'a'.foo }} {{ 'a'.foo() }}
{{ none.x }} {{ 5 is integer }} {{ 5.0 is float }} {{ true is integer }} {{ 'a' is sameas 'a' }} {{ x is callable }} {{ namespace is callable }}
{{ l.1 }} {{ d.y.0 }} {{ [[1,2]][0][1] }} {{ {'a':{'b':1}}.a.b }}
{{ 1_000 }} {{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1.5e3 }} {{ 1e-3 }}
{{ true and false }} {{ True or False }} {{ none }} {{ None }}
{%- for r in ms -%}
    {%- if loop.first and r.r != 'x' -%}
        {{- 'sys\n' -}}
    {%- endif -%}
    {{- r.c | trim -}}
{%- endfor -%}
{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(2) }}{% endmacro %}{{ outer(1) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(5) }}
{{ 'ab\
c' }}
{% include 'x' %}
{{ [1,2,3][1:]|list }} {{ (1,2,3)[::-1] }} {{ range(10)[2:8:3]|list }} {{ 'abc'|list }}
{{ 3 is eq 3 }} {{ 3 is in [1,3] }} {{ 'b' is lt 'c' }} {{ 2 is gt(1) }} {{ 2 is not gt 1 }}
{{ 'x' is defined and 'y' }} {{ 'HELLO'.lower().islower() }} {{ '12'.isdigit() }} {{ ' '.isspace() }} {{ '7'.zfill(3) }} {{ 'abc'.removeprefix('a').removesuffix('c') }} {{ 'a\nb\r\nc'.splitlines() }} {{ ','.join(['a','b']) }}
{{ 10 // 3 }} {{ 10.0 / 4 }} {{ 7 / 7 }} {{ 1 / 0 }}
{{ 5 % 0 }}
{{ "abc" % () }} {{ "%s" % "x" }} {{ "%s" % [1] }} {{ "%(a)s" % {'a': 1} }}
{{ undef.x }}
{{ undef[0] }}
{{ undef() }}
{{ undef|upper }}|{{ undef|trim }}|{{ undef|string }}
{{ undef|tojson }}
{{ undef|int }}
{{ -undef }}
{{ undef < 1 }}
{{ undef in [1] }}{{ 1 in undef }}
{{ l.foo }}{{ l["foo"] }}{{ n.foo }}{{ a.foo }}
{{ s|length }}{{ "a😀"|length }}{{ "a😀b"[1] }}{{ "a😀b"[::-1] }}
{{ d.update({}) }}
{{ l.pop() }}
{{ ms[0].pop("r") }}
{{ "x".__class__ }}|{{ d.__class__ is defined }}
{% for x in 5 %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [[1,2],[3,4]] %}{{ a }}{{ b }}{% endfor %}
{% for (a, b), c in [((1,2),3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% if %}{% endif %}
{% for %}
{{
{{ a
{% if a %}
{{ a }
{{ a)) }}
{% endif %}
{% foo %}
{{ a|nofilter }}
{{ a is notest }}
{# open
{% raw %}open
{{ "open }}
{{ 'it''s' }}
{{ a b }}
{{ 1 2 }}
{% set 1 = 2 %}
{% set a.b = 2 %}
{% break %}
{% macro f(a, a) %}{% endmacro %}
{% macro f(a=1, b) %}{% endmacro %}
{{ f(a=1, 2) }}
{{ dict(a=1, a=2) }}
{{ [1, 2 }}
{{ {1: 2, } }}{{ [1, ] }}{{ (1, ) }}
{{ {} }}{{ [] }}
{{ a. }}
{{ .5 }}
{{ 5. }}
{{ "\x4" }}
{{ "\u00e9\x41\101\n\q" }}
{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns["a"] }}
{% set ns = namespace(found=false) %}{% for m in ms if not ns.found %}{{ m.c }}{% set ns.found = true %}{% endfor %}
{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}
{% macro g() %}{{ a }}{{ later }}{% endmacro %}{% set later = 5 %}{{ g() }}
{% if t %}{% set v = 1 %}{% endif %}{{ v }}
{% set q %}{% set inner = 1 %}{% endset %}{{ inner is defined }}
{% macro m() %}{% set z = 1 %}{% endmacro %}{{ m() }}{{ z is defined }}
{{ caller is defined }}{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m(x) %}{{ caller() }}{{ x }}{% endmacro %}{% call m(1) %}{{ x is defined }}{% endcall %}
{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{% endfor %}{{ loop.index }}{% endfor %}
{% for i in range(200000) %}{% endfor %}
{{ range(100001)|length }}
{{ "a" * -1 }}|{{ [1] * 0 }}
{{ 1.0 }} {{ 1e5 }} {{ 1.5e-7 }} {{ 123456789012345680.0 }} {{ 0.1 + 0.2 }} {{ 1e300 * 1e10 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 100000000000000000000.0 }}
{{ [0.1, 1e16, 1e-5, 3.0]|tojson }}
{{ {"a": {"b": []}, "c": {}, "d": [1, [2]]}|tojson(indent=2) }}
{{ [1, {"a": 2}]|tojson(indent="--") }}
{{ [1,2]|tojson(indent=0) }}
{{ {1: 1, none: 2, true: 3, 1.5: 4}|tojson }}
{{ {(1,2): 3}|tojson }}
{{ "\u2028\x7f</script>"|tojson }}
{{ range(3)|tojson }}
{{ ms|map(attribute="c")|tojson }}
{{ l|map("string")|join("-") }}
{{ "%5d|%-5d|%05d|%+d|% d|%x|%X|%o|%e|%g|%.3f|%r|%5s|%.2s" % (42,42,42,42,42,255,255,8,1234.5,0.0001,3.14159,"q","ab","abc") }}
{{ "%d" % 3.9 }} {{ "%s %s" % ("a",) }}
{{ "%d" % "x" }}
{{ "%(k)s-%(k)s" % {"k": 1} }}
{{ "%s"|format(1) }} {{ "%(x)s"|format(x=2) }}
{{ "{a}{b}".format(a=1, b="é") }}
{{ "ÀÉ".lower() }}{{ "àé".upper() }}{{ "ǆ".title() }}{{ "ŉ" }}{{ "ΣΑΣ".lower() }}{{ "i̇".upper() }}
{{ "hello wOrld it's"|title }}|{{ "hello wOrld it's".title() }}|{{ "hELLO wORLD".capitalize() }}
{{ "  x 　"|trim }}|{{ "xxaxx"|trim("x") }}|{{ "xyaxy".strip("yx") }}|{{ "éaé".strip("é") }}
{{ "a-b_c".isalpha() }}{{ "é".isalpha() }}{{ "²".isdigit() }}{{ "½".isnumeric() }}{{ "ABC1".isupper() }}{{ "".islower() }}
{{ 5 is number and 5 is not string }}
{{ 5 is divisibleby 5 }}{{ 5 is divisibleby(3) }}
{{ "a" is in "abc" }}{{ 3 is in l }}{{ "x" is in d }}
{{ l is sequence and l is iterable and l is not mapping and l is not string }}
{{ d.items() is iterable }}{{ d.items() is sequence }}
{{ true is number }}{{ 1 is true }}{{ none is sameas none }}
{{ not t is none }}
{{ a == 1.0 }}{{ true == 1 }}{{ "1" == 1 }}{{ [1] == (1,) }}{{ none == false }}
{{ "a" < "b" }}{{ [1,2] < [1,3] }}{{ 1 < "a" }}
{{ (1, "a") in [(1, "a")] }}{{ [1] in [[1]] }}{{ {} in [{}] }}
{{ {"a": 1}.a }}{{ {"a": 1}["a"] }}{{ {1: 2}[1] }}{{ {1: 2}[true] }}
{{ {[1]: 2} }}
{{ a if t else b if n else s }}
{{ (a if n) is undefined }}|{{ a if n }}
{{ [a if n] }}
{{ l[1:] + l[:1] }}{{ l[-2:] }}{{ l[5:] }}{{ l[::-1] }}{{ l[2:0:-1] }}{{ l[none:2] }}{{ l[::0] }}
{% for c in "héy" %}{{ c }}.{% endfor %}
{% for k in d %}{{ k }}{{ d[k] }}{% endfor %}
{% for k, v in d|dictsort %}{{ k }}{% endfor %}
{% for x in l|sort %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }};{% endfor %}
{% for x in l %}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}
{% for x in [1,1,2] %}{{ loop.changed(x) }}{% endfor %}
{{ loop }}
{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% endfor %}
{%if t%}x{%endif%}
{{a}}{{-a-}} {{a}}
{% if t %}a{% elif n %}b{% else %}c{% endif %}{% if n %}a{% elif t %}b{% else %}c{% endif %}{% if n %}a{% elif n %}b{% else %}c{% endif %}
{% print a, b %}
{{ "a" if a else "b" }}}
{{ {"a": {"b": 1}} }}
{% set x = {"a": {"b": 1}} %}{{ x.a.b }}
{% extends "a" %}
{% import "a" as b %}
{% from "a" import b %}
{{ raise_exception("stop: " ~ a) }}
{{ strftime_now("%A %B %j %p %y %% %-d") }}|{{ strftime_now("") }}
{{ namespace(a=1).a }}{{ dict(a=1).a }}{{ dict(d, z=1)|length }}{{ dict([["a", 1]]) }}
{{ l|sum }}{{ l|sum(start=10) }}{{ []|sum }}{{ [1.5, 2]|sum }}
{{ []|max }}{{ ["b", "A"]|min }}{{ ms|max(attribute="c") }}
{{ ["a","A","b"]|unique|list }}{{ ["a","A"]|unique(true)|list }}{{ ms|unique(attribute="r")|map(attribute="c")|list }}
{{ ms|sort(attribute="c")|map(attribute="c")|join }}{{ ms|sort(attribute="r,c")|map(attribute="c")|join }}
{{ ms|sort }}
{{ d|items|list }}{{ undef|items|list }}
{{ s|list|length }}
{{ ms|selectattr("z")|list|length }}{{ ms|selectattr("z", "undefined")|list|length }}{{ ms|selectattr("r", "in", ["a"])|list|length }}{{ ms|rejectattr("r", "ne", "u")|list|length }}
{{ ms|map(attribute="r")|unique|sort|join(",") }}
{{ ms|map(attribute="r")|first }}
{{ n|map("upper")|list }}{{ undef|select|list }}
{{ ms|selectattr("c.x")|list }}
{{ [[1,2],[3]]|map(attribute=0)|list }}{{ [[1,2],[3]]|map("first")|list }}
{{ "abc"|first }}{{ "abc"|last }}{{ d|first }}{{ d|last }}
{{ l|reverse|first }}{{ "abc"|reverse }}
{{ 7|float }}{{ "1_0"|int }}{{ " 5 "|int }}{{ "1e2"|float }}{{ "nan"|float }}{{ "x"|float(1.5) }}{{ none|int }}{{ true|int }}{{ 3.99|int }}{{ -3.99|int }}
{{ 0.5|round }}{{ 1.5|round }}{{ 2.675|round(2) }}{{ 1234.5678|round(1, "floor") }}{{ 5|round(2) }}{{ 2.5|round|int }}
{% for m in ms %}{{ a }}{% endfor %}{% set a = 5 %}{{ a }}
{% macro g() %}{{ a }}{% endmacro %}{{ g() }}{% set a = 5 %}{{ g() }}
{% for x in [] %}{% else %}{% set a = 9 %}{% endfor %}{{ a }}
{% if n %}{% set a = 2 %}{% endif %}{% for m in ms %}{{ a }}{% endfor %}
{% if t %}{% set a = 2 %}{% else %}{% set a = 3 %}{% endif %}{% for m in ms %}{{ a }}{% endfor %}
{{ a }}{% for m in ms %}{{ a }}{% endfor %}{% set a = 5 %}{{ a }}
{% with %}{% for i in [1] %}{{ a }}{% endfor %}{% set a = 3 %}{% endwith %}{{ a }}
{% set q %}{{ s }}{% endset %}{{ q }}{% set s = 1 %}
{% for m in ms %}{% for k in m %}{{ x }}{% endfor %}{% set x = 1 %}{% endfor %}{% set x = 2 %}
{% macro m(s) %}{% for c in s %}{{ c }}{{ e2 }}{% endfor %}{% set e2 = 1 %}{% endmacro %}{{ m(s) }}
{% for i in range(3) %}{% for k in [1] %}{{ range is defined }}{% endfor %}{% set range = 1 %}{% endfor %}
""".strip("\n").split("\n")

MORE = [
    '{% filter indent(2) %}a\nb{% endfilter %}',
    '{{ "a\rb\x0bc\x1cd\u2028e"|indent(1) }}',
    '{%- set x = 1 -%}\n  a',
    'a\n  {%- set x = 1 %}\nb',
    'a\n  {%+ set x = 1 %}\nb',
    'a {% set x = 1 %}  \nb',
    '  {% set x = 1 +%}\nb',
    '  {{ a }}\n  {{- a }}\n  {{ a -}}\n  b\n',
    '{# c #}\n{#- c #}\n  {# c -#}\n  x',
    '\n\n{% if t %}\n\nx\n\n{% endif %}\n\n',
    'a\n',
    'a\n\n',
    'a\r\nb\rc\n{% if t %}\r\nd{% endif %}',
    '{% raw %}\n{{ x }}\n{% endraw %}\ny',
    '  {% raw -%}\n {% x %} {%- endraw %}\n y',
    '{% if (a == 1\n  and t) %}x{% endif %}',
    '{{ {"a":\n1}["a"] }}',
]


def line_cases():
    groups = ["\n".join(LINES[i:i + 5]) for i in range(0, len(LINES), 3)]
    for template in LINES + MORE + groups:
        yield {"template": template, "vars": "plain"}, template, SETS["plain"]


# ---- random templates ---------------------------------------------------------------------------

FILTERS = """tojson;tojson(indent=2);tojson(indent=NUM);tojson(separators=(',',':'));tojson(sort_keys=true)
tojson(ensure_ascii=true);trim;trim(STR);length;count;upper;lower;title;capitalize;join;join(STR)
join(', ', attribute='role');join(attribute='role');default(NAME);d(NAME,true);first;last;list;string
int;int(NUM);float;replace(STR,STR);replace(STR,STR,1);map(attribute='role')|list;map('upper')|list
map('length')|list;map('string')|list;map('default','z')|list;map('int')|list
map(attribute='k.z',default='D')|list;select|list;reject|list;select('string')|list
select('defined')|list;reject('none')|list;select('gt',1)|list;selectattr('role')|list
selectattr('role','equalto','user')|list;rejectattr('role','eq','user')|list
selectattr('n','defined')|list;items|list;dictsort;dictsort(by="value");dictsort(reverse=true);sort
sort(reverse=true);sort(case_sensitive=true);sort(attribute='role');sort(attribute='role,content')
reverse|list;reverse;unique|list;unique(attribute='role')|list;indent;indent(2);indent(NUM,true)
indent("> ",blank=true);safe;e;escape;abs;round;round(1);round(0,"floor");sum;min;max;format(NAME)
attr('x');list|length;list|first;string|length"""
METHODS = """strip();strip(STR);lstrip();rstrip(STR);split();split(STR);split(STR,1);split(none,1)
rsplit(STR,1);rsplit();rsplit(none,1);splitlines();splitlines(true);startswith(STR)
endswith((STR,STR));startswith(STR,NUM);replace(STR,STR);replace(STR,STR,NUM);upper();lower();title()
capitalize();find(STR);rfind(STR);index(STR);count(STR);find(STR,1);count(STR,-3,-1);join(EXPR)
isdigit();isalpha();isspace();islower();isupper();isalnum();removeprefix(STR);removesuffix(STR)
zfill(NUM);center(9);center(8,"*");ljust(5);rjust(5,STR);partition(STR);rpartition(STR);get(NAME)
get('x');get('zz',NAME);items();keys();values();items()|list;append(1);pop();update({});index(NAME)
count(NAME);format(NAME);copy();foo;foo()"""
TESTS = """defined;undefined;none;string;mapping;iterable;sequence;number;integer;float;boolean;true;false
odd;even;divisibleby 2;eq(1);ne 1;lt 3;gt(2);in [1,"a"];callable;sameas none;lower;upper;ge 1;le(2.5)
equalto "a";in "abc" """
PARTS = """ms[0];ms[-1];ms[1].tool_calls[0].function;d.k;range(3);range(1,5);range(5,1,-2);range(0)
range(a);range(b);dict(q=1,w=s);d.items();d.keys();d.values()"""
ATTRIBUTES = "role;content;x;y;k;function;name;get;items;n;0;1;foo;upper;tool_calls;keys"
SUBSCRIPTS = "NUM;STR;'role';'content';'x';:1;1:;::-1;-2:;:-1;1:3;::2;EXPR;NAME:;:NAME"
CHARACTERS = ["a", "b", "X", " ", "é", "\\n", "\\t", "\\'", '\\"', "\\\\", "\\x41", "\\u00e9", "-", ",",
              ".", "0", "7", "%", "{", "}", "😀", "\\q", "<", "&"]
SPACES = ["", " ", "\n", "  \n", "\n  ", "\t", "text", "a\n", "\n\n", "  x  ", "é", "\r\n", " \n \n "]


def rows(text):
    return [row for line in text.split("\n") for row in line.split(";")]


class Grammar:
    """Random templates over the variables SETS["random"]."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.names = list(SETS["random"]) + ["undef", "undef2", "loop", "x", "y", "ns"]
        self.filters, self.methods, self.tests = rows(FILTERS), rows(METHODS), rows(TESTS)
        self.parts = rows(PARTS)

    def one(self, choices):
        return self.r.choice(choices)

    def string(self):
        quote = self.one("'\"")
        return quote + "".join(self.one(CHARACTERS) for _ in range(self.r.randint(0, 5))) + quote

    def number(self):
        return self.one("0 1 2 3 -1 10 7 1.5 0.1 2.0 1e3 100 1_0 0x1f".split())

    def fill(self, row, depth):
        """Replaces the words in capitals by what they name, each time."""
        for word, make in (("EXPR", lambda: self.expression(depth - 1)), ("STR", self.string),
                           ("NUM", self.number), ("NAME", lambda: self.expression(0))):
            while word in row:
                row = row.replace(word, make(), 1)
        return row

    def several(self, depth, form):
        return [form(self.expression(depth - 1)) for _ in range(self.r.randint(0, 3))]

    def literal(self, depth):
        p = self.r.random()
        if p < .3:
            return self.string()
        if p < .55:
            return self.number()
        if p < .65:
            return self.one(["true", "false", "none", "True", "None"])
        if p < .8:
            return "[" + ", ".join(self.several(depth, str)) + "]"
        if p < .9:
            return "(" + "".join(self.several(depth, lambda e: e + ",")) + ")"
        key = lambda e: self.one(["'a'", "'b'", "1", "s", "none", self.string()]) + ": " + e
        return "{" + ", ".join(self.several(depth, key)) + "}"

    def primary(self, depth):
        p = self.r.random()
        if p < .6:
            return self.one(self.names)
        if p < .7:
            return self.literal(depth - 1)
        if p < .8:
            return self.one(self.parts)
        return "(" + self.expression(depth - 1) + ")"

    def expression(self, depth):
        sub = lambda: self.expression(depth - 1)
        if depth <= 0:
            return self.one([self.one(self.names)] * 2 + [self.string(), self.number()])
        p = self.r.random()
        if p < .12:
            return self.literal(depth)
        if p < .22:
            return self.one(self.names)
        if p < .36:
            return f"{sub()} {self.one(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {sub()}"
        if p < .37:
            return self.one("23ba") + " ** " + self.one(["2", "3", "0", "-1", "0.5"])
        if p < .45:
            ops = ["==", "!=", "<", ">", "<=", ">=", "in", "not in"]
            return f"{sub()} {self.one(ops)} {sub()}"
        if p < .51:
            return f"{sub()} {self.one(['and', 'or'])} {sub()}"
        if p < .54:
            return "not " + sub()
        if p < .58:
            return f"({sub()} if {sub()}{self.one(['', ' else ' + sub()])})"
        if p < .64:
            return self.primary(depth) + "." + self.one(ATTRIBUTES.split(";"))
        if p < .70:
            return f"{self.primary(depth)}[{self.fill(self.one(SUBSCRIPTS.split(';')), depth)}]"
        if p < .84:
            return self.primary(depth) + "|" + self.fill(self.one(self.filters), depth)
        if p < .92:
            return self.primary(depth) + "." + self.fill(self.one(self.methods), depth)
        if p < .98:
            return f"{self.primary(depth)} is {self.one(['', 'not '])}{self.one(self.tests)}"
        return "-" + self.primary(depth)

    def tag(self, text):
        signs = ["", "", "", "-", "-", "+"]
        return "{%" + self.one(signs) + " " + text + " " + self.one(signs) + "%}"

    def put(self, text):
        return "{{" + self.one(["", "", "-", "+"]) + " " + text + " " + self.one(["", "", "-"]) + "}}"

    def block(self, depth, in_loop):
        return "".join(self.one(SPACES) + self.statement(depth, in_loop) + self.one(SPACES)
                       for _ in range(self.r.randint(1, 2)))

    def loop(self, depth, in_loop):
        source = self.one(["ms", "l", "d", "names", "d.items()", "range(3)", "s", "undef", "[1,2,3]",
                           'ms|selectattr("role")', "l|reverse", "ms[::-1]", self.expression(1)])
        target = "k, v" if "items" in source else self.one("xym")
        test = self.one([""] * 5 + [" if x", " if loop is undefined", " if " + self.expression(1)])
        look = self.one(["", "{{ loop.index }}", "{{ loop.last }}",
                         "{{ loop.length }},{{ loop.revindex0 }}", "{{ loop.previtem }}",
                         "{{ loop.nextitem }}", "{{ loop.changed(x) }}", '{{ loop.cycle(1,"a") }}',
                         "{{ x }}", "{{ k }}{{ v }}"])
        other = self.tag("else") + self.block(depth, in_loop) if self.r.random() < .2 else ""
        return (self.tag(f"for {target} in {source}{test}") + look + self.block(depth, True) + other
                + self.tag("endfor"))

    def condition(self, depth, in_loop):
        text = self.tag("if " + self.expression(2)) + self.block(depth, in_loop)
        if self.r.random() < .4:
            text += self.tag("elif " + self.expression(2)) + self.block(depth, in_loop)
        if self.r.random() < .5:
            text += self.tag("else") + self.block(depth, in_loop)
        return text + self.tag("endif")

    def macro(self, depth):
        name = "mac" + self.one("012")
        body = self.put(self.one(["p", "q", "p ~ q", "varargs", "kwargs", "a"]))
        use = self.one(["(1)", "(a, s)", "(q=1)", "()", "(1,2,3)", "(1,z=3)", "(p=l)"])
        return (self.tag(f"macro {name}(p, q={self.expression(0)})") + self.one(SPACES) + body
                + self.block(depth, False) + self.tag("endmacro") + self.put(name + use))

    def statement(self, depth, in_loop):
        p = self.r.random()
        around = lambda first, last: self.tag(first) + self.block(depth - 1, False) + self.tag(last)
        if depth <= 0 or p < .30:
            return self.put(self.expression(2))
        if p < .45:
            return self.condition(depth - 1, in_loop)
        if p < .62:
            return self.loop(depth - 1, in_loop)
        if p < .74:
            return self.tag(f"set {self.one('xyas')} = {self.expression(2)}")
        if p < .78:
            value = self.one(["ns.c + 1", "1", self.expression(1)])
            return (self.tag(f"set ns = namespace(c=0, p={self.expression(0)})")
                    + self.tag(f"set ns.{self.one('cpq')} = {value}") + self.put("ns.c"))
        if p < .81:
            return self.tag(f"set x, y = {self.expression(1)}, {self.expression(1)}")
        if p < .84:
            through = self.one(["", " | upper", " | trim | length"])
            return around("set x" + through, "endset") + self.put("x")
        if p < .88:
            return self.macro(depth - 1)
        if p < .90:
            return around("filter " + self.one(["upper", "trim", "indent(2)", "title"]), "endfilter")
        if p < .92:
            return around(f"with x={self.expression(1)}, y=x", "endwith") + self.put("x")
        if p < .94:
            return around("generation", "endgeneration")
        if p < .96 and in_loop:
            jump = self.tag(self.one(["break", "continue"]))
            return self.tag("if " + self.expression(1)) + jump + self.tag("endif")
        if p < .98:
            return ("{%" + self.one(["", " ", "- ", "+ "]) + "raw " + self.one(["", "-"]) + "%}"
                    + self.one(SPACES) + "{{ x }} {% if %}" + self.one(SPACES) + self.tag("endraw"))
        return "{#" + self.one(["", "-", "+"]) + " c {{ " + self.one(["", "-", "+"]) + "#}"

    def template(self):
        if self.r.random() < .6:
            return "{{ " + self.expression(self.r.randint(1, 3)) + " }}"
        return self.block(self.r.randint(1, 3), False)


def is_beyond_us(template, text, error):
    """What we do otherwise on purpose, or what no two runs of Python give alike."""
    if text is None:
        return "complex" in str(error)
    marks = (" at 0x", "enerator", "iterator object", "<function", "loopcontext", "class ", "Markup(")
    return any(mark.lower() in text.lower() for mark in marks)


def random_cases(count):
    grammar = Grammar(1)
    while count > 0:
        template = grammar.template()
        text, error = render(template, SETS["random"])
        if is_beyond_us(template, text, error) or (text is None and grammar.r.random() < .85):
            continue
        if len(template) > 600 or (text and len(text) > 1500) or is_odd(template, text):
            continue
        count -= 1
        yield {"template": template, "vars": "random"}, template, SETS["random"]


ODD = ("cannot be sliced", "64 bits", "'loop' object is not", "type 'loop' is not", "broken power",
       "slice indices", "'dict_keys'")  # our words for what we refuse on purpose


def is_odd(template, text):
    """Whether ours is known to differ: constants that jinja2 folds, numbers beyond 64 bits, sets."""
    ours, error = OURS(template, SETS["random"]) if OURS else (text, "")
    return text != ours and error is not None and any(mark in error for mark in ODD)


# ---- our side -----------------------------------------------------------------------------------

DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "text/jinja.h"
int main(void) {
    struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 4, .tm_hour = 9, .tm_min = 5,
                     .tm_sec = 7, .tm_wday = 4, .tm_yday = 185};
    struct jinja_options options = {.now = &now};
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *out = json_object();
        json_t *t = json_object_get(in, "template");
        struct jinja *jinja;
        struct text_buffer text = {0};
        struct err err = {0};
        if (jinja_compile(&jinja, (struct str){json_string_value(t), json_string_length(t)}, &err) ||
            jinja_render(jinja, json_object_get(in, "vars"), &options, &text, &err))
            json_object_set_new(out, "error", json_string(err.text));
        else
            json_object_set_new(out, "text", json_stringn(text.at ? text.at : "", text.len));
        char *z = json_dumps(out, JSON_COMPACT);
        puts(z);
        fflush(stdout);
        free(z);
        free(text.at);
        jinja_close(jinja);
        json_decref(in);
        json_decref(out);
    }
    free(line);
    return 0;
}
"""


class Ours:
    """Our interpreter through a pipe, built with sanitizers."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        source, program = (os.path.join(self.folder.name, n) for n in ("driver.c", "driver"))
        with open(source, "w") as f:
            f.write(DRIVER)
        with open(os.path.join(self.folder.name, "version.h"), "w") as f:
            f.write('#define SLUICE_VERSION "driver"\n')
        text = os.path.join(ROOT, "src/text")
        files = [os.path.join(text, n) for n in sorted(os.listdir(text))
                 if n.startswith("jinja") and n.endswith(".c")]
        files += [os.path.join(ROOT, "src/base", n + ".c") for n in ("arena", "entropy", "err", "locale", "str")]
        subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined",
                        "-fno-sanitize-recover=all", "-I", self.folder.name,
                        "-I", os.path.join(ROOT, "include"), "-I", os.path.join(ROOT, "src"), source,
                        *files, "-ljansson", "-lutf8proc", "-lm", "-lpthread", "-o", program], check=True)
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, encoding="utf-8")

    def __call__(self, template, variables):
        self.process.stdin.write(json.dumps({"template": template, "vars": variables}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"our side crashed on {template!r}")
        answer = json.loads(line)
        return answer.get("text"), answer.get("error")


OURS = None


def differ(seed, count):
    global OURS
    OURS = Ours()
    grammar, same, errors, different = Grammar(seed), 0, 0, 0
    for _ in range(count):
        template = grammar.template()
        text, error = render(template, SETS["random"])
        if is_beyond_us(template, text, error) or (text is None and grammar.r.random() < .8):
            continue
        ours, our_error = OURS(template, SETS["random"])
        if text == ours:
            same += 1
            errors += text is None
        elif not (our_error and any(mark in our_error for mark in ODD)):
            different += 1
            print(f"{template!r}\n  jinja2: {text!r} {error}\n  ours:   {ours!r} {our_error}")
    print(f"seed {seed}: {same} alike ({errors} of them errors), {different} different")
    return different


# ---- the file -----------------------------------------------------------------------------------

def make():
    global OURS
    OURS = Ours()  # only to leave out of the random ones what is known to differ
    lines = [{"sets": SETS}]
    for case, template, variables in itertools.chain(family_cases(), line_cases(), random_cases(700)):
        text, error = render_cached(template, variables)
        if text is None:
            case["error"] = True
            if isinstance(error, jinja2.exceptions.TemplateError) and type(error) is jinja2.TemplateError:
                case["message"] = str(error)  # of raise_exception: ours must say the same
        else:
            assert " at 0x" not in text, template
            case["expected"] = text
        lines.append(case)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def main():
    what = sys.argv[1:]
    if what == ["make"]:
        with open(CASES, "w", encoding="utf-8", newline="") as f:
            f.write(make())
    elif what == ["check"]:
        with open(CASES, encoding="utf-8", newline="") as f:
            sys.exit(f.read() != make())
    elif len(what) == 3 and what[0] == "differ":
        sys.exit(differ(int(what[1]), int(what[2])) > 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
