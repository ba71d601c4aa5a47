"""Hooks of schemathesis for the API test (e2e/tests/jobs/openapi.rs).

schemathesis.toml allows 400 and 422 for some operations, because JSON Schema cannot say everything that the server
checks. The check below narrows that to the refusals listed here: any other refusal of a valid request is a finding.
"""

import os
import re
from itertools import count

import schemathesis
from schemathesis.core.parameters import ParameterLocation

# (status and code, field, detail), each with the reason why no schema says it. Status and code are exact; field and
# detail are regular expressions.
INVALID = (422, "invalid_field")
KNOWN_REFUSALS = [
    # The operator of a server, or its machine, sets these limits.
    (INVALID, r"limits\.\w+", r"is more than .* the most that any request may ask for"),
    ((422, "limit_unenforceable"), r"", r"this host cannot enforce the requested .* limit: "),
    ((422, "limit_out_of_range"), r"", r"the .* limit \d+ is out of range: "),
    # Which images, secrets, models and MCP servers there are differs from server to server.
    (INVALID, r"image", r"no image"),
    (INVALID, r"kernel", r"this image has no kernel called"),
    (INVALID, r"secrets\.\w+", r"this server has no secret of this name"),
    (INVALID, r"model(\.name)?", r"is neither provider/model|is not known"),
    (INVALID, r"mcp\.[a-z0-9-]+", r"the configuration has no such server"),
    # The grammar of host names (with international ones), addresses and address ranges.
    (INVALID, r"egress(\.allow(\[\d+\](\.host)?)?)?|secrets\.\w+\.hosts(\[\d+\])?", r'(?s)egress entry "|is not a host name|allowed are a name'),
    (INVALID, r"mcp\.[a-z0-9-]+\.url", r"is no http:// or https:// address"),
    # Names that mean something else: variables that change how programs behave, and names in logs.
    (INVALID, r"secrets\.\w+", r"is no name for a variable|is in `environment` too"),
    (INVALID, r"name", r"is reserved for callers without a key|looks like the id of a key"),
    # Examples of a rule must fit the rule.
    (INVALID, r"commands", r"(counter_)?examples: `"),
    # An xdotool script closes its quotes and has no long lines.
    (INVALID, r"(steps\[\d+\]\.)?script", r"has a quote|more than 4000 bytes"),
    # What an earlier request has made decides.
    (INVALID, r"role", r"the first key must have the role admin"),
    (INVALID, r"name", r"already exists|is the last admin key"),
    (INVALID, r"this_login", r"needs a login session"),
    (INVALID, r"id|budget", r"steps and no agent|steps have no agent"),
    (INVALID, r"seconds", r"^the new time limit: "),
    # A job is named by either of two parameters, and which body a file takes depends on `kind`.
    ((400, "bad_job_id"), r"", r"^missing job id"),
    ((400, "invalid_body"), r"", r"a directory has no content|the target of the symlink"),
]

# The parts `job` and `steps` of a form are JSON in a text, and the other parts are archives and files.
KNOWN_FORM_REFUSALS = [
    ((400, "malformed_json"), r"job|steps", r""),
    ((400, "malformed_form"), r"job|steps|archive|file", r""),
    (INVALID, r"job|steps|archive|file", r""),
    ((422, "unknown_archive"), r"archive|file", r""),
    ((422, "broken_archive"), r"archive|file", r""),
]

numbers = count()


@schemathesis.hook
def before_call(context, case, kwargs):
    """Makes idempotency keys unique: with a key that was used before, no job would be looked at. Names the sandbox of
    the test, if it has one, instead of a made-up one."""
    sandbox = os.environ.get("CAISSON_TEST_SANDBOX")
    path = case.meta and case.meta.components.get(ParameterLocation.PATH)
    if sandbox and path and path.mode.is_positive:
        case.path_parameters["id"] = sandbox
    headers = case.headers or {}
    for name in headers:
        if name.lower() == "idempotency-key" and case.meta and case.meta.generation.mode.is_positive:
            headers[name] = f"{headers[name][:200]}{next(numbers)}"


@schemathesis.check
def refusal_is_known(ctx, response, case):
    """Compares the refusal of a valid request with the known ones."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code not in (400, 422):
        return
    problem = response.json()
    code, field, detail = (problem.get(name) or "" for name in ("code", "field", "detail"))
    of_forms = KNOWN_FORM_REFUSALS if case.media_type == "multipart/form-data" else []
    for known, known_field, known_detail in KNOWN_REFUSALS + of_forms:
        fits = known == (response.status_code, code) and re.fullmatch(known_field, field)
        if fits and re.search(known_detail, detail):
            return
    raise AssertionError(f"a valid request was refused for a reason that is not known: {response.status_code} {code} {field!r} {detail}")
