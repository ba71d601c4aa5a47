#!/usr/bin/env python3
"""An MCP server in one file, without dependencies: a ledger with three tools.

It reads one JSON message a line from standard input and answers on standard output. Everything else that it has to
say goes to standard error. Copy it, replace the functions at the top, and describe them in TOOLS.
"""

import json
import sys

LEDGER = []


def add(amount, text=""):
    LEDGER.append((amount, text))
    return f"entry {len(LEDGER)}: {amount} {text}".rstrip()


def total():
    return str(sum(amount for amount, _ in LEDGER))


def entries():
    return "\n".join(f"{amount}\t{text}" for amount, text in LEDGER) or "the ledger is empty"


TOOLS = {
    "add": (
        add,
        "Adds an entry to the ledger.",
        {"amount": {"type": "number"}, "text": {"type": "string", "description": "what it was for"}},
        ["amount"],
    ),
    "total": (total, "The sum of all entries.", {}, []),
    "entries": (entries, "All entries, one a line.", {}, []),
}


def describe(name):
    _, description, properties, required = TOOLS[name]
    schema = {"type": "object", "properties": properties, "required": required}
    # An agent may run several calls at the same time that only look.
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": name != "add"},
    }


def call(name, arguments):
    try:
        text, failed = TOOLS[name][0](**arguments), False
    except Exception as error:  # the agent reads it and tries again
        text, failed = f"{type(error).__name__}: {error}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "ledger", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [describe(name) for name in TOOLS]}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {})
    if method == "ping":
        return {}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:  # a notification: nothing to answer
        continue
    result = answer(message.get("method"), message.get("params") or {})
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        reply["error"] = {"code": -32601, "message": f"there is no method {message.get('method')}"}
    else:
        reply["result"] = result
    print(json.dumps(reply), flush=True)
